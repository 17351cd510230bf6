package agent

import (
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
)

// serveStatus serves the status port: an agent that nobody can ask is no use. [agent L12]
func (a *Agent) serveStatus() error {
	server := status.New(status.Options{
		Listener: a.statusPort, Proxy: a.envoy.Admin(), Lifecycle: a.envoy, Facts: a.facts, Log: a.log.With("scope", "status"),
		Started: a.o.Started, FirstReady: a.o.Ready, Collect: []func(*status.Page){a.collect, a.collectDNS}, Detail: a.detail,
		Restart: a.restarts.ask, Profiling: a.o.Flags.Profiling, LocalMetrics: a.o.Settings.Envoy.LocalMetrics,
	})
	a.serve("status", server.Run)
	return nil
}

// facts gathers what the parts know of themselves.
func (a *Agent) facts() status.Facts {
	e, x := a.envoy.State(), a.xds.State()
	f := status.Facts{
		Envoy: status.Envoy{
			Running: e.Running, Live: e.Live, Draining: e.Draining, Ending: e.Ending, Restarts: e.Restarts, Left: e.Left,
			LastExit: e.LastExit, PID: e.PID, Epoch: e.Epoch, Handover: handover(e.View),
		},
		Upstream:    status.Upstream{Wanted: a.o.Node.Config.GetCustomConfigFile() == "", Connected: x.Connected()},
		Certificate: status.Certificate{Wanted: a.ownsSecrets()},
	}
	if !x.Connected() {
		f.Upstream.Problem = x.LastError
	}
	if s, _ := a.secret.Current(); s != nil {
		f.Certificate.Present, f.Certificate.NotAfter = true, s.NotAfter
	}
	if err := a.secret.Problem(); err != nil {
		f.Certificate.Problem = err.Error()
	}
	if a.files != nil {
		f.Files = a.files.Problems()
	}
	return f
}

// handover says that the admin interface does not, or may not, speak for the Envoy that serves.
func handover(v supervise.View) bool {
	if !v.Live {
		return false
	}
	for _, e := range v.Epochs {
		if e.Phase == supervise.Starting || e.Number > v.Epoch || e.Number == v.Epoch && e.Adminless {
			return true
		}
	}
	return false
}

// collect adds the metrics of the configuration's way.
func (a *Agent) collect(p *status.Page) {
	x := a.xds.State()
	p.Counter("xds_proxy_requests", "Requests of Envoy that were passed on.", float64(x.Requests))
	p.Counter("xds_proxy_responses", "Responses of the control plane that were passed on.", float64(x.Responses))
	p.Counter("xds_proxy_refused", "Responses that Envoy refused.", float64(x.Refused))
}

// detail is what /debug/status shows beside the facts.
func (a *Agent) detail() any {
	x := a.xds.State()
	nacks := x.Nacks
	if nacks == nil {
		nacks = []xdsproxy.Nack{}
	}
	d := map[string]any{
		"node": a.o.Node.ID.String(), "cluster": a.o.Node.Cluster, "identity": a.o.Node.Identity.SPIFFE(),
		"discovery": a.o.Settings.Upstream.Discovery, "connected": x.Connected(), "since": x.Since,
		"requests": x.Requests, "responses": x.Responses, "refused": x.Refused, "refusals": nacks,
	}
	e := a.envoy.State()
	d["restarts"] = map[string]any{
		"epochs": e.Epochs, "processes": e.Processes, "goal": e.Goal, "notes": e.Notes, "cold_changes": *a.restarts.cold.Load(),
		"waiting": e.Goal.Waiting,
	}
	if s, _ := a.secret.Current(); s != nil {
		d["certificate"] = map[string]any{"version": s.Version, "not_before": s.NotBefore, "not_after": s.NotAfter}
	}
	return d
}
