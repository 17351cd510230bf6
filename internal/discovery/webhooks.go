package discovery

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"slices"

	meshv1 "istio.io/api/mesh/v1alpha1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/internal/run"
)

// WebhookOptions are the options of the HTTPS port, which serves admission webhooks.
type WebhookOptions struct {
	// CertFile and KeyFile are a certificate and its key in PEM, followed; empty for one of the mesh's CA. CAFile
	// are the roots that verify it, for the webhook configurations.
	CertFile, KeyFile, CAFile string
	// Injection and Validation are the names of the webhook configurations, without revision and namespace.
	Injection, Validation string
	// Revision is that of this control plane.
	Revision string
	// Native says when an injected proxy is a native sidecar.
	Native inject.Native
	// Policy is what the failure policy of the validation becomes.
	Policy webhook.FailurePolicy
}

// webhooks is the part of a Server that serves the HTTPS port.
type webhooks struct {
	server      *webhook.Server
	patcher     *webhook.Patcher         // nil if nothing is patched
	injector    *webhook.ClusterInjector // nil if nothing is injected
	events      *webhook.Events          // nil without an injector
	certificate webhook.Certificate
	// remote makes the patcher of a remote cluster; nil if nothing is patched.
	remote   func(*rest.Config, *slog.Logger) (*webhook.Patcher, error)
	handover *handover // nil if the certificate is not the CA's
}

// openWebhooks makes what serves the HTTPS port, if there is one.
func (s *Server) openWebhooks() error {
	o := s.opts.Webhooks
	if s.opts.Ports.HTTPS == "" {
		return nil
	}
	log := s.opts.Log.With("scope", "webhooks")
	options := webhook.Options{Rules: admit.Rules{MeshConfig: s.opts.Names.meshConfig()}, Metrics: s.metrics, Log: log}
	if err := s.openInjector(log); err != nil {
		return err
	}
	if s.webhooks.injector != nil {
		options.Injector, options.Recorder = s.webhooks.injector, s.webhooks.events
	}
	s.webhooks.server = webhook.New(options)
	var served func(id string) bool
	names := webhookNames(s.opts)
	bundle := s.servingRoots
	if o.CertFile != "" || o.KeyFile != "" {
		files, err := webhook.OpenFiles(o.CertFile, o.KeyFile, o.CAFile, log)
		if err != nil {
			return err
		}
		s.webhooks.certificate, bundle = files.Get, files.Bundle
	} else {
		h, err := s.openHandover()
		if err != nil {
			return err
		}
		serving, err := h.authority.ServerCertificate(names)
		if err != nil {
			return err
		}
		s.webhooks.certificate, s.webhooks.handover = serving.Get, h
		served = s.rotator.Served
	}
	if s.cluster == nil {
		return nil // no API server sends anything here
	}
	s.webhooks.remote = func(api *rest.Config, log *slog.Logger) (*webhook.Patcher, error) {
		return webhook.NewPatcher(webhook.PatcherOptions{Config: api, Bundle: bundle, Log: log, Target: webhook.Target{
			Names:    webhook.ConfigurationNames(o.Injection, o.Revision, s.opts.Names.Namespace),
			Revision: o.Revision, Namespace: s.opts.Names.Namespace, Services: webhookServices(o.Revision), Hosts: names, Served: served,
		}, InjectionOnly: true})
	}
	var err error
	s.webhooks.patcher, err = webhook.NewPatcher(webhook.PatcherOptions{
		Config: s.cluster.api, Bundle: bundle, Metrics: s.metrics, Log: log,
		Target: webhook.Target{
			Names: slices.Concat(
				webhook.ConfigurationNames(o.Injection, o.Revision, s.opts.Names.Namespace),
				webhook.ConfigurationNames(o.Validation, o.Revision, s.opts.Names.Namespace),
				webhook.ConfigurationNames("istio-validator", o.Revision, s.opts.Names.Namespace)),
			Revision: o.Revision, Namespace: s.opts.Names.Namespace, Services: webhookServices(o.Revision), Hosts: names, Policy: o.Policy, Served: served,
		},
	})
	return err
}

// openInjector makes the injector, if there is an API server that sends Pods here.
func (s *Server) openInjector(log *slog.Logger) (err error) {
	if s.cluster == nil {
		return nil
	}
	s.webhooks.injector, err = webhook.NewClusterInjector(webhook.InjectorOptions{
		Config: s.cluster.api, Namespace: s.opts.Names.Namespace, Revision: s.opts.Webhooks.Revision, Native: s.opts.Webhooks.Native,
		Ready: s.loop.gate.open.Load, Log: log,
	})
	if err != nil {
		return err
	}
	s.webhooks.events, err = webhook.NewEvents(s.cluster.api, log)
	return err
}

// setInjectorMesh has the injector use the mesh configuration.
func (s *Server) setInjectorMesh(m *meshv1.MeshConfig) {
	if s.webhooks.injector != nil {
		s.webhooks.injector.SetMesh(m)
	}
}

// followInjector follows the configuration of the injector, and writes its events, until ctx ends.
func (s *Server) followInjector(ctx context.Context) error {
	if s.webhooks.injector == nil {
		return nil
	}
	return run.Group(ctx,
		run.Task{Name: "configuration", Run: s.webhooks.injector.Run},
		run.Task{Name: "events", Run: s.webhooks.events.Run},
	)
}

// webhookServices are the names of the Services by which the API server reaches the HTTPS port.
func webhookServices(revision string) []string {
	services := []string{"istiod", "istiod-remote", "istio-pilot", "pilothouse"}
	if revision != "" && revision != "default" {
		services = append(services, "istiod-"+revision, "pilothouse-"+revision)
	}
	return services
}

// webhookNames are the names in the certificate of the HTTPS port.
func webhookNames(o Options) []string {
	names := ca.ServingNames(o.Names.Namespace, o.Webhooks.Revision, o.CA.ServingNames...)
	for _, service := range webhookServices(o.Webhooks.Revision) {
		if name := service + "." + o.Names.Namespace + ".svc"; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// servingRoots returns the roots of which one has signed the control plane's certificates, and a channel that is
// closed when they have changed. They overlap while a root is rotated.
func (s *Server) servingRoots() ([]byte, <-chan struct{}) {
	state, changed := s.servingAuthority.Watch()
	return state.RootsPEM(), changed
}

// serveWebhooks serves the HTTPS port until ctx ends.
func (s *Server) serveWebhooks(ctx context.Context) error {
	l := s.listeners.https
	if l == nil {
		return nil
	}
	bound := func(srv *http.Server) { srv.ConnState = webhook.NewConnections().Follow }
	return s.serveHTTP(tls.NewListener(l, webhook.TLSConfig(s.webhooks.certificate, s.opts.CA.MinTLS)), s.webhooks.server.Handler(), bound)(ctx)
}
