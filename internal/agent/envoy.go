package agent

import (
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// envoyOptions returns the options of Envoy's supervisor. connected carries whether the control plane is connected, without which a new Envoy gets no configuration.
func envoyOptions(o Options, first envoy.Launch, connected <-chan bool) envoy.Options {
	s := o.Spec
	sidecar := s.Node.ID.Role == mesh.Sidecar
	hot := envoy.Hot{ParentShutdown: s.Lifecycle.ParentShutdown}
	if s.Envoy.CustomBootstrap == "" {
		hot.Upstream = connected
	}
	if sidecar {
		hot.InboundPorts = []int{mesh.InboundPort}
	}
	return envoy.Options{
		Launch: first,
		Admin:  s.AdminAddress(),
		Policy: policy(s),
		Hot:    hot,
		// While a sidecar drains, the application's outbound requests continue.
		InboundOnly: sidecar,
		IgnorePorts: []int{s.Envoy.HealthPort, s.Envoy.PrometheusPort},
		Stdout:      o.Stdout,
		Stderr:      o.Stderr,
		Log:         o.Log.With("scope", "envoy"),
	}
}

// policy returns how Envoy is restarted and ended.
func policy(s *spec.Spec) supervise.Policy {
	l := s.Lifecycle
	p := supervise.DefaultPolicy()
	switch {
	case l.AsIstio:
		p = supervise.Policy2021()
	case l.HotRestart:
		p = supervise.HotPolicy()
	}
	p.Drain, p.ExitOnZero, p.MinDrain, p.MaxDrain = l.Drain, l.ExitOnZero, l.MinDrain, l.MaxDrain
	return p
}
