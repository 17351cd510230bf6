package compile

import (
	"cmp"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A scope or workload with EnvoyFilters is patched: its layers are those of the same scope or workload without them, its
// bare one, with the resources that a patch may change in place of the bare one's. So a patch is computed for what it may
// match only, and what no patch matches is shared with all proxies that have none (decision 80).

// patchedKinds are the kinds of patched resources, by that of the bare ones.
var patchedKinds = map[Kind]Kind{
	Cluster: ClusterPatched, ClusterInline: ClusterInlinePatched, ClusterInbound: ClusterInboundPatched,
	Listener: ListenerPatched, ListenerInbound: ListenerInboundPatched, Route: RoutePatched, VirtualHost: VirtualHostPatched,
}

// bareKinds are the reverse.
var bareKinds = func() map[Kind]Kind {
	out := map[Kind]Kind{}
	for bare, k := range patchedKinds {
		out[k] = bare
	}
	return out
}()

// bareScope returns a scope without its EnvoyFilters.
func bareScope(s mesh.ScopeID) mesh.ScopeID {
	v := s.Value()
	if v.Patches == "" {
		return s
	}
	v.Patches = ""
	return v.ID()
}

// bareWorkload returns a workload without its EnvoyFilters.
func bareWorkload(w mesh.WorkloadID) mesh.WorkloadID {
	v := w.Value()
	if v.Patches == "" {
		return w
	}
	v.Patches = ""
	return v.ID()
}

// patches says which EnvoyFilters a layer has; empty for none.
func (l Layer) patches() string {
	if l.Kind == WorkloadLayer {
		return l.Workload.Value().Patches
	}
	return l.Scope.Value().Patches
}

// bare returns the layer of the bare scope or workload.
func (l Layer) bare() Layer {
	if l.Kind == WorkloadLayer {
		l.Workload = bareWorkload(l.Workload)
	} else {
		l.Scope = bareScope(l.Scope)
	}
	return l
}

// context is the one of a layer's resources.
func (l Layer) context() patch.Context {
	switch {
	case l.Kind == WorkloadLayer:
		return patch.Inbound
	case l.Scope.Value().Role == mesh.Router:
		return patch.Gateway
	}
	return patch.Outbound
}

// Bare returns the key of the ListenerInbound that a ListenerInboundPatched is made of, and any other key as it is.
func (k Key) Bare() Key {
	if k.Kind == ListenerInboundPatched {
		k.Kind, k.Workload = ListenerInbound, bareWorkload(k.Workload)
	}
	return k
}

// parsePatches returns the patches of an EnvoyFilter or an extension that can be applied.
func (c *Compiler) parsePatches(r *incr.Reader, key string) (out []*patch.Patch) {
	if of, ok := model.ExtensionObject(key); ok {
		if e, ok := c.model.Extension(r, key); ok {
			out, _ = patch.ParseExtension(of, e.Spec)
		}
		return out
	}
	f, ok := c.model.EnvoyFilter(r, key)
	if !ok {
		return nil
	}
	for i, spec := range f.Spec.GetConfigPatches() {
		if p, _ := patch.Parse(i, spec); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// sourced is a patch and the EnvoyFilter or extension that has it.
type sourced struct {
	Filter string
	Patch  *patch.Patch
}

// layerPatches returns the patches of a layer in their order: those of extensions come first.
func (c *Compiler) layerPatches(r *incr.Reader, l Layer) (out []sourced) {
	for _, key := range c.extensionsOf(r, l.patches()) {
		for _, p := range c.inner.parsedPatches.Of(r, key) {
			if p.In(l.context()) {
				out = append(out, sourced{key, c.listening(r, l, p)})
			}
		}
	}
	for _, f := range c.filtersOf(r, l.patches()) {
		for _, p := range c.inner.parsedPatches.Of(r, f.Key) {
			if f.Has(p.Index) && p.In(l.context()) {
				out = append(out, sourced{f.Key, c.listening(r, l, p)})
			}
		}
	}
	return out
}

// extensionsOf returns the keys of the extensions that a text names and that exist, in the order in which requests pass them.
func (c *Compiler) extensionsOf(r *incr.Reader, patchings string) (out []string) {
	of := map[string]*model.Extension{}
	for _, p := range model.Patchings(patchings) {
		if _, ok := model.ExtensionObject(p.Key); !ok {
			continue
		}
		if e, ok := c.model.Extension(r, p.Key); ok {
			out, of[p.Key] = append(out, p.Key), e
		}
	}
	slices.SortFunc(out, func(a, b string) int { return c.model.CompareExtensions(r, of[a], of[b]) })
	return out
}

// listening returns a patch with the ports at which a router listens for the one in its match. [control-plane 1.9.26]
func (c *Compiler) listening(r *incr.Reader, l Layer, p *patch.Patch) *patch.Patch {
	if l.context() != patch.Gateway || p.ServerPort() == 0 && !p.Place.OfPorts() {
		return p
	}
	with := *p
	listen := map[uint32][]uint32{} // by the ports of servers
	for _, port := range c.model.Router(r, bareScope(l.Scope)).Ports {
		if port.Kind == mesh.ServesHTTP && slices.ContainsFunc(port.Servers, func(s model.Server) bool { return s.Port == p.ServerPort() }) {
			with.Listening = append(with.Listening, port.Listen)
		}
		for _, s := range port.Servers {
			listen[s.Port] = append(listen[s.Port], port.Listen)
		}
	}
	with.Place = p.Place.Listening(listen)
	return &with
}

// touches reports whether a patch may change a resource with a key, or adds it.
func touches(p *patch.Patch, k Key, in patch.Context) bool {
	switch k.Kind {
	case Cluster, ClusterInline, ClusterInbound, ClusterPatched, ClusterInlinePatched, ClusterInboundPatched:
		return p.TouchesCluster(k.Name, in)
	case Listener, ListenerInbound, ListenerPatched, ListenerInboundPatched:
		return p.TouchesListener(k.Name, in)
	case Route, RoutePatched:
		return p.TouchesRoutes(k.Name, in)
	case VirtualHost, VirtualHostPatched:
		routes, host, _ := strings.Cut(k.Name, "/")
		return p.TouchesVirtualHost(routes, host, in)
	case ExtensionPatched, ExtensionInboundPatched:
		return p.TouchesExtension(k.Name, in)
	}
	return false
}

// bareKeys lists the resources of a bare layer, also those that it has from its base, in order.
func (c *Compiler) bareKeys(r *incr.Reader, l Layer) []Key {
	switch base, derived := c.model.Base(l.Scope); {
	case l.Kind == WorkloadLayer:
		return sorted(c.inboundNames(r, l))
	case l.Scope.Value().Role == mesh.Router:
		return l.only(c.inner.routerNames.Of(r, l.Scope))
	case derived:
		d := c.inner.derived.Of(r, l.Scope)
		type id struct{ typ, name string }
		not := map[id]bool{}
		for _, k := range slices.Concat(d.own, d.hidden) {
			not[id{k.Kind.TypeURL(), k.Name}] = true
		}
		keys := slices.Clone(d.own)
		for _, k := range c.inner.scopeNames.Of(r, base) {
			if !not[id{k.Kind.TypeURL(), k.Name}] {
				keys = append(keys, k)
			}
		}
		return l.only(keys)
	}
	return l.only(c.inner.scopeNames.Of(r, l.Scope))
}

// patchedNames lists the resources of a patched layer that may differ from those of its bare layer.
func (c *Compiler) patchedNames(r *incr.Reader, l Layer) Contents {
	bare := l.bare()
	patches := c.inner.layerPatches.Of(r, l)
	var out []Key
	for _, k := range c.inner.bareKeys.Of(r, bare) {
		if slices.ContainsFunc(patches, func(p sourced) bool { return touches(p.Patch, k, l.context()) }) {
			out = append(out, l.patched(k))
		}
	}
	for _, p := range patches {
		if k, ok := l.added(p.Patch); ok && !slices.ContainsFunc(out, func(o Key) bool { return o.Kind.TypeURL() == k.Kind.TypeURL() && o.Name == k.Name }) {
			out = append(out, k)
		}
	}
	return Contents{Keys: sorted(out), Derived: true, Base: bare}
}

// patched returns the key of a patched resource in a layer, given that of the bare one.
func (l Layer) patched(k Key) Key {
	k.Kind, k.Scope, k.Location, k.Workload = patchedKinds[k.Kind], l.Scope, l.Location, l.Workload
	return k
}

// added returns the key of the resource that a patch adds to a layer; false if it adds none. What is for all contexts is
// added once, to the scope's layer; an extension configuration of a sidecar to the workload's, which is the cheaper one to patch.
func (l Layer) added(p *patch.Patch) (Key, bool) {
	cluster, listener, extension := ClusterPatched, ListenerPatched, ExtensionPatched
	switch config, ok := p.Value.(*corev3.TypedExtensionConfig); {
	case ok && l.Kind == LocationLayer:
		return Key{}, false
	case ok:
		if l.Kind == WorkloadLayer {
			extension = ExtensionInboundPatched
		}
		return Key{Kind: extension, Name: config.Name, Scope: l.Scope, Workload: l.Workload}, true
	case p.Operation != networking.EnvoyFilter_Patch_ADD, l.Kind == LocationLayer:
		return Key{}, false
	case l.Kind == WorkloadLayer && p.Match.GetContext() != patch.Inbound:
		return Key{}, false
	case l.Kind == WorkloadLayer:
		cluster, listener = ClusterInboundPatched, ListenerInboundPatched
	}
	k := Key{Scope: l.Scope, Workload: l.Workload}
	switch v := p.Value.(type) {
	case *clusterv3.Cluster:
		k.Kind, k.Name = cluster, v.Name
	case *listenerv3.Listener:
		k.Kind, k.Name = listener, v.Name
	default:
		return Key{}, false
	}
	return k, true
}

// bareKey returns the key of the bare resource that a patched one is made of; one without a name if there is none, because a
// patch adds it.
func (c *Compiler) bareKey(r *incr.Reader, k Key) Key {
	kind, ok := bareKinds[k.Kind]
	if !ok {
		return Key{} // an extension configuration
	}
	keys := c.inner.bareKeys.Of(r, k.Layer().bare()) // in order, of which there may be very many
	i, found := slices.BinarySearchFunc(keys, k.Name, func(e Key, name string) int {
		return cmp.Or(cmp.Compare(e.Kind, kind), strings.Compare(e.Name, name))
	})
	if !found {
		return Key{}
	}
	return keys[i]
}

// patchesFor returns the patches that may change a resource, in their order.
func (c *Compiler) patchesFor(r *incr.Reader, k Key) (out []sourced) {
	l := k.Layer()
	for _, p := range c.inner.layerPatches.Of(r, l) {
		if touches(p.Patch, k, l.context()) {
			out = append(out, p)
		}
	}
	return out
}

// PatchResult says what became of a patch of an EnvoyFilter at one resource.
type PatchResult struct {
	// Filter is "namespace/name" of the EnvoyFilter, and Index the patch's in configPatches; for an extension that has a filter and its
	// configuration, 0 and 1, it is what model.ExtensionObject parses.
	Filter string
	Index  int
	patch.Result
}

// patchedResource is a patched resource, encoded, nil for none, and what became of the patches.
type patchedResource struct {
	Body    []byte
	Results []PatchResult
}

// patchResource applies patches to one resource. Of a proxy that must accept no connection, because of a policy that cannot be
// read, listeners are not patched.
func (c *Compiler) patchResource(r *incr.Reader, k Key) patchedResource {
	l := k.Layer()
	found := c.inner.patchesFor.Of(r, k)
	patches := make([]*patch.Patch, len(found))
	for i, p := range found {
		// Records what the resource is made of, which the index does not say.
		if _, ok := model.ExtensionObject(p.Filter); ok {
			c.model.Extension(r, p.Filter)
		} else {
			c.model.EnvoyFilter(r, p.Filter)
		}
		patches[i] = p.Patch
	}
	var body []byte
	if bare := c.inner.bareKey.Of(r, k); bare.Name != "" {
		body = c.resources[bare.Kind].Of(r, bare).Encoded()
		if body == nil {
			return patchedResource{}
		}
		if bare.Kind == ListenerInbound && c.inner.inbound.Of(r, bare.withoutServices()).Modes.Closed {
			return patchedResource{Body: body}
		}
	}
	if body == nil && (k.Kind == RoutePatched || k.Kind == VirtualHostPatched) {
		return patchedResource{} // the Run that removes the bare one also drops this value
	}
	if l.context() == patch.Gateway && l.Scope.Value().Closed && k.Kind == ListenerPatched {
		return patchedResource{Body: body}
	}
	out, results := patchMessage(k, body, l.context(), patches)
	p := patchedResource{Body: out}
	for i, res := range results {
		p.Results = append(p.Results, PatchResult{Filter: found[i].Filter, Index: found[i].Patch.Index, Result: res})
	}
	return p
}

// patchMessage applies patches to an encoded resource, nil for none, of the kind of a key.
func patchMessage(k Key, body []byte, in patch.Context, patches []*patch.Patch) ([]byte, []patch.Result) {
	switch k.Kind {
	case ClusterPatched, ClusterInlinePatched, ClusterInboundPatched:
		m, results := patch.Cluster(unpack[*clusterv3.Cluster](body), k.Name, in, patches)
		return encoded(m, m == nil), results
	case ListenerPatched, ListenerInboundPatched:
		m, results := patch.Listener(unpack[*listenerv3.Listener](body), k.Name, in, patches)
		return encoded(m, m == nil), results
	case RoutePatched:
		m, results := patch.RouteConfiguration(unpack[*routev3.RouteConfiguration](body), in, patches)
		return encoded(m, m == nil), results
	case VirtualHostPatched:
		routes, _, _ := strings.Cut(k.Name, "/")
		m, results := patch.VirtualHost(unpack[*routev3.VirtualHost](body), routes, in, patches)
		return encoded(m, m == nil), results
	case ExtensionPatched, ExtensionInboundPatched:
		m, results := patch.Extension(k.Name, in, patches)
		return encoded(m, m == nil), results
	}
	panic("compile: no patches for " + k.Name) // patchedKinds has the kinds
}

func encoded(m proto.Message, none bool) []byte {
	if none {
		return nil
	}
	return marshal.MustEncodedAny(m)
}

// unpack decodes a resource, which this package has encoded; nil is none.
func unpack[M proto.Message](body []byte) (m M) {
	if body == nil {
		return m
	}
	var a anypb.Any
	if err := proto.Unmarshal(body, &a); err != nil {
		panic("compile: a resource of its own cannot be decoded: " + err.Error())
	}
	out, err := a.UnmarshalNew()
	if err != nil {
		panic("compile: a resource of its own cannot be decoded: " + err.Error())
	}
	return out.(M)
}

// patchedBody returns a patched resource.
func (c *Compiler) patchedBody(r *incr.Reader, k Key) []byte { return c.inner.patched.Of(r, k).Body }

// PatchResults returns what has become of the patches at a resource of a patched kind, nil if it is of another kind or not
// wanted. It must not be changed.
func (c *Compiler) PatchResults(k Key) []PatchResult {
	p, _ := c.inner.patched.Value(k)
	return p.Results
}

// LayerPatch is a patch of an EnvoyFilter that a layer has.
type LayerPatch struct {
	// Filter and Index are those of a PatchResult.
	Filter string
	Index  int
	// Extension is the name of the extension configuration that the patch adds; empty if it adds none.
	Extension string
	// Discovers are those that its filters name.
	Discovers []patch.Discovery
}

// LayerPatches returns which patches a layer has, in their order, nil if it is not wanted or has none.
func (c *Compiler) LayerPatches(l Layer) (out []LayerPatch) {
	list, _ := c.inner.layerPatches.Value(l)
	for _, p := range list {
		e, _ := p.Patch.Value.(*corev3.TypedExtensionConfig)
		out = append(out, LayerPatch{Filter: p.Filter, Index: p.Patch.Index, Extension: e.GetName(), Discovers: p.Patch.Discovers})
	}
	return out
}
