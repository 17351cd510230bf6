package discovery

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sort"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
)

func (s *Server) debugMux() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /ready", s.ready)
	m.HandleFunc("GET /version", s.version)
	m.HandleFunc("GET /debug/syncz", s.guarded(s.syncz))
	m.HandleFunc("GET /debug/config_dump", s.guarded(s.configDump))
	m.HandleFunc("GET /debug/objectz", s.guarded(s.objectz))
	m.HandleFunc("GET /debug/classz", s.guarded(s.classz))
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "pilot-discovery\n\n/ready\n/version\n/debug/syncz\n/debug/config_dump?proxyID=POD.NAMESPACE\n/debug/objectz\n/debug/classz\n")
	})
	return m
}

// guarded lets callers on this host through, and others only with the bearer token of a
// service account of the control plane's namespace: what the mesh is made of is not for
// every workload to read. [control-plane 1.16.4]
func (s *Server) guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.opts.HTTP.OpenDebug || sameHost(r) {
			h(w, r)
			return
		}
		ctx := metadata.NewIncomingContext(r.Context(), metadata.Pairs("authorization", r.Header.Get("Authorization")))
		id, err := s.auth.Authenticate(ctx)
		switch {
		case err != nil:
			http.Error(w, "ask from the host that runs pilot-discovery, or send a bearer token of namespace "+s.opts.Names.Namespace+": "+err.Error(), http.StatusUnauthorized)
		case id.Namespace != s.opts.Names.Namespace:
			http.Error(w, fmt.Sprintf("%s may not read this; identities of namespace %s may", id, s.opts.Names.Namespace), http.StatusForbidden)
		default:
			h(w, r)
		}
	}
}

// sameHost says whether a request comes from this host: from loopback, or from the very
// address that it came to.
func sameHost(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	if from.Addr().Unmap().IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	to, err := netip.ParseAddrPort(local.String())
	return err == nil && to.Addr().Unmap() == from.Addr().Unmap()
}

func (s *Server) monitoringMux() http.Handler {
	m := http.NewServeMux()
	m.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	m.HandleFunc("GET /version", s.version)
	return m
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if !s.loop.gate.open.Load() {
		http.Error(w, "not ready: "+*s.loop.gate.why.Load(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
	for _, line := range s.remarks() {
		fmt.Fprintln(w, line)
	}
}

// remarks are what somebody who asks for readiness ought to know besides.
func (s *Server) remarks() []string {
	var out []string
	n := s.loop.gate.notes.Load()
	for _, text := range []string{n.restoredText(time.Now()), n.endsText(), n.brokenText()} {
		if text != "" {
			out = append(out, text)
		}
	}
	if s.loop.kept.stats.failing.Load() {
		out = append(out, "configuration cannot be saved; a restart would not remember what changed since")
	}
	return out
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.opts.Version) }

// syncEntry is one proxy in /debug/syncz: Istio's field names, and what only we know.
type syncEntry struct {
	Proxy        string `json:"proxy"`
	ProxyType    string `json:"proxy_type"`
	ProxyVersion string `json:"proxy_version,omitempty"`
	ClusterID    string `json:"cluster_id,omitempty"`
	Identity     string `json:"identity,omitempty"`
	ConnectedAt  string `json:"connected_at"`
	Class        string `json:"class,omitempty"`
	Generation   uint64 `json:"generation"`
	Applied      uint64 `json:"applied"`
	acknowledged
	Types map[string]syncType `json:"types"`
}

type acknowledged struct {
	ClusterSent   string `json:"cluster_sent,omitempty"`
	ClusterAcked  string `json:"cluster_acked,omitempty"`
	ListenerSent  string `json:"listener_sent,omitempty"`
	ListenerAcked string `json:"listener_acked,omitempty"`
	RouteSent     string `json:"route_sent,omitempty"`
	RouteAcked    string `json:"route_acked,omitempty"`
	EndpointSent  string `json:"endpoint_sent,omitempty"`
	EndpointAcked string `json:"endpoint_acked,omitempty"`
}

// syncType is one type of resources on one proxy. There is an entry for each type that the
// proxy has asked for or of which its view has resources.
type syncType struct {
	Resources int    `json:"resources"`
	Asked     bool   `json:"asked"`
	Sent      string `json:"sent"`
	Acked     string `json:"acked"`
	// Stuck is when the response was sent that has gone unanswered for 10 s or more.
	Stuck string `json:"stuck,omitempty"`
	// Nack is why the proxy refuses something that it was sent.
	Nack string `json:"nack,omitempty"`
}

func (s *Server) syncz(w http.ResponseWriter, _ *http.Request) {
	views, classes := map[string]*xds.View{}, map[string]string{}
	s.loop.ask(func() {
		for id, m := range s.loop.views.members {
			if v, _ := m.cell.Load(); v != nil {
				views[id] = v
			}
			classes[id] = className(m.class)
		}
	})
	out := []syncEntry{}
	for _, c := range s.xds.Connections() {
		e := syncEntry{
			Proxy: c.Node.ID, ProxyType: string(c.Node.Role), ProxyVersion: strings.TrimPrefix(c.Node.UserAgent, "envoy/"),
			ClusterID: c.Node.Metadata.ClusterID, ConnectedAt: c.Since.UTC().Format(time.RFC3339),
			Applied: c.Applied, Class: classes[c.ID], Types: map[string]syncType{},
		}
		if v := views[c.ID]; v != nil {
			e.Generation = v.Generation
			for _, t := range xds.Types() {
				if v.Of(t).Len() > 0 {
					e.Types[t.String()] = syncType{}
				}
			}
		}
		if c.Identity.Namespace != "" {
			e.Identity = c.Identity.SPIFFE()
		}
		for t, st := range c.Types {
			row := syncType{Resources: st.Resources, Asked: true, Sent: st.SentNonce, Acked: st.AckedNonce, Nack: st.Message}
			if !st.Stuck.IsZero() {
				row.Stuck = st.Stuck.UTC().Format(time.RFC3339)
			}
			e.Types[t.String()] = row
			switch t {
			case xds.CDS:
				e.ClusterSent, e.ClusterAcked = st.SentNonce, st.AckedNonce
			case xds.LDS:
				e.ListenerSent, e.ListenerAcked = st.SentNonce, st.AckedNonce
			case xds.RDS:
				e.RouteSent, e.RouteAcked = st.SentNonce, st.AckedNonce
			case xds.EDS:
				e.EndpointSent, e.EndpointAcked = st.SentNonce, st.AckedNonce
			}
		}
		out = append(out, e)
	}
	writeJSON(w, out)
}

// configDump shows what a proxy was meant to have, in the form of Envoy's own dump.
func (s *Server) configDump(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("proxyID")
	if id == "" {
		http.Error(w, "say which proxy: /debug/config_dump?proxyID=POD.NAMESPACE (see /debug/syncz)", http.StatusBadRequest)
		return
	}
	var view *xds.View
	for _, c := range s.xds.Connections() {
		if c.Node.ID == id || c.ID == id {
			s.loop.ask(func() {
				if m := s.loop.views.members[c.ID]; m != nil {
					view, _ = m.cell.Load()
				}
			})
		}
	}
	if view == nil {
		http.Error(w, fmt.Sprintf("proxy %q is not connected here; /debug/syncz lists those that are", id), http.StatusNotFound)
		return
	}
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(dumpOf(view))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // a reader that went away needs no answer
}

func dumpOf(v *xds.View) *adminv3.ConfigDump {
	clusters, listeners := &adminv3.ClustersConfigDump{}, &adminv3.ListenersConfigDump{}
	routes, endpoints := &adminv3.RoutesConfigDump{}, &adminv3.EndpointsConfigDump{}
	for r := range v.Of(xds.CDS).All() {
		clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: r.Version, Cluster: body(r)})
	}
	for r := range v.Of(xds.LDS).All() {
		listeners.DynamicListeners = append(listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: r.Name, ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{VersionInfo: r.Version, Listener: body(r)},
		})
	}
	for r := range v.Of(xds.RDS).All() {
		routes.DynamicRouteConfigs = append(routes.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: r.Version, RouteConfig: body(r)})
	}
	for r := range v.Of(xds.EDS).All() {
		endpoints.DynamicEndpointConfigs = append(endpoints.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: r.Version, EndpointConfig: body(r)})
	}
	out := &adminv3.ConfigDump{}
	for _, m := range []proto.Message{clusters, listeners, routes, endpoints} {
		if a, err := anypb.New(m); err == nil {
			out.Configs = append(out.Configs, a)
		}
	}
	return out
}

func body(r *xds.Resource) *anypb.Any {
	a := &anypb.Any{}
	if proto.Unmarshal(r.Body, a) != nil {
		return nil
	}
	return a
}

type objectEntry struct {
	Object   string `json:"object"`
	Origin   string `json:"origin"`
	Severity string `json:"severity"`
	Field    string `json:"field,omitempty"`
	Text     string `json:"text"`
	// Meanwhile says what is in force instead; empty where the object is taken.
	Meanwhile string `json:"meanwhile,omitempty"`
}

// objectz lists what is wrong or worth a warning with the configuration, object by object,
// and how much of each file is left out because it belongs to others.
func (s *Server) objectz(w http.ResponseWriter, _ *http.Request) {
	out := []objectEntry{}
	s.loop.ask(func() {
		places := s.loop.placesInForce()
		if !s.loop.gate.open.Load() {
			out = append(out, objectEntry{Severity: object.Error.String(), Text: "no proxy is served: " + *s.loop.gate.why.Load()})
		}
		n := s.loop.gate.notes.Load()
		for _, text := range []string{n.restoredText(time.Now()), n.endsText()} {
			if text != "" {
				out = append(out, objectEntry{Origin: s.loop.kept.path, Severity: object.Warning.String(), Text: text})
			}
		}
		for _, v := range s.loop.allProblems() {
			e := objectEntry{Origin: v.Origin.String(), Severity: v.Severity.String(), Field: v.Field, Text: v.Text}
			if v.Key.Kind != "" {
				e.Object = v.Key.String()
			}
			if v.Severity == object.Error {
				e.Meanwhile = s.loop.meanwhile(v, places)
			}
			out = append(out, e)
		}
	})
	writeJSON(w, out)
}

// classz says how proxies share configuration and what the rules have done.
func (s *Server) classz(w http.ResponseWriter, _ *http.Request) {
	type class struct {
		Class     string   `json:"class"`
		Proxies   []string `json:"proxies"`
		Resources int      `json:"resources"`
	}
	var out struct {
		Generation uint64  `json:"generation"`
		Classes    []class `json:"classes"`
		Rules      any     `json:"rules"`
	}
	s.loop.ask(func() {
		out.Generation, out.Rules = s.loop.views.generation, s.loop.graph.Stats()
		for c, st := range s.loop.views.classes {
			e := class{Class: className(c), Resources: len(st.keys)}
			for id := range st.members {
				e.Proxies = append(e.Proxies, id)
			}
			sort.Strings(e.Proxies)
			out.Classes = append(out.Classes, e)
		}
	})
	sort.Slice(out.Classes, func(i, j int) bool { return out.Classes[i].Class < out.Classes[j].Class })
	writeJSON(w, out)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // a reader that went away needs no answer
}
