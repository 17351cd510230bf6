package agent

import (
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/reload"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// parts are the components whose state the status port reports.
type parts struct {
	spec         *spec.Spec
	envoy        *envoy.Runner
	xds          *xdsproxy.Proxy
	certificates *certificates
	dns          dnsPart
	files        *filewatch.Follower
	reloader     *reload.Reloader
}

// facts collects the state of the parts.
func (p parts) facts() status.Facts {
	e, x := p.envoy.State(), p.xds.State()
	f := status.Facts{
		Envoy: status.Envoy{
			Running: e.Running, Live: e.Live, Draining: e.Draining, Ending: e.Ending, Restarts: e.Restarts, Left: e.Left,
			LastExit: e.LastExit, PID: e.PID, Epoch: e.Epoch, Handover: handover(e.View),
		},
		Upstream:    status.Upstream{Wanted: p.spec.Envoy.CustomBootstrap == "", Connected: x.Connected()},
		Certificate: status.Certificate{Wanted: p.spec.Certificates.Own},
	}
	if !x.Connected() {
		f.Upstream.Problem = x.LastError
	}
	if s, _ := p.certificates.value.Current(); s != nil {
		f.Certificate.Present, f.Certificate.NotAfter, f.Certificate.EndsWithIssuer = true, s.NotAfter, s.EndsWithIssuer()
		f.Certificate.RootsNotAfter = s.RootsNotAfter
	}
	if err := p.certificates.value.Problem(); err != nil {
		f.Certificate.Problem = err.Error()
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
	if p.dns.server == nil {
		return
	}
	n := p.dns.server.Stats()
	page.Counter("dns_requests_total", "DNS requests of the application that were captured.", float64(n.Queries))
	page.Counter("dns_upstream_requests_total", "DNS requests to name servers.", float64(n.Upstream))
	page.Counter("dns_upstream_failures_total", "DNS requests to name servers without a response.", float64(n.Failures))
}

// detail is what /debug/status shows in addition to the facts.
func (p parts) detail() any {
	x := p.xds.State()
	nacks := x.Nacks
	if nacks == nil {
		nacks = []xdsproxy.Nack{}
	}
	d := map[string]any{
		"node": p.spec.Node.ID.String(), "cluster": p.spec.Node.Cluster, "identity": p.spec.Node.Identity.SPIFFE(),
		"discovery": p.spec.Upstream.Discovery, "connected": x.Connected(), "since": x.Since,
		"requests": x.Requests, "responses": x.Responses, "refused": x.Refused, "refusals": nacks,
	}
	e := p.envoy.State()
	d["restarts"] = map[string]any{
		"epochs": e.Epochs, "processes": e.Processes, "goal": e.Goal, "notes": e.Notes, "cold_changes": p.reloader.Cold(),
		"waiting": e.Goal.Waiting,
	}
	d["certificate"] = p.certificates.report(p.spec)
	d["trusted_roots"] = p.certificates.trust.Roots()
	return d
}
