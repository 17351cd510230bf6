// Package discovery wires the control plane: a source, the loop, and the servers for xDS, certificates, debugging and metrics.
//
// New opens everything that can fail (the root, the token issuer, every listener). Run serves until its
// context ends, and returns when every goroutine has ended. Streams are rejected until the source has
// been read, and while the gate is closed.
package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials/store"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks/fetch"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/multi"
	"github.com/pilothouse/pilothouse/internal/discovery/traffic"
	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// rootsFile is the trust bundle in the state folder.
const rootsFile = "root-cert.pem"

// Server is a control plane. Create one with New.
type Server struct {
	opts      Options
	loop      *loop
	source    *multi.Source
	sourcesOf chan []string // configSources that have not been applied
	scope     *scoped       // of the source
	meshFile  meshFile
	xds       *xds.Server
	cluster   *cluster  // nil without Kubernetes
	observer  *observer // nil if no statuses are written
	roots     ca.Store  // has the self-signed root
	authority *ca.Authority
	plugged   *ca.Directory // nil if no directory is followed
	rotator   *ca.Rotator
	trusted   trustedRoots
	// servingAuthority issues the certificate of the secure port.
	servingAuthority *ca.Authority
	ca               *ca.Server
	auth             *authn.Authenticator
	issuers          *authn.Issuers
	keys             *fetch.Fetcher
	limiter          *authn.Limiter
	serving          *ca.Serving
	listeners        listeners
	webhooks         webhooks
	hub              *ui.Hub
	traffic          *traffic.Asker // nil without a source of metrics
	metrics          *prometheus.Registry
	places           fieldLines
	started          time.Time
	done             run.Cleanups
	stopping         atomic.Bool
	// loopLimit is how long the loop may go on after the servers have stopped.
	loopLimit time.Duration
}

type listeners struct{ http, grpc, secure, monitoring, https net.Listener }

// newServer creates a control plane with sources that have been given the saved objects in kept.
func newServer(ctx context.Context, o Options, parts multi.Options, kept *keeper) (_ *Server, err error) {
	s := &Server{opts: o, cluster: o.cluster, sourcesOf: make(chan []string, 1), loop: newLoop(o.Names.Domain, o.Compile, o.Lenience, kept, o.Log), metrics: prometheus.NewRegistry(), started: time.Now(), loopLimit: defaultLoopLimit}
	if o.OnReady != nil {
		s.loop.onOpen = append(s.loop.onOpen, func() { go o.OnReady() })
	}
	if o.Watchdog > 0 {
		s.loop.watchdog = newWatchdog(o.Watchdog, o.Log)
	}
	s.meshFile = newMeshFile(o.MeshFile, kept.remembered(true), o.Log)
	remembered := kept.before.Objects
	kept.before.Objects = nil // free the memory
	defer func() {
		if err != nil {
			err = errors.Join(err, s.done.Close())
		}
	}()
	domain, atStart, err := findMesh(ctx, o, parts.First, s.meshFile, remembered)
	if err != nil {
		return nil, err
	}
	if err := s.cluster.awaitAPIServer(ctx); err != nil {
		return nil, err
	}
	// Before keys and roots are made, which stay: the port of another pilot-discovery may be the first thing that is wrong.
	if err := s.listen(); err != nil {
		return nil, err
	}
	s.source = s.join(parts, atStart)
	s.loop.model.SetOwn(model.Own{Cluster: o.Kubernetes.Cluster, Namespace: o.Names.Namespace})
	s.scope = newScoped(o.Names, atStart, s.loop.Emit)
	s.loop.store.SetMeshConfig(o.Names.meshConfig())
	s.loop.store.FixTrustDomain(domain, o.Names.TrustDomain != "")
	s.roots = s.rootStore()
	s.authority, s.plugged, err = ca.Open(ctx, ca.Options{
		Directory: o.CA.Directory, Store: s.roots, TrustDomain: domain, RootTTL: o.CA.RootTTL, RootKey: o.CA.RootKey, Limits: o.CA.Limits, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	if s.authority.Created() {
		root := s.authority.State().Issuer.Root()
		o.Log.Info("a new root was made: proxies need its certificate", "sha256", pki.Fingerprint(root), "until", root.NotAfter, "file", filepath.Join(o.StateDir, rootsFile))
	}
	issuer, err := authn.OpenIssuer(o.StateDir)
	if err != nil {
		return nil, err
	}
	if issuer.Created() {
		o.Log.Info("a new key was made that signs tokens", "fingerprint", issuer.KeyID())
	}
	s.keys = newFetcher(o.Keys, s.loop.keys.known(), o.Log)
	s.loop.keys.onWant = s.keys.Want
	s.issuers = authn.NewIssuers(o.Auth.Issuers, nil, o.Log)
	s.auth = authn.New(domain, issuer.ForAudiences(o.Auth.Audiences...), authn.WithIssuers(s.issuers), s.cluster.authentication(o.Auth.Audiences, o.Log), authn.WithTrustedGateways(o.Auth.Gateways...),
		authn.WithJoinTokens(s.usedTokens(), o.Log))
	s.loop.onMesh = func(m *meshv1.MeshConfig) {
		s.auth.SetTrustDomainAliases(m.GetTrustDomainAliases())
		s.distributeMesh(config.MeshRoots(m))
		s.cluster.setMesh(m)
		s.setInjectorMesh(m)
		s.scope.meshChanged(m)
		s.sourcesChanged(m)
	}
	s.loop.apart.file = parts.RegisteredFile
	s.loop.workloads.revision = o.Names.Revision
	if o.registrar != nil {
		s.loop.follow(o.registrar.Apply, o.registrar.Open)
	}
	if s.cluster != nil && s.cluster.deployer != nil {
		s.loop.follow(s.cluster.deployer.Apply, s.cluster.deployer.Open)
	}
	s.loop.onProxyConfigs = func(all *inject.ProxyConfigs) {
		if s.webhooks.injector != nil {
			s.webhooks.injector.SetProxyConfigs(all)
		}
	}
	s.limiter = authn.NewLimiter(s.auth, o.Auth.CertificatesPerSecond, o.Log)
	s.ca = ca.New(s.authority, s.limiter, o.CA.Limits, o.Log)
	s.xds = xds.New(joiner{s.loop, o.registrar}, o.Log, s.metrics)
	s.xds.Limit(o.Limits)
	s.xds.BehindIf(s.mayLack)
	s.loop.secrets = store.New()
	s.cluster.restrict(s.loop.secrets)
	s.xds.ServeSecrets(s.loop.secrets)
	if s.cluster != nil && s.cluster.statuses != nil {
		s.observer = newObserver(s.loop, s.xds.Connection, s.cluster.statuses.Touch)
	}
	if err = s.openRotation(ctx, domain); err != nil {
		return nil, err
	}
	if err = publishRoots(o.StateDir, s.authority.State().RootsPEM()); err != nil {
		return nil, err
	}
	if s.serving, err = s.servingAuthority.ServerCertificate(ca.ServingNames(o.Names.Namespace, o.Names.Revision, append(ownAddresses(), o.CA.ServingNames...)...)); err != nil {
		return nil, err
	}
	s.xds.Introspect(xds.Introspection{
		Namespace: o.Names.Namespace, Open: o.HTTP.OpenDebug, Instance: o.instance(), View: s.connectionView, Page: s.debugPage,
	})
	s.register()
	if o.HTTP.Prometheus != nil {
		s.traffic = traffic.New(o.HTTP.Prometheus, traffic.Limits{})
	}
	s.hub = s.newHub()
	if err = s.openWebhooks(); err != nil {
		return nil, err
	}
	return s, nil
}

// listen opens the ports.
func (s *Server) listen() (err error) {
	o := &s.opts
	for _, l := range []struct {
		name, flag, addr string
		to               *net.Listener
	}{
		{"HTTP", "httpAddr", o.Ports.HTTP, &s.listeners.http}, {"plaintext gRPC", "grpcAddr", o.Ports.GRPC, &s.listeners.grpc},
		{"secure gRPC", "secureGRPCAddr", o.Ports.SecureGRPC, &s.listeners.secure}, {"monitoring", "monitoringAddr", o.Ports.Monitoring, &s.listeners.monitoring},
		{"HTTPS", "httpsAddr", o.Ports.HTTPS, &s.listeners.https},
	} {
		if l.addr == "" {
			continue
		}
		if *l.to, err = net.Listen("tcp", l.addr); err != nil {
			return fmt.Errorf("flag --%s: open the %s port: %w", l.flag, l.name, claim.PortError(err))
		}
		s.done.Add("close the "+l.name+" port", closeOnce(*l.to))
	}
	return nil
}

// instance identifies the process in the form that "istioctl x version" reads.
func (o *Options) instance() string {
	var id struct {
		Component, ID string
		Info          struct {
			Version       string `json:"version"`
			GitRevision   string `json:"revision"`
			GolangVersion string `json:"golang_version"`
			BuildStatus   string `json:"status"`
			GitTag        string `json:"tag"`
		}
	}
	id.Component, id.ID = "pilot-discovery", o.Names.Instance
	id.Info.Version, id.Info.GolangVersion = o.Version, runtime.Version()
	text, err := json.Marshal(id)
	if err != nil {
		panic("discovery: encode the instance: " + err.Error()) // it consists of strings
	}
	return string(text)
}

// publishRoots writes the trust bundle to root-cert.pem, for distribution to workloads. The authority
// has its own copy.
func publishRoots(stateDir string, pem []byte) error {
	path := filepath.Join(stateDir, rootsFile)
	if old, err := statefile.ReadOwn(path, int64(len(pem))); err == nil && bytes.Equal(old, pem) {
		return nil
	}
	if err := statefile.ReplacePublic(path, pem); err != nil {
		return fmt.Errorf("publish the root certificate: %w", err)
	}
	return nil
}

// publishNewRoots writes the trust bundle whenever it has changed, until ctx ends. What cannot be written
// is tried again, since the mesh must not trust another bundle than the file for long.
func (s *Server) publishNewRoots(ctx context.Context) error {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for failing := false; ; {
		state, changed := s.authority.Watch()
		err := publishRoots(s.opts.StateDir, state.RootsPEM())
		switch {
		case err != nil:
			if !failing {
				s.opts.Log.Error("the trust bundle is not written; workloads that read it from the file do not get new roots", "error", err)
			}
			retry.Reset(saveRetry)
		case failing:
			s.opts.Log.Info("the trust bundle is written again")
		}
		failing = err != nil
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
	}
}
