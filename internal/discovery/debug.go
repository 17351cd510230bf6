package discovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/analyze"
	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/httpguard"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// page is one page below /debug.
type page struct {
	// path is what follows /debug/.
	path, help string
	serve      http.HandlerFunc
	// why says why the page of Istio's control plane is not available here; empty if it is.
	why string
	// local is set for pages that are not served over xDS.
	local bool
}

// pages are all pages below /debug, in alphabetical order. [control-plane 1.16.4]
func (s *Server) pages() []page {
	list := []page{
		{path: "adsz", help: "Connected proxies with their labels, localities and subscriptions (?proxyID=POD.NAMESPACE for one)", serve: s.adsz},
		{path: "applied", help: "How many of the proxies that an object concerns have applied it (?kind=KIND&namespace=NAMESPACE&name=NAME, or POST a file)", serve: s.applied},
		{path: "authorizationz", help: "AuthorizationPolicies in force, by namespace", serve: s.authorizationz},
		{path: "ca", help: "Roots of the mesh's CA, and how far a rotation is", serve: s.caStatus},
		{path: "classz", help: "Classes of proxies, and the counters of the rules", serve: s.classz},
		{path: "clusterz", help: "Clusters that objects are read from", serve: s.clusterz},
		{path: "config_dump", help: "Configuration of a proxy as Envoy dumps its own (?proxyID=POD.NAMESPACE, &types=cds,eds)", serve: s.configDump},
		{path: "configz", help: "Istio's objects that are in force", serve: s.configz},
		{path: "connections", help: "Connected proxies with their addresses", serve: s.connections},
		{path: "ecdsz", help: "Extension configurations of a proxy (?proxyID=POD.NAMESPACE)", serve: s.ecdsz},
		{path: "edsz", help: "Endpoints of a proxy (?proxyID=POD.NAMESPACE)", serve: s.edsz},
		{path: "endpointShardz", help: "Endpoints of all services", serve: s.endpointShardz},
		{path: "endpointz", help: "The same as endpointShardz", serve: s.endpointShardz},
		{path: "explain", help: "Who may do what, and which policy says so (?from=POD.NAMESPACE&to=SERVICE.NAMESPACE&port=80&method=GET&path=/, or POST the question as JSON)", serve: s.explain},
		{path: "factsz", help: "What pilotctl check asks: Pods without their proxy, addresses that no workload has, ends of certificates, ports", serve: s.facts},
		{path: "inject", help: "Templates of the injector that are in force, by name", serve: s.injectTemplates},
		{path: "instancesz", help: "Services of each connected proxy", serve: s.instancesz},
		{path: "list", help: "Names of the pages as JSON", serve: s.listPages},
		{path: "mesh", help: "Mesh configuration in force", serve: s.meshz},
		{path: "ndsz", help: "Names that the agent of a proxy resolves (?proxyID=POD.NAMESPACE)", serve: s.ndsz},
		{path: "networkz", help: "Gateways by which the networks of the mesh are reached", serve: s.networkz},
		{path: "objectz", help: "Problems of the configuration", serve: s.objectz},
		{path: "push_status", help: "What the configuration in force lacks, by metric", serve: s.pushStatus},
		{path: "registryz", help: "All services", serve: s.registryz},
		{path: "resourcesz", help: "Kinds of Istio's objects that are read", serve: s.resourcesz},
		{path: "secretz", help: "Secrets of a proxy by name, issuer and end, without keys (?proxyID=POD.NAMESPACE)", serve: s.secretz},
		{path: "sidecarz", help: "Services that a proxy sees, and the Sidecar that decides about it (?proxyID=POD.NAMESPACE)", serve: s.sidecarz},
		{path: "syncz", help: "What each connected proxy was sent and has acknowledged", serve: s.syncz},
		{path: "telemetryz", help: "Telemetry objects in force, by namespace (?proxyID=POD.NAMESPACE for those that change something at one proxy)", serve: s.telemetryz},
		{path: "why", help: "Objects that a resource of a proxy was made from (?proxyID=POD.NAMESPACE&type=cds&name=NAME)", serve: s.why},

		{path: "pprof/", help: "Index of the profiles", serve: pprof.Index, local: true},
		{path: "pprof/cmdline", help: "Command line", serve: pprof.Cmdline, local: true},
		{path: "pprof/profile", help: "CPU profile (?seconds=30)", serve: httpguard.Unlimited(pprof.Profile), local: true},
		{path: "pprof/symbol", help: "Names of program counters", serve: pprof.Symbol, local: true},
		{path: "pprof/trace", help: "Execution trace (?seconds=1)", serve: httpguard.Unlimited(pprof.Trace), local: true},
	}
	for path, why := range notAvailable {
		list = append(list, page{path: path, why: why, serve: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "/debug/"+path+" is not available: "+why, http.StatusNotImplemented)
		}})
	}
	slices.SortFunc(list, func(a, b page) int { return strings.Compare(a.path, b.path) })
	return list
}

// notAvailable are the pages of Istio's control plane that have no counterpart here.
var notAvailable = map[string]string{
	"ambientz":    "ambient mode is not served",
	"cachez":      "there is no cache: proxies share what was compiled; see classz",
	"krtz":        "rules are counted in classz",
	"mcsz":        "multi-cluster services are not served",
	"pushcontext": "there is no push context; see classz and push_status",
}

func (s *Server) debugMux() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /ready", s.ready)
	m.HandleFunc("GET /version", s.version)
	s.handleDebug(m)
	ui.Handle(m, s.hub, s.guarded)
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "pilot-discovery\n\n/ready\n/version\n/debug\n/ui\n")
	})
	return m
}

// handleDebug adds the pages below /debug, guarded, and their index.
func (s *Server) handleDebug(m *http.ServeMux) {
	list := s.pages()
	for _, p := range list {
		m.HandleFunc("GET /debug/"+p.path, s.guarded(p.serve))
	}
	m.HandleFunc("POST /debug/applied", s.guarded(s.applied))
	m.HandleFunc("POST /debug/explain", s.guarded(s.explain))
	m.HandleFunc("POST /debug/ca/rotate", s.guarded(s.caRotate))
	index := s.guarded(func(w http.ResponseWriter, _ *http.Request) {
		for _, p := range list {
			if p.why == "" {
				fmt.Fprintf(w, "/debug/%s\t%s\n", p.path, p.help)
			}
		}
		fmt.Fprint(w, "\nNot available:\n")
		for _, p := range list {
			if p.why != "" {
				fmt.Fprintf(w, "/debug/%s\t%s\n", p.path, p.why)
			}
		}
	})
	m.HandleFunc("GET /debug", index)
	m.HandleFunc("GET /debug/{$}", index)
}

// debugPage returns the text of a page for a client of xDS, which has no status codes: what is wrong is
// in the text. [control-plane 1.6.10]
func (s *Server) debugPage(ctx context.Context, name string) []byte {
	var out pageText
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/debug/"+name, nil)
	if err != nil {
		return []byte("invalid page " + printable.Quote(name, 300) + ": want a name such as syncz, and perhaps a query\n")
	}
	for _, p := range s.pages() {
		if r.URL.Path == "/debug/"+p.path && !p.local {
			p.serve(&out, r)
			return out.Bytes()
		}
	}
	// istioctl shows the list of the pages when it reads this.
	return []byte("404 page not found\n")
}

// pageText collects what a page writes.
type pageText struct {
	bytes.Buffer
	header http.Header
}

// Header implements http.ResponseWriter.
func (t *pageText) Header() http.Header {
	if t.header == nil {
		t.header = http.Header{}
	}
	return t.header
}

// WriteHeader implements http.ResponseWriter.
func (t *pageText) WriteHeader(int) {}

// guarded allows requests from this host, except those that a web page may have made, and others only with
// a bearer token of a service account of the control plane's namespace, so that workloads and web pages
// cannot read the configuration of the mesh. [control-plane 1.16.4]
func (s *Server) guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		remedy := "send the request from the host of pilot-discovery"
		if s.opts.HTTP.OpenDebug {
			h(w, r)
			return
		}
		if httpguard.FromThisHost(r) {
			err := httpguard.CheckPage(r)
			if err == nil {
				h(w, r)
				return
			}
			remedy = err.Error()
		}
		ctx := metadata.NewIncomingContext(r.Context(), metadata.Pairs("authorization", r.Header.Get("Authorization")))
		id, err := s.auth.Authenticate(ctx)
		switch {
		case err != nil:
			http.Error(w, remedy+", or send a bearer token of namespace "+s.opts.Names.Namespace+": "+err.Error(), http.StatusUnauthorized)
		case id.Namespace != s.opts.Names.Namespace:
			http.Error(w, fmt.Sprintf("%s may not read this; identities of namespace %s may", id, s.opts.Names.Namespace), http.StatusForbidden)
		default:
			h(w, r)
		}
	}
}

func (s *Server) monitoringMux() http.Handler {
	m := http.NewServeMux()
	m.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	m.HandleFunc("GET /version", s.version)
	s.handleDebug(m)
	ui.Handle(m, s.hub, s.guarded)
	return m
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	// Pods that are made meanwhile would be refused.
	if why := cmp.Or(s.notReady(), s.webhooks.injector.Pending(), s.webhooks.handover.notReady()); why != "" {
		http.Error(w, "not ready: "+why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
	for _, line := range s.readyNotes() {
		fmt.Fprintln(w, line)
	}
}

// notReady returns why proxies should not connect to this instance, "" if they may.
func (s *Server) notReady() string {
	switch {
	case s.stopping.Load():
		return "the control plane is stopping"
	case s.loop.watchdog.why() != "":
		return s.loop.watchdog.why()
	case !s.loop.gate.open.Load():
		return *s.loop.gate.why.Load()
	}
	return ""
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
	if since, ok := s.behind(); ok && time.Since(since) >= behindNoted {
		out = append(out, fmt.Sprintf("changes since %s may be missing, %s: not everything can be read; pilotctl objects says what", since.UTC().Format(time.RFC3339), time.Since(since).Round(time.Second)))
	}
	if s.loop.kept.stats.failing.Load() {
		out = append(out, "configuration cannot be saved; changes would be unknown after a restart")
	}
	return out
}

// behindNoted is how long changes may be missing before that is noted: a watch that is renewed misses some for a
// moment.
const behindNoted = 5 * time.Second

// behind returns since when changes of the source may be missing, false if they are not.
func (s *Server) behind() (time.Time, bool) {
	return s.source.Behind()
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.opts.Version) }

// syncEntry is one proxy in /debug/syncz. The fields that Istio has, too, have its names.
type syncEntry struct {
	Proxy        string `json:"proxy"`
	ProxyType    string `json:"proxy_type"`
	ProxyVersion string `json:"proxy_version,omitempty"`
	IstioVersion string `json:"istio_version,omitempty"`
	ClusterID    string `json:"cluster_id,omitempty"`
	Identity     string `json:"identity,omitempty"`
	ConnectedAt  string `json:"connected_at"`
	Class        string `json:"class,omitempty"`
	// Generation is the current one, the same for all proxies. Applied is the newest one up to which
	// the proxy has applied everything that was for it.
	Generation uint64              `json:"generation"`
	Applied    uint64              `json:"applied"`
	Types      map[string]syncType `json:"types"`
	// Behind is what the proxy has not applied; nil if it has applied everything.
	Behind *behindProxy `json:"behind,omitempty"`
	// Only is the type of a stream of one type.
	Only string `json:"only,omitempty"`
	// NotApplied are the fields of the proxy's ProxyConfig that it does not get.
	NotApplied []string `json:"proxy_config_not_applied,omitempty"`
	// Quarantined are the resources that proxies of its class have refused, as in "RDS 80": it gets the
	// last accepted versions, or nothing.
	Quarantined []string `json:"quarantined,omitempty"`
	// LastRefusal is the newest response that the proxy has refused on this connection, even if it has accepted a
	// later one; nil if there is none.
	LastRefusal *refusalEntry `json:"last_refusal,omitempty"`
	// Epoch is the restart epoch of the Envoy, which our agents say; empty if it is not known.
	Epoch json.Number `json:"epoch,omitempty"`
	// Older is set if the same proxy has connected again since: it is the stream of an Envoy that is being drained
	// after a hot restart, or of one that is gone without having ended its connection.
	Older bool `json:"older,omitempty"`
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

// refusalEntry is a response that a proxy has refused.
type refusalEntry struct {
	Type    string `json:"type"`
	At      string `json:"at"`
	Message string `json:"message"`
	at      time.Time
}

// older are the connections of proxies that have a newer one of the same kind. Envoys of one agent, which share its connection, are
// told apart by their epochs: each connects again when the control plane was away.
func older(all []xds.Connection) map[string]bool {
	newest, out := map[[2]string]xds.Connection{}, map[string]bool{}
	for _, c := range all {
		key := [2]string{c.Node.ID, c.Only}
		last, again := newest[key]
		switch {
		case !again:
			newest[key] = c
		case newer(c, last):
			out[last.ID], newest[key] = true, c
		default:
			out[c.ID] = true
		}
	}
	return out
}

// newer reports whether a is of a newer Envoy than b, which is of the same proxy.
func newer(a, b xds.Connection) bool {
	x, errX := strconv.Atoi(a.Node.Metadata.Epoch)
	y, errY := strconv.Atoi(b.Node.Metadata.Epoch)
	if errX == nil && errY == nil && x != y && a.Peer == b.Peer {
		return x > y
	}
	return a.Since.After(b.Since)
}

// syncType is one resource type of one proxy. There is one for each type that the proxy has subscribed
// to or of which its view has resources.
type syncType struct {
	Resources int    `json:"resources"`
	Asked     bool   `json:"asked"`
	Sent      string `json:"sent"`
	Acked     string `json:"acked"`
	// Synced says that the proxy has all resources that it shall have and asked for, even if they were
	// not sent on this connection.
	Synced bool `json:"synced"`
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
	connections := s.xds.Connections()
	isOlder := older(connections)
	for _, c := range connections {
		e := syncEntry{
			Older: isOlder[c.ID], Epoch: json.Number(c.Node.Metadata.Epoch),
			Proxy: c.Node.ID, ProxyType: string(c.Node.Role), ProxyVersion: strings.TrimPrefix(c.Node.UserAgent, "envoy/"),
			ClusterID: c.Node.Metadata.ClusterID, ConnectedAt: c.Since.UTC().Format(time.RFC3339),
			Only: c.Only, IstioVersion: c.Node.Metadata.IstioVersion, Types: map[string]syncType{}, NotApplied: c.Node.Metadata.NotApplied.Names(), Quarantined: c.Quarantined, nonces: map[string]string{},
		}
		if p, ok := views.proxies[c.ID]; ok {
			e.Class = className(p.class)
			progress := p.progress()
			e.Generation, e.Applied = views.generation, views.applied(progress)
			if progress.Missing != 0 {
				b := behindOf(c, progress, p.view)
				e.Behind = &b
			}
			for _, t := range xds.Types() {
				if p.view.Of(t).Len() > 0 && (c.Only == "" || c.Only == t.String()) {
					e.Types[t.String()] = syncType{}
				}
			}
		}
		if c.Identity.Namespace != "" {
			e.Identity = c.Identity.SPIFFE()
		}
		for t, st := range c.Types {
			row := syncType{Resources: st.Resources, Asked: true, Sent: st.SentNonce, Acked: st.AckedNonce, Synced: st.Synced, Nack: st.Message}
			if !st.Stuck.IsZero() {
				row.Stuck = st.Stuck.UTC().Format(time.RFC3339)
			}
			e.Types[t.String()] = row
			if at := st.LastRejected; !at.IsZero() && (e.LastRefusal == nil || at.After(e.LastRefusal.at)) {
				e.LastRefusal = &refusalEntry{t.String(), at.UTC().Format(time.RFC3339), st.LastMessage, at}
			}
			e.nonces[t.StatusName()+"_sent"], e.nonces[t.StatusName()+"_acked"] = st.SentNonce, st.AckedNonce
		}
		out = append(out, e)
	}
	writeJSON(w, out)
}

// configDump writes the resources of a proxy's view, in the format of Envoy's config_dump; of the types
// that the query names, in that of Istio's: the resources alone.
func (s *Server) configDump(w http.ResponseWriter, r *http.Request) {
	view, ok := s.viewOf(w, r)
	if !ok {
		return
	}
	names := r.URL.Query().Get("types")
	if names == "" {
		writeMessage(w, xds.Dump(view))
		return
	}
	var types []xds.Type
	for _, name := range strings.Split(names, ",") {
		t, ok := typeNamed(name)
		if !ok {
			http.Error(w, fmt.Sprintf("invalid type %s: want cds, eds, ecds, lds or rds", printable.Quote(name, 100)), http.StatusBadRequest)
			return
		}
		types = append(types, t)
	}
	writeMessage(w, xds.DumpResources(view, types...))
}

// typeNamed finds a type by its short name or its URL.
func typeNamed(name string) (xds.Type, bool) {
	i := slices.IndexFunc(xds.Types(), func(t xds.Type) bool { return strings.EqualFold(t.String(), name) || t.URL() == name })
	if i < 0 {
		return 0, false
	}
	return xds.Types()[i], true
}

// edsz writes the endpoints of a proxy's view.
func (s *Server) edsz(w http.ResponseWriter, r *http.Request) {
	if view, ok := s.viewOf(w, r); ok {
		writeMessage(w, xds.DumpResources(view, xds.EDS))
	}
}

// ecdsz writes the extension configurations of a proxy's view.
func (s *Server) ecdsz(w http.ResponseWriter, r *http.Request) {
	if view, ok := s.viewOf(w, r); ok {
		writeMessage(w, xds.DumpResources(view, xds.ECDS))
	}
}

// ndsz writes the table of names of a proxy's agent.
func (s *Server) ndsz(w http.ResponseWriter, r *http.Request) {
	view, ok := s.viewOf(w, r)
	if !ok {
		return
	}
	list, err := mesh.ParseNameTable(view.Names.Body())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, mesh.NameTableJSON(list))
}

// viewOf returns the view of the proxy that the query names. If there is none it writes why; the first
// sentences are those that istioctl looks for.
func (s *Server) viewOf(w http.ResponseWriter, r *http.Request) (*xds.View, bool) {
	id := r.URL.Query().Get("proxyID")
	if id == "" {
		noProxyID(w)
		return nil, false
	}
	if c, ok := s.xds.Find(id); ok {
		if v := s.connectionView(c.ID); v != nil {
			return v, true
		}
	}
	notConnected(w, id)
	return nil, false
}

func noProxyID(w http.ResponseWriter) {
	http.Error(w, "You must provide a proxyID in the query string: want proxyID=POD.NAMESPACE (see /debug/syncz)", http.StatusBadRequest)
}

func notConnected(w http.ResponseWriter, id string) {
	http.Error(w, fmt.Sprintf("Proxy not connected to this Pilot instance. It may be connected to another instance. No connection of %s; /debug/syncz lists those that there are",
		printable.Quote(id, 300)), http.StatusNotFound)
}

// connectionView returns the view of a connection, nil if there is none.
func (s *Server) connectionView(connection string) *xds.View {
	views, ok := s.loop.viewsSnapshot()
	if !ok {
		return nil
	}
	return views.proxies[connection].view
}

type objectEntry struct {
	Object   string `json:"object"`
	Origin   string `json:"origin"`
	Severity string `json:"severity"`
	Field    string `json:"field,omitempty"`
	Text     string `json:"text"`
	// Meanwhile is what is in force instead; empty if the object is applied.
	Meanwhile string `json:"meanwhile,omitempty"`
	// Generation is that of the newest change that is in force, Proxies how many connected proxies it
	// concerns, Applied how many of them have it. They are left out where that is not known.
	Generation uint64 `json:"generation,omitempty"`
	Proxies    *int   `json:"proxies,omitempty"`
	Applied    *int   `json:"applied,omitempty"`
}

// objectz writes all problems of the configuration, and how many objects of each file are ignored.
func (s *Server) objectz(w http.ResponseWriter, _ *http.Request) {
	out, keys := s.problemEntries()
	s.addApplied(out[len(out)-len(keys):], keys)
	writeJSON(w, out)
}

// problemEntries are all problems of the configuration, and the objects of the last of them.
func (s *Server) problemEntries() (out []objectEntry, keys []object.Key) {
	out = []objectEntry{}
	snap, _ := s.loop.problemsSnapshot()
	if snap.notServed != "" {
		out = append(out, objectEntry{Severity: object.Error.String(), Text: "no proxy is served: " + snap.notServed})
	}
	for _, text := range snap.saved {
		out = append(out, objectEntry{Origin: s.loop.kept.path, Severity: object.Warning.String(), Text: text})
	}
	if text := uncaptured(s.xds.Connections()); text != "" {
		out = append(out, objectEntry{Severity: object.Warning.String(), Text: text})
	}
	var all []object.Problem
	for _, p := range snap.problems {
		all = append(all, p.Problem)
	}
	all = append(append(all, s.references()...), s.gatewayProblems()...)
	s.places.place(all)
	for i, p := range all {
		e := objectEntry{Origin: p.Origin.String(), Severity: p.Severity.String(), Field: p.Field, Text: p.Text}
		if p.Key.Kind != "" {
			e.Object = p.Key.String()
		}
		if i < len(snap.problems) {
			e.Meanwhile = snap.problems[i].meanwhile
		}
		out, keys = append(out, e), append(keys, p.Key)
	}
	return out, keys
}

// references are the references between the objects in force that lead nowhere. Nothing is found while the source is read for the
// first time: what is missing may be on its way.
func (s *Server) references() []object.Problem {
	var objects []*object.Object
	o := analyze.Options{Domain: s.opts.Names.Domain, NoSessions: !s.opts.Compile.Sessions}
	if s.observer != nil { // statuses are written
		o.Gateways = s.opts.Names.Namespace
	}
	s.loop.ask(func() {
		if s.loop.gate.open.Load() {
			objects, o.Mesh = s.loop.store.Good(), s.loop.store.CurrentMesh()
			o.RootNamespace, o.MeshObject = o.Mesh.GetRootNamespace(), s.loop.store.MeshObject()
		}
	})
	o.Workloads = slices.ContainsFunc(objects, func(o *object.Object) bool { return o.Kind == object.Pod || o.Kind == object.WorkloadEntry })
	return analyze.References(objects, o)
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
		// IdleClasses is how many classes without proxies are kept; they are not listed.
		IdleClasses int `json:"idle_classes"`
		Rules       any `json:"rules"`
	}
	if views, ok := s.loop.viewsSnapshot(); ok {
		out.Generation, out.IdleClasses = views.generation, views.idleClasses
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

func writeMessage(w http.ResponseWriter, m proto.Message) {
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // the client may have closed the connection
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client may have closed the connection
}
