package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// section is one resource type of a configuration dump and how to show it.
type section struct {
	name string
	// dump is the last part of the type of the dump's part, list its field with the resources, and in
	// the path from an element of the list to the resource.
	dump, list string
	in         []string
	header     []string
	rows       func(resource any) [][]string
}

var sections = []section{
	{"clusters", "ClustersConfigDump", "dynamicActiveClusters", []string{"cluster"}, []string{"SERVICE", "PORT", "SUBSET", "DIRECTION", "TYPE"}, clusterRows},
	{"listeners", "ListenersConfigDump", "dynamicListeners", []string{"activeState", "listener"}, []string{"LISTENER", "ADDRESS", "CHAINS", "DIRECTION"}, listenerRows},
	{"routes", "RoutesConfigDump", "dynamicRouteConfigs", []string{"routeConfig"}, []string{"ROUTES", "HOST", "MATCH", "TO"}, routeRows},
	{"endpoints", "EndpointsConfigDump", "dynamicEndpointConfigs", []string{"endpointConfig"}, []string{"CLUSTER", "ENDPOINT", "HEALTH", "WEIGHT"}, endpointRows},
}

func sectionNames() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func newConfig(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "config PROXY [" + strings.Join(sectionNames(), "|") + "]",
		Short: "Show the configuration of a proxy",
		Long: `Show the configuration of a proxy, all of it or one type.

PROXY is a name that "pilotctl proxies" lists, such as reviews-v1-1.bookshop.
With -o json or yaml the complete resources are printed.`,
		Args: usage(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return completeProxies(c, f, prefix)
			case 1:
				return sectionNames(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			chosen := sections
			if len(args) == 2 {
				i := slices.Index(sectionNames(), args[1])
				if i < 0 {
					return misuse{fmt.Errorf("invalid config type %q: want one of %s", args[1], strings.Join(sectionNames(), ", "))}
				}
				chosen = sections[i : i+1]
			}
			var dump any
			text, err := fetchInto(c.Context(), f.discovery, "debug/config_dump", url.Values{"proxyID": {args[0]}}, &dump)
			if err != nil {
				return err
			}
			switch {
			case f.output == "table":
				return printSections(c.OutOrStdout(), dump, chosen)
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

func printSections(w io.Writer, dump any, chosen []section) error {
	for i, s := range chosen {
		if len(chosen) > 1 {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintln(w, strings.ToUpper(s.name))
		}
		var rows [][]string
		for _, r := range s.resources(dump) {
			rows = append(rows, s.rows(r)...)
		}
		if err := printTable(w, s.header, rows); err != nil {
			return err
		}
	}
	return nil
}
