package agent

import (
	"os"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/dns"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/agent/trust"
	"github.com/pilothouse/pilothouse/internal/agent/wasm"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// parts are the components whose state the status port reports.
type parts struct {
	spec         *spec.Spec
	workload     workload
	xds          *xdsproxy.Proxy
	certificates *certificates
	dns          dnsPart
	kept         keptPart
	modules      *wasm.Cache // nil if none are fetched
	files        *filewatch.Follower
	proxyless    proxyless
	changes      *dynamicBootstrap // nil if discovery changes no bootstrap
	options      *Options
}

// facts collects the state of the parts.
func (p parts) facts() status.Facts {
	e, x := p.workload.runner.State(), p.xds.State()
	f := status.Facts{
		Envoy: status.Envoy{
			Running: e.Running, Live: e.Live, Draining: e.Draining, Ending: e.Ending, Restarts: e.Restarts, Left: e.Left,
			LastExit: e.LastExit, PID: e.PID, Epoch: e.Epoch, Handover: handover(e.View),
		},
		Upstream:    status.Upstream{Wanted: p.spec.Envoy.CustomBootstrap == "", Connected: x.Connected()},
		Certificate: status.Certificate{Wanted: p.spec.Certificates.Own},
	}
	f.Upstream.RefusedClusters, f.Upstream.RefusedListeners = x.Refusal(xdsproxy.Clusters), x.Refusal(xdsproxy.Listeners)
	if !x.Connected() {
		f.Upstream.Problem = x.LastError
		if p.kept.store != nil {
			s := p.kept.store.State()
			f.Upstream.Copy, f.Upstream.Confirmed = s.Streams > 0, s.Confirmed
		}
	}
	if p.dns.server != nil && f.Upstream.Wanted {
		f.Names = status.Names{Wanted: true, Present: !p.dns.server.Names().Received.IsZero()}
		if x.Connected() {
			f.Names.Asked = x.Since
		}
	}
	if s, _ := p.certificates.value.Current(); s != nil {
		f.Certificate.Present, f.Certificate.NotAfter, f.Certificate.EndsWithIssuer = true, s.NotAfter, s.EndsWithIssuer()
		f.Certificate.RootsNotAfter = s.RootsNotAfter
	}
	if err := p.certificates.value.Problem(); err != nil {
		f.Certificate.Problem = err.Error()
	}
	if p.spec.Envoy.Disabled {
		f.Proxyless = &status.Proxyless{Problem: p.proxyless.problem()}
	}
	if p.certificates.sds.files != nil {
		f.Files = p.certificates.sds.files.Problems()
	}
	return f
}

// handover reports whether the admin interface may belong to an Envoy other than the one that serves.
func handover(v supervise.View) bool {
	if !v.Live {
		return false
	}
	for _, e := range v.Epochs {
		if e.Phase == supervise.Starting || e.Number > v.Epoch || e.Number == v.Epoch && e.NoAdmin {
			return true
		}
	}
	return false
}

// metrics adds the metrics of requests for certificates, of the XDS proxy and of DNS. [agent M12, N16]
func (p parts) metrics(page *status.Page) {
	if i := p.certificates.requests; i != nil && i.keeper != nil {
		s := i.keeper.State()
		page.Counter("num_outgoing_requests", "Requests for a certificate.", float64(s.Requests), "request_type", "csr")
		page.Counter("num_failed_outgoing_requests", "Requests for a certificate that failed.", float64(s.Failed), "request_type", "csr")
		page.Counter("num_outgoing_retries", "Requests for a certificate that followed a failed one.", float64(s.Retries), "request_type", "csr")
		page.Counter("outgoing_latency", "The time that requests for a certificate took together, in milliseconds.", float64(s.Waited.Milliseconds()), "request_type", "csr")
		if i.copy != nil {
			_, problem := i.copy.State()
			page.Gauge("cert_copy_failing", "Whether the copy of the certificate for the next agent could not be written.", status.BoolValue(problem != nil))
		}
	}
	x := p.xds.State()
	page.Counter("xds_proxy_requests", "Requests of Envoy that were passed on.", float64(x.Requests))
	page.Counter("xds_proxy_responses", "Responses of the control plane that were passed on.", float64(x.Responses))
	page.Counter("xds_proxy_refused", "Responses that Envoy refused.", float64(x.Refused))
	page.Counter("istiod_connection_failures", "Connections and streams that the control plane did not open.", float64(x.Failures))
	page.Counter("istiod_connection_terminations", "Streams that the control plane ended.", float64(x.Terminations))
	page.Counter("envoy_connection_terminations", "Streams that Envoy ended.", float64(x.Departures))
	page.Counter("num_file_watcher_failures_total", "Directories that the kernel refused to watch; their files are polled.", float64(p.files.Refusals()))
	if files := p.certificates.sds.files; files != nil {
		page.Counter("num_file_secret_failures_total", "Reads of secrets in files that failed.", float64(files.Failures()))
	}
	p.kept.metrics(page, time.Now())
	if p.modules != nil {
		m := p.modules.Stats()
		page.Gauge("wasm_cache_entries", "Wasm modules that are kept.", float64(m.Entries))
		page.Counter("wasm_cache_lookup_count", "Wasm modules that were asked for.", float64(m.Hits), "hit", "true")
		page.Counter("wasm_cache_lookup_count", "Wasm modules that were asked for.", float64(m.Misses), "hit", "false")
		page.Counter("wasm_remote_fetch_count", "Fetches of Wasm modules.", float64(m.Fetched-m.Failed), "result", "success")
		page.Counter("wasm_remote_fetch_count", "Fetches of Wasm modules.", float64(m.Failed), "result", "download_failure")
		const converted = "Configurations of extensions."
		page.Counter("wasm_config_conversion_count", converted, float64(m.Converted), "result", "success")
		page.Counter("wasm_config_conversion_count", converted, float64(m.Local), "result", "no_remote_load")
		page.Counter("wasm_config_conversion_count", converted, float64(m.Substituted), "result", "fetch_failure")
		page.Counter("wasm_config_conversion_count", converted, float64(m.Invalid), "result", "marshal_failure")
		var bounds []float64
		for _, d := range wasm.DurationBounds {
			bounds = append(bounds, float64(d.Milliseconds()))
		}
		page.Histogram("wasm_config_conversion_duration", "The time that configurations of extensions with a module took, in milliseconds.", bounds, m.Durations[:], float64(m.Converting.Milliseconds()))
	}
	if p.dns.server == nil {
		return
	}
	n := p.dns.server.Stats()
	page.Counter("dns_requests_total", "DNS requests of the application that were captured.", float64(n.Queries))
	page.Counter("dns_table_answers_total", "DNS requests that were answered from the names of the mesh.", float64(n.Answered))
	page.Counter("dns_upstream_requests_total", "DNS requests to name servers.", float64(n.Upstream))
	page.Counter("dns_upstream_failures_total", "DNS requests to name servers without a response.", float64(n.Failures))
	var bounds []float64
	for _, d := range dns.DurationBounds {
		bounds = append(bounds, d.Seconds())
	}
	page.Histogram("dns_upstream_request_duration_seconds", "The time that name servers took to respond.", bounds, n.Durations[:], n.Waited.Seconds())
	page.Gauge("dns_table_hosts", "Hosts of the mesh that are resolved.", float64(p.dns.server.Names().Hosts))
}

// names returns the names of the mesh, nil if there are none.
func (p parts) names() any {
	if p.dns.server == nil || p.dns.server.Names().Received.IsZero() {
		return nil
	}
	return mesh.NameTableJSON(p.dns.server.NameTable())
}

// Detail is what /debug/status shows in addition to the facts. pilot-agent status and identity read it.
type Detail struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Admin is the host:port of Envoy's admin interface.
	Admin string `json:"admin"`

	Node     string `json:"node"`
	Cluster  string `json:"cluster"`
	Identity string `json:"identity"`

	Discovery string `json:"discovery"`
	Connected bool   `json:"connected"`
	// Since is when Connected last changed.
	Since   time.Time `json:"since"`
	Streams int       `json:"streams"`
	// XDSStreams are these streams, with the versions of each type.
	XDSStreams []xdsproxy.StreamState `json:"xds_streams"`
	// Requests and Responses count messages, Refused and Refusals responses that Envoy refused.
	Requests  uint64          `json:"requests"`
	Responses uint64          `json:"responses"`
	Refused   uint64          `json:"refused"`
	Refusals  []xdsproxy.Nack `json:"refusals"`

	Restarts    Restarts       `json:"restarts"`
	Certificate IdentityReport `json:"certificate"`
	// TrustedRoots are those of the mesh.
	TrustedRoots []trust.Root `json:"trusted_roots"`
	// Copy is nil if no copy of Envoy's configuration is kept.
	Copy *KeptReport `json:"copy,omitempty"`
	// Bootstrap is nil if discovery is not asked what it changes in Envoy's bootstrap.
	Bootstrap *BootstrapReport `json:"bootstrap,omitempty"`
	// DNS is nil if the agent serves no DNS, Capture if it keeps no rules in force.
	DNS     *DNSReport     `json:"dns,omitempty"`
	Capture *CaptureReport `json:"capture,omitempty"`
}

// Restarts are the Envoys that follow one another.
type Restarts struct {
	Epochs    []supervise.EpochState `json:"epochs"`
	Processes []envoy.Process        `json:"processes"`
	Goal      supervise.Goal         `json:"goal"`
	// Notes say what is not as it was asked for, by subject.
	Notes map[string]string `json:"notes"`
	// ColdChanges are the fields whose new values take effect with the next agent.
	ColdChanges []string          `json:"cold_changes"`
	Waiting     supervise.Waiting `json:"waiting"`
}

// DNSReport counts captured DNS queries, those that were forwarded, and those of them without a response.
type DNSReport struct {
	Address string `json:"address"`
	Queries uint64 `json:"queries"`
	// Answered are the queries that were answered from the names of the mesh.
	Answered uint64         `json:"answered"`
	Names    dns.NamesState `json:"names"`
	Upstream uint64         `json:"upstream"`
	Failures uint64         `json:"failures"`
}

// CaptureReport says how the rules of capture are kept in force.
type CaptureReport struct {
	// Backend is what applies them, Arguments those of istio-iptables.
	Backend   string `json:"backend"`
	Arguments string `json:"arguments"`
	// Checked is when they were last known to be in force; zero if they never were.
	Checked time.Time `json:"checked,omitzero"`
	// Restored counts how often they were restored, the last time at Last because of Found.
	Restored int       `json:"restored"`
	Last     time.Time `json:"last,omitzero"`
	Found    string    `json:"found,omitempty"`
	// Problem is why the last check failed.
	Problem string `json:"problem,omitempty"`
}

// detail collects the state of the parts.
func (p parts) detail() any {
	x, e := p.xds.State(), p.workload.runner.State()
	d := Detail{
		PID: os.Getpid(), Version: p.options.Version, Started: p.options.Started, Admin: p.spec.AdminAddress(),
		Node: p.spec.Node.ID.String(), Cluster: p.spec.Node.Cluster, Identity: p.spec.Node.Identity.SPIFFE(),
		Discovery: p.spec.Upstream.Discovery, Connected: x.Connected(), Since: x.Since, Streams: x.Streams, XDSStreams: p.xds.Streams(),
		Requests: x.Requests, Responses: x.Responses, Refused: x.Refused, Refusals: x.Nacks,
		Restarts: Restarts{
			Epochs: e.Epochs, Processes: e.Processes, Goal: e.Goal, Notes: e.Notes, ColdChanges: p.workload.reloader.Cold(), Waiting: e.Goal.Waiting,
		},
		Certificate: p.certificates.report(p.spec), TrustedRoots: p.certificates.trust.Roots(),
	}
	if d.Refusals == nil {
		d.Refusals = []xdsproxy.Nack{}
	}
	d.Copy, d.Bootstrap = p.kept.report(), p.changes.report()
	if p.dns.server != nil {
		n := p.dns.server.Stats()
		d.DNS = &DNSReport{Address: p.spec.DNS.Address, Queries: n.Queries, Answered: n.Answered, Names: p.dns.server.Names(), Upstream: n.Upstream, Failures: n.Failures}
	}
	if p.options.Capture != nil {
		c := p.options.Capture()
		d.Capture = &c
	}
	return d
}
