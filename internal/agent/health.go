package agent

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pilothouse/pilothouse/internal/agent/health"
	"github.com/pilothouse/pilothouse/internal/agent/probe"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
)

// readinessPath is the name of the readiness probe among those of package probe.
const readinessPath = "readiness"

// probe finds out the health of the application, and reports it to the control plane, until ctx ends.
func (p parts) probe(ctx context.Context, log *slog.Logger) error {
	r := p.spec.Readiness
	prober := probe.New(probe.Options{
		Probes: spec.Probes{Probers: map[string]spec.Prober{readinessPath: r.Prober}, HTTP2: p.spec.Probes.HTTP2},
		Pod:    r.Host, StatusPort: p.spec.Status.Port, Log: log,
	})
	defer prober.Close()
	return health.Run(ctx, health.Options{
		Probe: r, Log: log, Proxy: p.proxyReady,
		Check: func(ctx context.Context) error { return prober.Check(ctx, readinessPath) },
		Report: func(healthy bool, message string) {
			p.xds.SetHealth(xdsproxy.Health{Healthy: healthy, Message: message})
		},
	})
}

// proxyReady returns why Envoy cannot serve the application, nil if it can.
func (p parts) proxyReady() error {
	switch e := p.workload.runner.State(); {
	case !e.Live:
		return errors.New("the proxy is not live")
	case e.Draining || e.Ending:
		return errors.New("the proxy is draining")
	}
	return nil
}
