package discovery

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The pages of this file show policies, telemetry and what a proxy's Sidecar selects, with the fields of Istio's.
// [control-plane 1.16.4]

// namespacedEntry is an object in /debug/authorizationz and /debug/telemetryz.
type namespacedEntry struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Spec        json.RawMessage   `json:"spec"`
}

// byNamespace returns the objects of a kind that are in force and that a function accepts, by namespace, the oldest first, and the root
// namespace; false if the loop does not answer.
func (l *loop) byNamespace(kind object.Kind, accept func(object.Key) bool) (out map[string][]namespacedEntry, root string, ok bool, err error) {
	var objects []*object.Object
	if !l.ask(func() { objects, root = l.store.Good(), l.store.CurrentMesh().GetRootNamespace() }) {
		return nil, "", false, nil
	}
	objects = slices.DeleteFunc(objects, func(o *object.Object) bool { return o.Kind != kind || !accept(o.Key) })
	slices.SortFunc(objects, func(a, b *object.Object) int {
		return cmp.Or(a.Meta.Created.Compare(b.Meta.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	out = map[string][]namespacedEntry{}
	for _, o := range objects {
		spec, err := protojson.Marshal(o.Spec.(proto.Message))
		if err != nil {
			return nil, "", true, err
		}
		out[o.Namespace] = append(out[o.Namespace], namespacedEntry{o.Name, o.Namespace, o.Meta.Annotations, spec})
	}
	return out, root, true, nil
}

// writeByNamespace writes the objects of a kind; name and list are Istio's names of both.
func (s *Server) writeByNamespace(w http.ResponseWriter, kind object.Kind, name, list string, accept func(object.Key) bool) {
	all, root, ok, err := s.loop.byNamespace(kind, accept)
	switch {
	case !ok:
		unanswered(w)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		writeJSON(w, map[string]any{name: map[string]any{list: all, "root_namespace": root}})
	}
}

// authorizationz lists the AuthorizationPolicies that are in force.
func (s *Server) authorizationz(w http.ResponseWriter, _ *http.Request) {
	s.writeByNamespace(w, object.AuthorizationPolicy, "authorization_policies", "namespace_to_policies", func(object.Key) bool { return true })
}

// telemetryz lists the Telemetry objects that are in force, or those of them that change what one proxy logs, counts or traces.
func (s *Server) telemetryz(w http.ResponseWriter, r *http.Request) {
	accept := func(object.Key) bool { return true }
	if r.URL.Query().Get("proxyID") != "" {
		class, ok := s.classOf(w, r)
		if !ok {
			return
		}
		keys := strings.Fields(class.Scope.Telemetry + " " + class.Workload.Telemetry)
		accept = func(k object.Key) bool { return slices.Contains(keys, k.Namespace+"/"+k.Name) }
	}
	s.writeByNamespace(w, object.Telemetry, "telemetries", "namespace_to_telemetries", accept)
}

// classOf returns the class of the proxy that the query names. If there is none it writes why.
func (s *Server) classOf(w http.ResponseWriter, r *http.Request) (mesh.Class, bool) {
	id := r.URL.Query().Get("proxyID")
	if id == "" {
		noProxyID(w)
		return mesh.Class{}, false
	}
	if c, ok := s.xds.Find(id); ok {
		if views, ok := s.loop.viewsSnapshot(); ok {
			if p, ok := views.proxies[c.ID]; ok {
				return p.class, true
			}
		}
	}
	notConnected(w, id)
	return mesh.Class{}, false
}

// outlook is what proxies of a scope see.
type outlook struct {
	services []*model.Service
	// mode is what becomes of connections to hosts that the mesh does not know.
	mode meshv1.MeshConfig_OutboundTrafficPolicy_Mode
}

// outlookRule is the rule that lists what proxies of a scope see; it has a value only while a page is made.
func outlookRule(g *incr.Graph, m *model.Model) *incr.Rule[mesh.ScopeID, outlook] {
	return incr.Derive(g, model.LevelCompile, "outlook", func(r *incr.Reader, s mesh.ScopeID) outlook {
		out := outlook{mode: meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY}
		switch {
		case !m.AllowAny(r, s):
			out.mode = meshv1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
		case m.DynamicDNS(r, s):
			out.mode = meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS
		}
		base, derived := m.Base(s)
		if !derived {
			base = s
		}
		hosts := slices.Clone(m.Difference(r, s).Services)
		for _, ref := range m.Visible(r, base) {
			hosts = append(hosts, ref.Host)
		}
		slices.Sort(hosts)
		for _, host := range slices.Compact(hosts) {
			if svc := m.Service(r, s, host); svc != nil {
				out.services = append(out.services, svc)
			}
		}
		return out
	})
}

// outlookOf returns what proxies of a scope see, and the Sidecar that decides about it, nil if none does; false if the loop does not answer.
func (l *loop) outlookOf(s mesh.Scope) (out outlook, sidecar *object.Object, ok bool) {
	ok = l.ask(func() {
		out = l.outlook.Want(s.ID())
		l.outlook.Unwant(s.ID())
		l.graph.Run() // drop it
		namespace, name, _ := strings.Cut(s.Sidecar, "/")
		if o, found := l.store.Get(object.Key{Kind: object.Sidecar, Namespace: namespace, Name: name}); found {
			sidecar = &o
		}
	})
	return out, sidecar, ok
}

// sidecarEntry is the answer of /debug/sidecarz.
type sidecarEntry struct {
	Name                  string            `json:"name"`
	Namespace             string            `json:"namespace"`
	OutboundTrafficPolicy map[string]string `json:"outboundTrafficPolicy"`
	Services              []serviceEntry    `json:"services"`
	// Sidecar is the spec of the Sidecar that selects the proxy; null if none does.
	Sidecar json.RawMessage `json:"sidecar"`
}

// defaultSidecar is Istio's name of what proxies have that no Sidecar selects.
const defaultSidecar = "default-sidecar"

// sidecarz writes what a proxy sees of the mesh, and the Sidecar that decides about it.
func (s *Server) sidecarz(w http.ResponseWriter, r *http.Request) {
	class, ok := s.classOf(w, r)
	if !ok {
		return
	}
	sees, sidecar, ok := s.loop.outlookOf(class.Scope)
	if !ok {
		unanswered(w)
		return
	}
	out := sidecarEntry{
		Name: defaultSidecar, Namespace: class.Scope.Namespace, Services: []serviceEntry{},
		OutboundTrafficPolicy: map[string]string{"mode": sees.mode.String()},
	}
	if sidecar != nil {
		spec, err := protojson.Marshal(sidecar.Spec.(*networking.Sidecar))
		if err != nil {
			http.Error(w, sidecar.Key.String()+": "+err.Error(), http.StatusInternalServerError)
			return
		}
		out.Name, out.Namespace, out.Sidecar = sidecar.Name, sidecar.Namespace, spec
	}
	for _, svc := range sees.services {
		out.Services = append(out.Services, serviceOf(svc, s.ownCluster()))
	}
	writeJSON(w, out)
}
