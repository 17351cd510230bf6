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

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
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

// guarded allows requests from this host, and others only with a bearer token of a service account of
// the control plane's namespace, so that workloads cannot read the configuration of the mesh.
// [control-plane 1.16.4]
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
			http.Error(w, "send the request from the host of pilot-discovery, or with a bearer token of namespace "+s.opts.Names.Namespace+": "+err.Error(), http.StatusUnauthorized)
		case id.Namespace != s.opts.Names.Namespace:
			http.Error(w, fmt.Sprintf("%s may not read this; identities of namespace %s may", id, s.opts.Names.Namespace), http.StatusForbidden)
		default:
			h(w, r)
		}
	}
}

// sameHost reports whether a request comes from this host: from loopback, or from the address that it
// was sent to.
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
	for _, line := range s.readyNotes() {
		fmt.Fprintln(w, line)
	}
}

// readyNotes returns the further lines of the response to a readiness probe.
func (s *Server) readyNotes() []string {
	var out []string
	n := s.loop.gate.notes.Load()
	for _, text := range []string{n.restoredText(time.Now()), n.endsText(), n.brokenText()} {
		if text != "" {
			out = append(out, text)
		}
	}
	if s.loop.kept.stats.failing.Load() {
		out = append(out, "configuration cannot be saved; changes would be unknown after a restart")
	}
	return out
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.opts.Version) }

// syncEntry is one proxy in /debug/syncz. The fields that Istio has, too, have its names.
type syncEntry struct {
	Proxy        string              `json:"proxy"`
	ProxyType    string              `json:"proxy_type"`
	ProxyVersion string              `json:"proxy_version,omitempty"`
	ClusterID    string              `json:"cluster_id,omitempty"`
	Identity     string              `json:"identity,omitempty"`
	ConnectedAt  string              `json:"connected_at"`
	Class        string              `json:"class,omitempty"`
	Generation   uint64              `json:"generation"`
	Applied      uint64              `json:"applied"`
	Types        map[string]syncType `json:"types"`
	// NotApplied are the fields of the proxy's ProxyConfig that it does not get.
	NotApplied []string `json:"proxy_config_not_applied,omitempty"`
	// nonces are Istio's fields, by name: "cluster_sent", "cluster_acked" and so on for each
	// type. Those that are empty are left out.
	nonces map[string]string
}

// MarshalJSON adds the nonces to the other fields.
func (e syncEntry) MarshalJSON() ([]byte, error) {
	type plain syncEntry
	text, err := json.Marshal(plain(e))
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	for name, nonce := range e.nonces {
		if nonce == "" {
			continue
		}
		if all[name], err = json.Marshal(nonce); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

// syncType is one resource type of one proxy. There is one for each type that the proxy has subscribed
// to or of which its view has resources.
type syncType struct {
	Resources int    `json:"resources"`
	Asked     bool   `json:"asked"`
	Sent      string `json:"sent"`
	Acked     string `json:"acked"`
	// Stuck is when a response was sent that has not been acknowledged for 10 s or more.
	Stuck string `json:"stuck,omitempty"`
	// Nack is the proxy's error message about a resource that it has rejected.
	Nack string `json:"nack,omitempty"`
}

func (s *Server) syncz(w http.ResponseWriter, _ *http.Request) {
	views, ok := s.loop.viewsSnapshot()
	if !ok {
		views = &viewsSnapshot{}
	}
	out := []syncEntry{}
	for _, c := range s.xds.Connections() {
		e := syncEntry{
			Proxy: c.Node.ID, ProxyType: string(c.Node.Role), ProxyVersion: strings.TrimPrefix(c.Node.UserAgent, "envoy/"),
			ClusterID: c.Node.Metadata.ClusterID, ConnectedAt: c.Since.UTC().Format(time.RFC3339),
			Applied: c.Applied, Types: map[string]syncType{}, NotApplied: c.Node.Metadata.NotApplied.Names(), nonces: map[string]string{},
		}
		if p, ok := views.proxies[c.ID]; ok {
			e.Class = className(p.class)
			v := p.view
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
			e.nonces[t.StatusName()+"_sent"], e.nonces[t.StatusName()+"_acked"] = st.SentNonce, st.AckedNonce
		}
		out = append(out, e)
	}
	writeJSON(w, out)
}

// configDump writes the resources of a proxy's view, in the format of Envoy's config_dump.
func (s *Server) configDump(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("proxyID")
	if id == "" {
		http.Error(w, "missing proxyID: want /debug/config_dump?proxyID=POD.NAMESPACE (see /debug/syncz)", http.StatusBadRequest)
		return
	}
	var view *xds.View
	if views, ok := s.loop.viewsSnapshot(); ok {
		for _, c := range s.xds.Connections() {
			if p, ok := views.proxies[c.ID]; ok && (c.Node.ID == id || c.ID == id) {
				view = p.view
			}
		}
	}
	if view == nil {
		http.Error(w, fmt.Sprintf("proxy %s is not connected here; /debug/syncz lists those that are", printable.Quote(id, 300)), http.StatusNotFound)
		return
	}
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(xds.Dump(view))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // the client may have closed the connection
}

type objectEntry struct {
	Object   string `json:"object"`
	Origin   string `json:"origin"`
	Severity string `json:"severity"`
	Field    string `json:"field,omitempty"`
	Text     string `json:"text"`
	// Meanwhile is what is in force instead; empty if the object is applied.
	Meanwhile string `json:"meanwhile,omitempty"`
}

// objectz writes all problems of the configuration, and how many objects of each file are ignored.
func (s *Server) objectz(w http.ResponseWriter, _ *http.Request) {
	out := []objectEntry{}
	snap, _ := s.loop.problemsSnapshot()
	if snap.notServed != "" {
		out = append(out, objectEntry{Severity: object.Error.String(), Text: "no proxy is served: " + snap.notServed})
	}
	for _, text := range snap.saved {
		out = append(out, objectEntry{Origin: s.loop.kept.path, Severity: object.Warning.String(), Text: text})
	}
	for _, p := range snap.problems {
		e := objectEntry{Origin: p.Origin.String(), Severity: p.Severity.String(), Field: p.Field, Text: p.Text, Meanwhile: p.meanwhile}
		if p.Key.Kind != "" {
			e.Object = p.Key.String()
		}
		out = append(out, e)
	}
	writeJSON(w, out)
}

// classz writes the classes with their proxies, and the counters of the rules.
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
	if views, ok := s.loop.viewsSnapshot(); ok {
		out.Generation = views.generation
		for c, st := range views.classes {
			out.Classes = append(out.Classes, class{Class: className(c), Proxies: st.proxies, Resources: st.resources})
		}
	}
	if n, ok := s.loop.numbers(); ok {
		out.Rules = n.rules
	}
	sort.Slice(out.Classes, func(i, j int) bool { return out.Classes[i].Class < out.Classes[j].Class })
	writeJSON(w, out)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client may have closed the connection
}
