package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The dump is read as plain JSON, not as Envoy's messages: a field that this version does
// not know is no error then, and pilotctl stays small.

// at follows keys into a tree; nil where the way ends.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// word is the scalar at the end of keys, as text; "" where there is none.
func word(v any, keys ...string) string {
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

// clusterRows takes names of the form direction|port|subset|host apart.
func clusterRows(r any) [][]string {
	name := word(r, "name")
	typ := word(r, "type")
	if typ == "" {
		typ = word(r, "clusterType", "name")
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
	return [][]string{{word(r, "name"), socket(at(r, "address")), text, strings.ToLower(word(r, "trafficDirection"))}}
}

// socket is address:port of an Envoy address, or the path of a pipe.
func socket(v any) string {
	if p := word(v, "pipe", "path"); p != "" {
		return p
	}
	host, port := word(v, "socketAddress", "address"), word(v, "socketAddress", "portValue")
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
			rows = append(rows, []string{word(r, "name"), word(h, "name"), "", ""})
		}
		for _, route := range routes {
			rows = append(rows, []string{word(r, "name"), word(h, "name"), match(at(route, "match")), target(route)})
		}
	}
	return rows
}

// match says what a route matches: the path, then the other conditions by name.
func match(m any) string {
	parts := []string{}
	for _, k := range []string{"prefix", "path", "pathSeparatedPrefix"} {
		if p := word(m, k); p != "" {
			parts = append(parts, p+map[string]string{"prefix": "*", "pathSeparatedPrefix": "/*"}[k])
		}
	}
	if re := word(m, "safeRegex", "regex"); re != "" {
		parts = append(parts, "~"+re)
	}
	for _, k := range []string{"headers", "queryParameters"} {
		for _, h := range items(m, k) {
			parts = append(parts, word(h, "name")+value(h))
		}
	}
	return strings.Join(parts, " ")
}

// value says what a header or a parameter is compared with.
func value(h any) string {
	s := at(h, "stringMatch")
	kinds, _ := s.(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		text := word(s, k)
		if text == "" {
			text = word(s, k, "regex")
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

// target says where a route leads.
func target(r any) string {
	if c := word(r, "route", "cluster"); c != "" {
		return c
	}
	var parts []string
	for _, c := range items(r, "route", "weightedClusters", "clusters") {
		weight := word(c, "weight")
		if weight == "" {
			weight = "0"
		}
		parts = append(parts, weight+" "+word(c, "name"))
	}
	if len(parts) > 0 {
		return strings.Join(parts, ", ")
	}
	if at(r, "redirect") != nil {
		return "redirect " + word(r, "redirect", "hostRedirect") + word(r, "redirect", "pathRedirect") + word(r, "redirect", "prefixRewrite")
	}
	if at(r, "directResponse") != nil {
		return "answer " + word(r, "directResponse", "status")
	}
	return ""
}

func endpointRows(r any) [][]string {
	var rows [][]string
	for _, group := range items(r, "endpoints") {
		for _, e := range items(group, "lbEndpoints") {
			health := strings.ToLower(word(e, "healthStatus"))
			if health == "" || health == "unknown" {
				health = "healthy"
			}
			weight := word(e, "loadBalancingWeight")
			rows = append(rows, []string{word(r, "clusterName"), socket(at(e, "endpoint", "address")), health, weight})
		}
	}
	if rows == nil {
		rows = [][]string{{word(r, "clusterName"), "", "", ""}}
	}
	return rows
}
