package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The dump is read as plain JSON, not as Envoy's messages: unknown fields are then not an error, and
// pilotctl stays small.

// at follows keys into a tree; nil if one is missing.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// scalar is the scalar at the end of keys, as text; empty if there is none.
func scalar(v any, keys ...string) string {
	switch v := at(v, keys...).(type) {
	case nil, map[string]any, []any:
		return ""
	default:
		return fmt.Sprint(v)
	}
}

// items is the list at the end of keys.
func items(v any, keys ...string) []any {
	l, _ := at(v, keys...).([]any)
	return l
}

// clusterRows splits names of the form direction|port|subset|host.
func clusterRows(r any) [][]string {
	name := scalar(r, "name")
	typ := scalar(r, "type")
	if typ == "" {
		typ = scalar(r, "clusterType", "name")
	}
	if typ == "" {
		typ = "STATIC"
	}
	p := strings.Split(name, "|")
	if len(p) != 4 {
		return [][]string{{name, "", "", "", typ}}
	}
	host := p[3]
	if host == "" {
		host = name
	}
	return [][]string{{host, p[1], p[2], p[0], typ}}
}

func listenerRows(r any) [][]string {
	chains := len(items(r, "filterChains"))
	text := fmt.Sprint(chains)
	if at(r, "defaultFilterChain") != nil {
		text += " + default"
	}
	return [][]string{{scalar(r, "name"), socket(at(r, "address")), text, strings.ToLower(scalar(r, "trafficDirection"))}}
}

// socket is address:port of an Envoy address, or the path of a pipe.
func socket(v any) string {
	if p := scalar(v, "pipe", "path"); p != "" {
		return p
	}
	host, port := scalar(v, "socketAddress", "address"), scalar(v, "socketAddress", "portValue")
	if host == "" {
		return ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

func routeRows(r any) [][]string {
	var rows [][]string
	for _, h := range items(r, "virtualHosts") {
		routes := items(h, "routes")
		if len(routes) == 0 {
			rows = append(rows, []string{scalar(r, "name"), scalar(h, "name"), "", ""})
		}
		for _, route := range routes {
			rows = append(rows, []string{scalar(r, "name"), scalar(h, "name"), match(at(route, "match")), target(route)})
		}
	}
	return rows
}

// match describes what a route matches: the path, then the other conditions by name.
func match(m any) string {
	parts := []string{}
	for _, k := range []string{"prefix", "path", "pathSeparatedPrefix"} {
		if p := scalar(m, k); p != "" {
			parts = append(parts, p+map[string]string{"prefix": "*", "pathSeparatedPrefix": "/*"}[k])
		}
	}
	if re := scalar(m, "safeRegex", "regex"); re != "" {
		parts = append(parts, "~"+re)
	}
	for _, k := range []string{"headers", "queryParameters"} {
		for _, h := range items(m, k) {
			parts = append(parts, scalar(h, "name")+value(h))
		}
	}
	return strings.Join(parts, " ")
}

// value describes what a header or a parameter is compared with.
func value(h any) string {
	s := at(h, "stringMatch")
	kinds, _ := s.(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		text := scalar(s, k)
		if text == "" {
			text = scalar(s, k, "regex")
		}
		switch k {
		case "exact":
			return "=" + text
		case "prefix":
			return "=" + text + "*"
		case "suffix":
			return "=*" + text
		case "safeRegex":
			return "~" + text
		}
	}
	return ""
}

// target is where a route sends requests: a cluster, weighted clusters, a redirect or a response.
func target(r any) string {
	if c := scalar(r, "route", "cluster"); c != "" {
		return c
	}
	var parts []string
	for _, c := range items(r, "route", "weightedClusters", "clusters") {
		weight := scalar(c, "weight")
		if weight == "" {
			weight = "0"
		}
		parts = append(parts, weight+" "+scalar(c, "name"))
	}
	if len(parts) > 0 {
		return strings.Join(parts, ", ")
	}
	if at(r, "redirect") != nil {
		return "redirect " + scalar(r, "redirect", "hostRedirect") + scalar(r, "redirect", "pathRedirect") + scalar(r, "redirect", "prefixRewrite")
	}
	if at(r, "directResponse") != nil {
		return "answer " + scalar(r, "directResponse", "status")
	}
	return ""
}

func endpointRows(r any) [][]string {
	var rows [][]string
	for _, group := range items(r, "endpoints") {
		for _, e := range items(group, "lbEndpoints") {
			health := strings.ToLower(scalar(e, "healthStatus"))
			if health == "" || health == "unknown" {
				health = "healthy"
			}
			weight := scalar(e, "loadBalancingWeight")
			rows = append(rows, []string{scalar(r, "clusterName"), socket(at(e, "endpoint", "address")), health, weight})
		}
	}
	if rows == nil {
		rows = [][]string{{scalar(r, "clusterName"), "", "", ""}}
	}
	return rows
}
