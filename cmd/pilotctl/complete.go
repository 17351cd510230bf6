package main

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/lab/up"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// offered are the names that begin with what is typed, each once, in order; ok unset is an error, for which nothing is offered. A shell would print escape codes
// while it completes.
func offered(names []string, ok bool, prefix string) ([]string, cobra.ShellCompDirective) {
	if !ok {
		return nil, cobra.ShellCompDirectiveError
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) || !printable.Is(name) })
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// listOf asks pilot-discovery for a page with a list, of all replicas.
func listOf[T any](c *cobra.Command, f *flags, page string) (out []T, ok bool) {
	if f.read(c) != nil {
		return nil, false
	}
	r, err := f.connect(c)
	if err != nil {
		return nil, false
	}
	defer r.Close()
	got, _, err := answered(r.ask(c.Context(), page, nil, nil))
	if err != nil {
		return nil, false
	}
	lists, err := decoded[[]json.RawMessage](got, page)
	if err != nil {
		return nil, false
	}
	texts, err := joinLists(lists)
	if err != nil {
		return nil, false
	}
	for _, text := range texts {
		var one T
		if json.Unmarshal(text, &one) != nil {
			return nil, false
		}
		out = append(out, one)
	}
	return out, true
}

// completeProxies offers the connected proxies.
func completeProxies(c *cobra.Command, f *flags, prefix string) ([]string, cobra.ShellCompDirective) {
	all, ok := listOf[proxy](c, f, syncPage)
	var names []string
	for _, p := range all {
		names = append(names, p.Proxy)
	}
	return offered(names, ok, prefix)
}

// completeServices offers the services as NAME.NAMESPACE, those outside by their hosts, and the connected proxies.
func completeServices(c *cobra.Command, f *flags, prefix string) ([]string, cobra.ShellCompDirective) {
	all, ok := listOf[struct {
		Hostname string `json:"hostname"`
	}](c, f, "debug/registryz")
	names, _ := completeProxies(c, f, prefix)
	for _, s := range all {
		host, _, _ := strings.Cut(s.Hostname, ".svc.")
		names = append(names, host)
	}
	return offered(names, ok, prefix)
}

// completeObjects offers kinds, and after a kind its objects as NAMESPACE/NAME.
func completeObjects(c *cobra.Command, f *flags, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		var kinds []string
		for _, k := range object.Kinds() {
			name := string(k)
			if prefix != "" && prefix == strings.ToLower(prefix) { // kinds may be written in any case
				name = strings.ToLower(name)
			}
			if strings.HasPrefix(strings.ToLower(name), strings.ToLower(prefix)) {
				kinds = append(kinds, prefix+name[len(prefix):])
			}
		}
		return offered(kinds, true, prefix)
	case 1:
		kind, err := object.ParseKind(args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, ok := listOf[struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}](c, f, "debug/configz")
		var names []string
		for _, o := range all {
			if o.Kind == string(kind) {
				names = append(names, o.Metadata.Namespace+"/"+o.Metadata.Name)
			}
		}
		return offered(names, ok, prefix)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completePods offers the Pods of the meshes that "pilotctl up" runs.
func completePods(runDir, mesh, prefix string) ([]string, cobra.ShellCompDirective) {
	meshes, err := meshesOf(runDir, mesh)
	var names []string
	for _, m := range meshes {
		for _, p := range m.Pods {
			names = append(names, p.Key())
		}
	}
	return offered(names, err == nil, prefix)
}

// completeContainers offers the containers of a Pod, and its proxy.
func completeContainers(runDir, mesh string, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_, p, err := runningPod(runDir, mesh, args[0])
	return offered(containersOf(p), err == nil, prefix)
}

// containersOf are the names of the logs of a Pod.
func containersOf(p up.Pod) []string {
	names := slices.Clone(p.Containers)
	if p.Proxied {
		names = append(names, "proxy")
	}
	return names
}
