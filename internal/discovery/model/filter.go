package model

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// EnvoyFilter is the row of an object.
type EnvoyFilter struct {
	Row
	Spec *networking.EnvoyFilter
}

func putEnvoyFilter(m *Model, o *object.Object, spec *networking.EnvoyFilter) {
	m.tables.filters.Put(rowKey(o.Key), &EnvoyFilter{Row: rowOf(o), Spec: spec}, namespaceBucket(o.Namespace))
}

// Patching is one EnvoyFilter or extension in Patches of a scope or workload.
type Patching struct {
	// Key is that of the row.
	Key string
	// some has the indexes of the patches for the proxy, nil for all of them.
	some []string
}

// Has reports whether the patch with an index is for the proxy.
func (p Patching) Has(index int) bool {
	return p.some == nil || slices.Contains(p.some, strconv.Itoa(index))
}

// Patchings parses Patches of a scope or workload.
func Patchings(text string) (out []Patching) {
	for _, one := range strings.Fields(text) {
		key, some, partly := strings.Cut(one, "#")
		p := Patching{Key: key}
		if partly {
			p.some = strings.Split(some, ",")
		}
		out = append(out, p)
	}
	return out
}

// patching returns the EnvoyFilters with patches for what a proxy's scope and workload determine, and the extensions that do, in the form that
// Patchings parses: those of its namespace and of the root namespace that select it. gRPC libraries have none.
// [control-plane 1.9.26, 1.9.28]
func (m *Model) patching(r *incr.Reader, k ProxyKey, labels map[string]string, gateways []string) (scope, workload string) {
	if k.Caps.Has(mesh.Proxyless) {
		return "", ""
	}
	var ofScope, ofWorkload []string
	for _, ns := range m.scopesOf(r, k.Namespace) {
		for key, f := range incr.In(r, m.tables.filters, namespaceBucket(ns)) {
			if !f.selects(ns, k, labels, gateways) {
				continue
			}
			outside := networking.EnvoyFilter_SIDECAR_OUTBOUND
			if k.Role == mesh.Router {
				outside = networking.EnvoyFilter_GATEWAY
			} else if text, ok := f.patchesFor(networking.EnvoyFilter_SIDECAR_INBOUND, k); ok {
				ofWorkload = append(ofWorkload, key+text)
			}
			if text, ok := f.patchesFor(outside, k); ok {
				ofScope = append(ofScope, key+text)
			}
		}
	}
	s, w := m.extending(r, k, labels, gateways)
	return sortedKeys(ofScope, s), sortedKeys(ofWorkload, w)
}

// selects reports whether an EnvoyFilter of a namespace is for a proxy with these labels, which serves these Gateways.
func (f *EnvoyFilter) selects(ns string, k ProxyKey, labels map[string]string, gateways []string) bool {
	return (!targeted(f.Spec) || ns == k.Namespace && targets(f.Spec, ns, gateways)) && subset(f.Spec.GetWorkloadSelector().GetLabels(), labels)
}

// BootstrapPatching returns the EnvoyFilters with patches for a proxy's bootstrap, in the form that Patchings parses. The capabilities of
// its Envoy do not count. [control-plane 1.6.19]
func (m *Model) BootstrapPatching(r *incr.Reader, k ProxyKey) string {
	cluster := m.clusterOf(r, k.Location.Cluster)
	labels, pod := m.labelsOf(r, k, cluster)
	var out, gateways []string
	known := false
	for _, ns := range m.scopesOf(r, k.Namespace) {
		for key, f := range incr.In(r, m.tables.filters, namespaceBucket(ns)) {
			some := f.bootstrapPatches(k)
			if some == "" {
				continue
			}
			if targeted(f.Spec) && !known { // most have no targets
				services := ""
				if m.claims(r, k) == "" {
					services = m.servicesOf(r, k, cluster, labels, portNames(pod))
				}
				gateways, known = m.gatewayNames(r, k, labels, services), true
			}
			if f.selects(ns, k, labels, gateways) {
				out = append(out, key+"#"+some)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// bootstrapPatches returns the indexes of the patches for a proxy's bootstrap, separated by commas. The context says of which role the
// proxies are.
func (f *EnvoyFilter) bootstrapPatches(k ProxyKey) string {
	var some []string
	for i, p := range f.Spec.GetConfigPatches() {
		if p.GetApplyTo() != networking.EnvoyFilter_BOOTSTRAP || !matchesProxy(p, k) {
			continue
		}
		switch p.GetMatch().GetContext() {
		case networking.EnvoyFilter_GATEWAY:
			if k.Role != mesh.Router {
				continue
			}
		case networking.EnvoyFilter_SIDECAR_INBOUND, networking.EnvoyFilter_SIDECAR_OUTBOUND:
			if k.Role != mesh.Sidecar {
				continue
			}
		}
		some = append(some, strconv.Itoa(i))
	}
	return strings.Join(some, ",")
}

// matchesProxy reports whether a patch's match is for a proxy: by its version, and by what its node's metadata say, as
// texts. [control-plane 1.9.26]
func matchesProxy(p *networking.EnvoyFilter_EnvoyConfigObjectPatch, k ProxyKey) bool {
	of := p.GetMatch().GetProxy()
	for key, want := range of.GetMetadata() {
		if got, ok := k.said(key); !ok || got != want {
			return false
		}
	}
	if of.GetProxyVersion() == "" {
		return true
	}
	re, err := regexp.Compile(of.GetProxyVersion())
	return err == nil && k.Version != "" && re.MatchString(k.Version)
}

// said returns the value of a key of the node's metadata that is a text.
func (k ProxyKey) said(key string) (string, bool) {
	switch key {
	case "NAME":
		return k.Name, true
	case "NAMESPACE":
		return k.Namespace, true
	case "CLUSTER_ID":
		return k.Location.Cluster, true
	case "NETWORK":
		return k.Location.Network, true
	case "ISTIO_VERSION":
		return k.Version, true
	case "INSTANCE_IPS":
		return k.IPs, true
	}
	return k.Texts.Get(key)
}

// patchesFor says which patches are for a context of a proxy, in the form "#0,2", "" for all that are for the
// context; false if none is.
func (f *EnvoyFilter) patchesFor(in networking.EnvoyFilter_PatchContext, k ProxyKey) (text string, any bool) {
	var some []string
	all := true
	for i, p := range f.Spec.GetConfigPatches() {
		if !inContext(p, in) {
			continue
		}
		if of := p.GetMatch().GetProxy(); of.GetProxyVersion() != "" || len(of.GetMetadata()) > 0 {
			all = false
			if !matchesProxy(p, k) {
				continue
			}
		}
		some = append(some, strconv.Itoa(i))
	}
	if all {
		return "", len(some) > 0
	}
	return "#" + strings.Join(some, ","), len(some) > 0
}

// inContext reports whether a patch is for a context. Extension configurations are named by listeners of any context, and a sidecar has
// them with its workload.
func inContext(p *networking.EnvoyFilter_EnvoyConfigObjectPatch, in networking.EnvoyFilter_PatchContext) bool {
	switch p.GetApplyTo() {
	case networking.EnvoyFilter_BOOTSTRAP:
		return false
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return in != networking.EnvoyFilter_SIDECAR_OUTBOUND
	}
	c := p.GetMatch().GetContext()
	return c == networking.EnvoyFilter_ANY || c == in
}

// maxPatchClusters is how many clusters the EnvoyFilters of a router may add to it by naming them.
const maxPatchClusters = 1000

// clustersOf returns the names of outbound clusters in the values of patches, sorted and separated by spaces.
func (m *Model) clustersOf(r *incr.Reader, patches string) string {
	var out []string
	for _, p := range Patchings(patches) {
		if _, ok := ExtensionObject(p.Key); ok {
			if e, ok := m.Extension(r, p.Key); ok {
				out = e.clusterNames(out)
			}
			continue
		}
		f, ok := m.EnvoyFilter(r, p.Key)
		if !ok {
			continue
		}
		for i, spec := range f.Spec.GetConfigPatches() {
			if c := spec.GetMatch().GetContext(); p.Has(i) && (c == networking.EnvoyFilter_ANY || c == networking.EnvoyFilter_GATEWAY) {
				out = appendClusterNames(out, structpb.NewStructValue(spec.GetPatch().GetValue()))
			}
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return strings.Join(out[:min(len(out), maxPatchClusters)], " ")
}

// appendClusterNames adds the texts in a value that are names of outbound clusters.
func appendClusterNames(to []string, v *structpb.Value) []string {
	switch v := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		if strings.HasPrefix(v.StringValue, "outbound|") && !strings.ContainsAny(v.StringValue, " \t\n") {
			to = append(to, v.StringValue)
		}
	case *structpb.Value_ListValue:
		for _, e := range v.ListValue.GetValues() {
			to = appendClusterNames(to, e)
		}
	case *structpb.Value_StructValue:
		for _, e := range v.StructValue.GetFields() {
			to = appendClusterNames(to, e)
		}
	}
	return to
}

// EnvoyFilter returns an EnvoyFilter by the key of its row, if it exists.
func (m *Model) EnvoyFilter(r *incr.Reader, key string) (*EnvoyFilter, bool) {
	return incr.Get(r, m.tables.filters, key)
}

// ComparePatches orders EnvoyFilters as they are applied: by priority, those of the root namespace first, then by age and
// name. [control-plane 1.9.28]
func (m *Model) ComparePatches(r *incr.Reader, a, b *EnvoyFilter) int {
	root := m.Mesh(r).RootNamespace
	if c := cmp.Compare(a.Spec.GetPriority(), b.Spec.GetPriority()); c != 0 {
		return c
	}
	if (a.Namespace == root) != (b.Namespace == root) {
		if a.Namespace == root {
			return -1
		}
		return 1
	}
	if a.Row == b.Row {
		return 0
	}
	if a.Older(b.Row) {
		return -1
	}
	return 1
}
