package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// section is one resource type of a configuration dump and how to show it.
type section struct {
	name string
	// dump is the last part of the type of the dump's part, list its field with the resources, and in
	// the path from an element of the list to the resource.
	dump, list string
	in         []string
	header     []string
	rows       func(x *names, resource any) [][]string
}

var sections = []section{
	{"clusters", "ClustersConfigDump", "dynamicActiveClusters", []string{"cluster"}, []string{"SERVICE", "PORT", "SUBSET", "DIRECTION", "TYPE"}, plain(clusterRows)},
	{"listeners", "ListenersConfigDump", "dynamicListeners", []string{"activeState", "listener"}, []string{"LISTENER", "ADDRESS", "CHAINS", "DIRECTION"}, plain(listenerRows)},
	{"routes", "RoutesConfigDump", "dynamicRouteConfigs", []string{"routeConfig"}, []string{"ROUTES", "HOST", "MATCH", "TO", "TIMEOUT", "RETRIES", "OBJECT"}, routeRows},
	{"endpoints", "EndpointsConfigDump", "dynamicEndpointConfigs", []string{"endpointConfig"}, []string{"CLUSTER", "ENDPOINT", "HEALTH", "WEIGHT"}, plain(endpointRows)},
}

// plain is for rows that need no context.
func plain(rows func(any) [][]string) func(*names, any) [][]string {
	return func(_ *names, r any) [][]string { return rows(r) }
}

func sectionNames() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func newConfig(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "config PROXY [" + strings.Join(configTypes(), "|") + "]",
		Short: "Show the configuration of a proxy",
		Long: `Show the configuration of a proxy, all of it or one type.

PROXY is a name that "pilotctl proxies" lists, such as reviews-v1-1.bookshop, or the name of a Pod with
--namespace. Of several replicas of pilot-discovery, the one that the proxy is connected to is asked.
With -o json or yaml the complete resources are printed.

secrets are the certificates that the proxy has as far as the control plane knows them: its own and its
roots, which its agent serves, and those of Secrets that it asks for, by name, issuer and end, never keys.
They are shown only when they are asked for.

Of a route, TO is marked NO CLUSTER where the proxy has no such cluster, so that requests fail. TIMEOUT
is that of the whole request, or none; RETRIES is their number, with the timeout of each attempt, if
there is one. OBJECT is what the route was written from, with its file and line or its place in the cluster; a
route without one follows from the service alone.`,
		Example: `  pilotctl config reviews-1.shop routes
  pilotctl config reviews-1 -n shop clusters -o json
  pilotctl config reviews-1.shop secrets`,
		Args: usage(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return completeProxies(c, f, prefix)
			case 1:
				return configTypes(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if n := c.Flag("namespace"); n.Changed && strings.Contains(args[0], ".") && !strings.HasSuffix(args[0], "."+n.Value.String()) {
				return misuse{fmt.Errorf("%s and --namespace %s: want one namespace", args[0], n.Value)}
			}
			chosen := sections
			if len(args) == 2 && args[1] == secretsType {
				return f.secrets(c, args[0])
			}
			if len(args) == 2 {
				i := slices.Index(sectionNames(), args[1])
				if i < 0 {
					return misuse{fmt.Errorf("invalid config type %q: want one of %s", args[1], strings.Join(configTypes(), ", "))}
				}
				chosen = sections[i : i+1]
			}
			text, objects, err := configDump(c, f, args[0], chosen)
			if err != nil {
				return err
			}
			var dump any
			if err := json.Unmarshal(text, &dump); err != nil {
				return fmt.Errorf("decode the response of %s: %w", dumpPage, err)
			}
			switch {
			case f.output == "table":
				return printSections(c.OutOrStdout(), f.columns(c), dump, objects, chosen)
			case len(args) == 1:
				return printJSON(c.OutOrStdout(), f.output, text)
			}
			resources := chosen[0].resources(dump)
			if resources == nil {
				resources = []any{}
			}
			text, err = json.Marshal(resources)
			if err != nil {
				return fmt.Errorf("encode the result: %w", err)
			}
			return printJSON(c.OutOrStdout(), f.output, text)
		},
	}
	asking(c, settings.PilotctlNamespace)
	return c
}

const dumpPage = "debug/config_dump"

// secretsPage lists the secrets of a proxy, secretsType is their name among the types.
const secretsPage, secretsType = "debug/secretz", "secrets"

// configTypes are the types that can be asked for.
func configTypes() []string { return append(sectionNames(), secretsType) }

// secretEntry is a secret in secretsPage.
type secretEntry struct {
	Name         string `json:"name"`
	State        string `json:"state"`
	Certificates []struct {
		Subject  string    `json:"subject"`
		Issuer   string    `json:"issuer"`
		SHA256   string    `json:"sha256"`
		NotAfter time.Time `json:"notAfter"`
		Names    []string  `json:"names"`
	} `json:"certificates"`
}

// secrets prints the secrets of a proxy.
func (f *flags) secrets(c *cobra.Command, name string) error {
	name, err := f.fullName(c, name)
	if err != nil {
		return err
	}
	r, err := f.connect(c)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := pageOf(c, r, secretsPage, name)
	if err != nil {
		return err
	}
	if f.output != "table" {
		return printJSON(c.OutOrStdout(), f.output, text)
	}
	var all []secretEntry
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("decode the response of %s: %w", secretsPage, err)
	}
	var rows [][]string
	for _, s := range all {
		if len(s.Certificates) == 0 {
			rows = append(rows, []string{s.Name, s.State, "", "", "", ""})
		}
		for _, cert := range s.Certificates {
			is := cert.Subject
			if len(cert.Names) > 0 {
				is = strings.Join(cert.Names, ", ")
			}
			rows = append(rows, []string{s.Name, s.State, is, cert.Issuer, cert.NotAfter.UTC().Format(time.RFC3339), cert.SHA256[:min(16, len(cert.SHA256))]})
		}
	}
	return printTable(c.OutOrStdout(), f.columns(c), []string{"SECRET", "STATE", "CERTIFICATE", "ISSUER", "ENDS", "SHA256"}, rows)
}

// fullName is the name of a proxy with the namespace that it lacks.
func (f *flags) fullName(c *cobra.Command, name string) (string, error) {
	namespace, err := f.qualified(c)
	if err == nil && namespace != "" && !strings.Contains(name, ".") {
		name += "." + namespace
	}
	return name, err
}

// configDump is the configuration of a proxy, from the replica that it is connected to, and where the objects
// are from that the table of the chosen sections names.
func configDump(c *cobra.Command, f *flags, name string, chosen []section) ([]byte, []appliedObject, error) {
	name, err := f.fullName(c, name)
	if err != nil {
		return nil, nil, err
	}
	r, err := f.connect(c)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	text, err := pageOf(c, r, dumpPage, name)
	if err != nil || f.output != "table" || !slices.ContainsFunc(chosen, func(s section) bool { return s.name == "routes" }) {
		return text, nil, err
	}
	objects, err := objectsInForce(c.Context(), r)
	if err != nil {
		fmt.Fprintln(c.ErrOrStderr(), "pilotctl: the files of objects are not known:", err)
	}
	return text, objects, nil
}

// pageOf asks all replicas for a page about a proxy: the others do not know the proxy.
func pageOf(c *cobra.Command, r *replicas, page, name string) ([]byte, error) {
	got, lost, err := answered(r.ask(c.Context(), page, url.Values{"proxyID": {name}}, nil))
	if err == nil {
		if len(got) > 1 {
			fmt.Fprintf(c.ErrOrStderr(), "pilotctl: %s is connected to %d replicas; this is what %s has\n", printable.Escape(name), len(got), got[0].replica.name)
		}
		return got[0].text, nil
	}
	// Who has answered does not have it: those who have not may have it.
	unknown := func(a answer) bool {
		said := (*statusError)(nil)
		return errors.As(a.err, &said) && said.code == http.StatusNotFound
	}
	unreachable := slices.DeleteFunc(slices.Clone(lost), unknown)
	if len(unreachable) == len(lost) {
		return nil, err
	}
	texts, _, listed := connected(c.Context(), r)
	all, decoded := decodeProxies(texts)
	if len(lost) == 1 && (listed != nil || decoded != nil) {
		return nil, err // this may not be pilot-discovery
	}
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Proxy
	}
	hint := didYouMean(near(name, names)) + " pilotctl proxies lists all that are"
	if !strings.HasPrefix(hint, ";") {
		hint = ":" + hint
	}
	if len(lost) == 1 {
		return nil, fmt.Errorf("no proxy %s is connected%s", printable.Quote(name, maxAnswer), hint)
	}
	if len(unreachable) > 0 {
		_ = unreachable.report(c.ErrOrStderr()) // the exit code is 1 in any case
	}
	return nil, fmt.Errorf("%s is connected to none of the replicas that have answered%s", printable.Escape(name), hint)
}

// resources returns the resources of one type in a dump, sorted by name.
func (s section) resources(dump any) []any {
	var out []any
	for _, c := range items(dump, "configs") {
		if !strings.HasSuffix(scalar(c, "@type"), "."+s.dump) {
			continue
		}
		for _, e := range items(c, s.list) {
			out = append(out, at(e, s.in...))
		}
	}
	slices.SortStableFunc(out, func(a, b any) int { return strings.Compare(resourceName(a), resourceName(b)) })
	return out
}

func resourceName(r any) string { return scalar(r, "name") + scalar(r, "clusterName") }

func printSections(w io.Writer, columns int, dump any, objects []appliedObject, chosen []section) error {
	x := newNames(dump, objects)
	for i, s := range chosen {
		if len(chosen) > 1 {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintln(w, strings.ToUpper(s.name))
		}
		var rows [][]string
		for _, r := range s.resources(dump) {
			rows = append(rows, s.rows(x, r)...)
		}
		narrow := func(w io.Writer) error { return printTable(w, columns, s.header, rows) }
		if s.name == "routes" {
			narrow = func(w io.Writer) error { return narrowRoutes(w, columns, rows) }
		}
		if err := printFitting(w, columns, func(w io.Writer) error { return wholeTable(w, s.header, rows) }, narrow); err != nil {
			return err
		}
	}
	return nil
}
