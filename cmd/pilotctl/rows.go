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

// names is what rows say of other resources and of objects.
type names struct {
	// clusters are those of the proxy.
	clusters map[string]bool
	// origins are where objects are from, by their kind in lower case and their names: virtualservice/shop/web.
	origins map[string]appliedObject
}

func newNames(dump any, objects []appliedObject) *names {
	x := &names{map[string]bool{}, map[string]appliedObject{}}
	for _, s := range sections {
		if s.name == "clusters" {
			for _, c := range s.resources(dump) {
				x.clusters[scalar(c, "name")] = true
			}
		}
	}
	for _, o := range objects {
		x.origins[strings.ToLower(o.Kind)+"/"+o.Namespace+"/"+o.Name] = o
	}
	return x
}

// cluster names a cluster, and marks it if the proxy has none of this name.
func (x *names) cluster(name string) string {
	if x.clusters[name] {
		return name
	}
	return name + " (NO CLUSTER)"
}

// object names the object of a path such as /apis/networking.istio.io/v1/namespaces/shop/virtual-service/web, by
// which resources name what they were made from.
func (x *names) object(path string) string {
	p := strings.Split(path, "/")
	if len(p) != 8 || p[4] != "namespaces" {
		return path
	}
	kind := strings.ReplaceAll(p[6], "-", "")
	for _, k := range []string{kind, strings.TrimSuffix(kind, "s")} {
		o, ok := x.origins[k+"/"+p[5]+"/"+p[7]]
		switch {
		case !ok:
		case o.Origin == "":
			return o.String()
		default:
			return o.String() + " (" + o.Origin + ")"
		}
	}
	return p[6] + " " + p[5] + "/" + p[7]
}

func routeRows(x *names, r any) [][]string {
	var rows [][]string
	for _, h := range items(r, "virtualHosts") {
		routes := items(h, "routes")
		if len(routes) == 0 {
			rows = append(rows, []string{scalar(r, "name"), scalar(h, "name"), "", "", "", "", ""})
		}
		for _, route := range routes {
			rows = append(rows, []string{
				scalar(r, "name"), scalar(h, "name"), match(at(route, "match")), target(x, route), timeout(route), retries(h, route),
				x.object(scalar(route, "metadata", "filterMetadata", "istio", "config")),
			})
		}
	}
	return rows
}

// timeout is that of a whole request; empty where the proxy itself answers.
func timeout(r any) string {
	if at(r, "route") == nil {
		return ""
	}
	switch t := scalar(r, "route", "timeout"); t {
	case "":
		return "15s" // Envoy's default
	case "0s":
		return "none"
	default:
		return t
	}
}

// retries is how often a request is repeated, by the route or else by its virtual host, and how long each
// attempt may take.
func retries(host, r any) string {
	p := at(r, "route", "retryPolicy")
	if p == nil {
		p = at(host, "retryPolicy")
	}
	if p == nil || at(r, "route") == nil {
		return ""
	}
	n := scalar(p, "numRetries")
	if n == "" {
		n = "1" // Envoy's default
	}
	if each := scalar(p, "perTryTimeout"); each != "" {
		n += ", " + each + " each"
	}
	return n
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
	if at(m, "connectMatcher") != nil {
		parts = append(parts, "CONNECT")
	}
	if t := scalar(m, "pathMatchPolicy", "typedConfig", "pathTemplate"); t != "" {
		parts = append(parts, t)
	}
	for _, k := range []string{"headers", "queryParameters"} {
		for _, h := range items(m, k) {
			text := scalar(h, "name") + value(h)
			if scalar(h, "invertMatch") == "true" {
				text = "!" + text
			}
			parts = append(parts, text)
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
		case "contains":
			return "=*" + text + "*"
		case "safeRegex":
			return "~" + text
		}
	}
	return ""
}

// target is where a route sends requests: a cluster, weighted clusters, a redirect or a response.
func target(x *names, r any) string {
	if c := scalar(r, "route", "cluster"); c != "" {
		return x.cluster(c)
	}
	if h := scalar(r, "route", "clusterHeader"); h != "" {
		return "cluster that the header " + h + " names"
	}
	var parts []string
	for _, c := range items(r, "route", "weightedClusters", "clusters") {
		weight := scalar(c, "weight")
		if weight == "" {
			weight = "0"
		}
		parts = append(parts, weight+" "+x.cluster(scalar(c, "name")))
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
