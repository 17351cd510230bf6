package model

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	extensions "istio.io/api/extensions/v1alpha1"
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Extension is the row of a WasmPlugin or a TrafficExtension.
type Extension struct {
	Row
	Kind object.Kind
	Spec *extensions.TrafficExtension
}

// extensionMark separates the kind of an extension from the rest of the key of its row.
const extensionMark = ":"

// extensionKey is the key of the row of an extension, which no EnvoyFilter has.
func extensionKey(k object.Key) string { return string(k.Kind) + extensionMark + rowKey(k) }

// ExtensionObject returns the object that a key in Patches of a scope or workload is that of; false for the key of an EnvoyFilter.
func ExtensionObject(key string) (object.Key, bool) {
	kind, rest, ok := strings.Cut(key, extensionMark)
	if !ok {
		return object.Key{}, false
	}
	ns, name, _ := strings.Cut(rest, "/")
	name, cluster, _ := strings.Cut(name, "/")
	return object.Key{Kind: object.Kind(kind), Namespace: ns, Name: name, Cluster: cluster}, true
}

func putWasmPlugin(m *Model, o *object.Object, spec *extensions.WasmPlugin) {
	m.putExtension(o, object.TrafficExtensionOf(spec))
}

func putTrafficExtension(m *Model, o *object.Object, spec *extensions.TrafficExtension) {
	m.putExtension(o, spec)
}

func (m *Model) putExtension(o *object.Object, spec *extensions.TrafficExtension) {
	m.tables.extensions.Put(extensionKey(o.Key), &Extension{Row: rowOf(o), Kind: o.Kind, Spec: spec}, namespaceBucket(o.Namespace))
}

func removeExtension(m *Model, k object.Key) { m.tables.extensions.Delete(extensionKey(k)) }

// Extension returns an extension by the key of its row, if it exists.
func (m *Model) Extension(r *incr.Reader, key string) (*Extension, bool) {
	return incr.Get(r, m.tables.extensions, key)
}

// extending returns the keys of the extensions that change what a proxy's scope and workload determine: those of its namespace and of the
// root namespace that select it. A sidecar has their configurations with its workload, so that each of them is in the second.
// [control-plane 1.11.5, 1.11.6]
func (m *Model) extending(r *incr.Reader, k ProxyKey, labels map[string]string, gateways []string) (scope, workload []string) {
	for _, ns := range m.scopesOf(r, k.Namespace) {
		for key, e := range incr.In(r, m.tables.extensions, namespaceBucket(ns)) {
			if targeted(e.Spec) && (ns != k.Namespace || !targets(e.Spec, ns, gateways)) || !subset(e.Spec.GetSelector().GetMatchLabels(), labels) {
				continue
			}
			client, server := ExtensionModes(e.Spec)
			if client {
				scope = append(scope, key)
			}
			if k.Role != mesh.Router && (client || server) {
				workload = append(workload, key)
			}
		}
	}
	return scope, workload
}

// ExtensionModes reports whether an extension is for what a proxy's workload asks for, which is also what a gateway forwards, and for what
// it is asked for.
func ExtensionModes(spec *extensions.TrafficExtension) (client, server bool) {
	if len(spec.GetMatch()) == 0 {
		return true, true
	}
	for _, s := range spec.GetMatch() {
		client = client || s.GetMode() != typev1.WorkloadMode_SERVER
		server = server || s.GetMode() != typev1.WorkloadMode_CLIENT
	}
	return client, server
}

// CompareExtensions orders extensions as requests pass them: by phase, in a phase the highest priority first and those without one last,
// as in Istio, then those of the root namespace, then by age and name.
func (m *Model) CompareExtensions(r *incr.Reader, a, b *Extension) int {
	root := m.Mesh(r).RootNamespace
	rank := func(e *Extension) (phase, priority, namespace int64) {
		phase, priority = int64(e.Spec.GetPhase()), math.MinInt64
		if e.Spec.GetPhase() == extensions.TrafficExtension_UNSPECIFIED {
			phase = math.MaxInt64
		}
		if p := e.Spec.GetPriority(); p != nil {
			priority = int64(p.GetValue())
		}
		if e.Namespace != root {
			namespace = 1
		}
		return phase, priority, namespace
	}
	ap, an, as := rank(a)
	bp, bn, bs := rank(b)
	if c := cmp.Or(cmp.Compare(ap, bp), cmp.Compare(bn, an), cmp.Compare(as, bs)); c != 0 {
		return c
	}
	switch {
	case a.Older(b.Row):
		return -1
	case b.Older(a.Row):
		return 1
	}
	return cmp.Compare(a.Kind, b.Kind)
}

// clusterNames adds the names of outbound clusters in the configuration of an extension, which may connect to them.
func (e *Extension) clusterNames(to []string) []string {
	return appendClusterNames(to, structpb.NewStructValue(e.Spec.GetWasm().GetPluginConfig()))
}

// sortedKeys returns two lists as one, sorted, and separated by spaces.
func sortedKeys(a, b []string) string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return strings.Join(all, " ")
}
