// Package discovery wires the control plane: a source, the loop, and the servers for xDS, certificates, debugging and metrics.
//
// New opens everything that can fail (the root, the token issuer, every listener). Run serves until its
// context ends, and returns when every goroutine has ended. Streams are rejected until the source has
// been read, and while the gate is closed.
package discovery

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	kubesource "github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/httpguard"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// Source reports objects until its context ends. Run calls emit from one goroutine.
type Source interface {
	Run(ctx context.Context, emit func(object.Batch)) error
}

// Options are the settings of pilot-discovery.
type Options struct {
	// ConfigDir is the directory with the YAML files of the configuration. If it is empty, Kubernetes is
	// the cluster that is read instead.
	ConfigDir  string
	Kubernetes KubernetesOptions
	// MeshFile is a file with mesh configuration, watched; empty for none.
	MeshFile string
	// StateDir keeps the root, its key, the token issuer's key and the last good configuration.
	StateDir  string
	Names     Names
	Ports     Ports
	Keepalive Keepalive
	CA        CAOptions
	Auth      AuthOptions
	Compile   compile.Options
	HTTP      HTTPOptions
	Webhooks  WebhookOptions
	Lenience  Lenience
	// Watchdog is how long the loop may handle one event until the control plane is not ready; 0 is
	// the default.
	Watchdog time.Duration
	// Limits bound what the server keeps for all xDS clients together.
	Limits  xds.Limits
	Version string
	Log     *slog.Logger

	cluster *cluster // that is read; nil for none
}

// KubernetesOptions say which cluster is read, and what of it. It also keeps the self-signed root, reviews tokens, and
// elects which replica writes objects.
type KubernetesOptions struct {
	API kube.Options
	// Cluster is the cluster's name.
	Cluster string
	// RootConfigMap is the name of the ConfigMap with the trusted roots in each namespace; empty for istio-ca-root-cert.
	RootConfigMap string
	// NoElection has this replica lead without a Lease.
	NoElection bool
	Status     StatusOptions
	// WatchNamespace is the one namespace whose objects are read; empty for all. Ignore and Include are
	// patterns of resources: what Ignore matches and Include does not is not read.
	WatchNamespace  string
	Ignore, Include []string
}

// StatusOptions say whether, and how often, the statuses of objects are written.
type StatusOptions struct {
	// Off writes none.
	Off bool
	// PerSecond is how many are written in a second; 0 for statuswriter.DefaultPerSecond.
	PerSecond float32
	// Pace is how often that of one object is; zero for objectstatus.DefaultPace.
	Pace objectstatus.Pace
}

// Names are the names of this mesh and its control plane. All but TrustDomain are required.
type Names struct {
	// Domain is the cluster's DNS suffix.
	Domain string
	// TrustDomain is that of identities. If it is empty, it is that of the mesh configuration, or else
	// the default.
	TrustDomain string
	// Namespace is that of the control plane; its serving names contain it.
	Namespace string
	// Instance is that of this process among the replicas, such as its Pod; it may be empty.
	Instance string
	// Revision is that of the control plane: Istio's objects that are labelled for another one are not used.
	Revision string
}

// Ports are listen addresses; an empty one is not served.
type Ports struct {
	HTTP, GRPC, SecureGRPC, Monitoring, HTTPS string
}

// HTTPOptions are the options of the HTTP ports.
type HTTPOptions struct {
	// OpenDebug allows debug requests of all clients. Otherwise only this host and identities of the
	// control plane's namespace are allowed.
	OpenDebug bool
	// Shutdown is how long open requests may take to end, those for certificates too.
	Shutdown time.Duration
}

// Keepalive has the settings of gRPC connections.
type Keepalive struct {
	// Interval is how long a connection may be silent before it is probed, Timeout how long the
	// response to the probe may take.
	Interval, Timeout time.Duration
	// Drain is within which time streams end when the control plane stops; 0 ends them at once.
	Drain time.Duration
	// MaxAge is the maximum age of a connection, with a jitter of 10 %, so that load is spread over
	// replicas; 0 means no limit.
	MaxAge time.Duration
}

// rootsFile is the trust bundle in the state folder.
const rootsFile = "root-cert.pem"

// maxIdle is how long a gRPC connection may have no call.
const maxIdle = 5 * time.Minute

// CAOptions are the options of the certificate authority and of the secure port.
type CAOptions struct {
	Limits policy.Limits
	// Directory is a directory with the files of a CA, followed; empty for none. Without a CA in it, the
	// root is self-signed.
	Directory string
	// RootTTL is the validity of a root that is created, RootKey its kind of key.
	RootTTL time.Duration
	RootKey pki.KeyKind
	// Off serves no certificates to workloads; Plaintext serves them on the plaintext port too.
	Off, Plaintext bool
	Rotation       Rotation
	// ServingNames are further names or addresses in the certificate of the secure port.
	ServingNames []string
	// MinTLS is the minimum version of TLS, a constant of crypto/tls; 0 means 1.2.
	MinTLS uint16
}

// AuthOptions are the options of the authentication of proxies.
type AuthOptions struct {
	// Audiences are what tokens must be for, one of them; empty means istio-ca.
	Audiences []string
	// Issuers are the OIDC issuers whose tokens are accepted.
	Issuers []authn.Rule
	// Gateways are the addresses whose header x-forwarded-client-cert is trusted.
	Gateways []netip.Prefix
	// CertificatesPerSecond is how many certificates one node, and one connection, may ask for in a
	// second; 0 means no limit.
	CertificatesPerSecond float64
}

// Server is a control plane. Create one with New.
type Server struct {
	opts      Options
	loop      *loop
	source    Source
	scope     *scoped // of the source
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
	limiter          *authn.Limiter
	serving          *ca.Serving
	listeners        listeners
	webhooks         webhooks
	metrics          *prometheus.Registry
	started          time.Time
	done             run.Cleanups
	stopping         atomic.Bool
	// loopLimit is how long the loop may go on after the servers have stopped.
	loopLimit time.Duration
}

type listeners struct{ http, grpc, secure, monitoring, https net.Listener }

// New creates a control plane and opens its ports, which Run closes. It returns an error if the source
// cannot be read and nothing was saved, if the trust domain is ambiguous, if the files in the state
// folder cannot be used, if a port cannot be opened, or if ctx ends while it waits for an API server.
func New(ctx context.Context, o Options) (*Server, error) {
	// Before anything in the folder is read, or set aside because it cannot be.
	if err := statefile.CheckFolder(o.StateDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if o.ConfigDir == "" {
		return newOfCluster(ctx, o)
	}
	kept := openKeeper(o.StateDir, o.ConfigDir, o.Log)
	source, err := dir.New(dir.Options{Dir: o.ConfigDir, Remembered: kept.remembered(false), Log: o.Log})
	if err != nil {
		return nil, err
	}
	return newServer(ctx, o, source, kept)
}

// newOfCluster creates a control plane that reads a cluster.
func newOfCluster(ctx context.Context, o Options) (*Server, error) {
	k := o.Kubernetes
	api, err := kube.Load(k.API)
	if err != nil {
		return nil, err
	}
	kept := openKeeper(o.StateDir, k.Cluster, o.Log)
	remembered := slices.DeleteFunc(kept.remembered(false), func(x object.Object) bool { return x.Origin.File != k.Cluster })
	source, err := kubesource.New(kubesource.Options{
		Config: api, Cluster: k.Cluster, Namespace: o.Names.Namespace, MeshConfigMap: config.MeshConfigMap, Only: k.WatchNamespace, Ignore: k.Ignore, Include: k.Include,
		Remembered: remembered, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	if o.cluster, err = openCluster(&o, api); err != nil {
		return nil, err
	}
	return newServer(ctx, o, source, kept)
}

// findMesh returns the trust domain of the mesh, from the option and the current mesh configuration, and that
// configuration. The root has the domain's name, so that it is needed before the root is opened and before the source
// is watched. If mesh configuration is invalid, its saved version is used.
func findMesh(ctx context.Context, o Options, source Source, file meshFile, remembered []object.Object) (string, *meshv1.MeshConfig, error) {
	var objects []object.Object
	switch s := source.(type) {
	case interface{ ConfigMaps() []object.Object }:
		objects = s.ConfigMaps()
	case interface {
		MeshConfig(context.Context) ([]object.Object, error)
	}:
		var err error
		if objects, err = s.MeshConfig(ctx); err != nil {
			return "", nil, err
		}
	}
	inFile, err := file.readOnce()
	if err != nil && o.Names.TrustDomain == "" {
		return "", nil, err
	}
	if inFile != nil {
		objects = append(objects, *inFile)
	}
	for i, now := range objects {
		before := slices.IndexFunc(remembered, func(r object.Object) bool { return r.Key == now.Key })
		if before >= 0 && config.IsMeshConfig(now.Key, o.Names.Namespace) && config.Rejected(config.Validate(now)) {
			objects[i] = remembered[before]
		}
	}
	domain, err := config.TrustDomain(o.Names.TrustDomain, o.Names.Namespace, objects)
	return domain, config.MeshOf(o.Names.Namespace, objects), err
}

// newServer creates a control plane with a source that has been given the saved objects in kept.
func newServer(ctx context.Context, o Options, source Source, kept *keeper) (_ *Server, err error) {
	s := &Server{opts: o, cluster: o.cluster, source: source, loop: newLoop(o.Names.Domain, o.Compile, o.Lenience, kept, o.Log), metrics: prometheus.NewRegistry(), started: time.Now(), loopLimit: defaultLoopLimit}
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
	domain, atStart, err := findMesh(ctx, o, source, s.meshFile, remembered)
	if err != nil {
		return nil, err
	}
	s.scope = newScoped(o.Names, atStart, s.loop.Emit)
	s.loop.store.SetNamespace(o.Names.Namespace)
	s.loop.store.FixTrustDomain(domain, o.Names.TrustDomain != "")
	s.roots = s.rootStore()
	s.authority, s.plugged, err = ca.Open(ctx, ca.Options{
		Directory: o.CA.Directory, Store: s.roots, TrustDomain: domain, RootTTL: o.CA.RootTTL, RootKey: o.CA.RootKey, Limits: o.CA.Limits, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	issuer, err := authn.OpenIssuer(o.StateDir)
	if err != nil {
		return nil, err
	}
	s.issuers = authn.NewIssuers(o.Auth.Issuers, nil, o.Log)
	s.auth = authn.New(domain, issuer.ForAudiences(o.Auth.Audiences...), authn.WithIssuers(s.issuers), s.cluster.authentication(o.Auth.Audiences, o.Log), authn.WithTrustedGateways(o.Auth.Gateways...))
	s.loop.onMesh = func(m *meshv1.MeshConfig) {
		s.auth.SetTrustDomainAliases(m.GetTrustDomainAliases())
		s.distributeMesh(config.MeshRoots(m))
		s.cluster.setMesh(m)
		s.setInjectorMesh(m)
		s.scope.meshChanged(m)
	}
	s.limiter = authn.NewLimiter(s.auth, o.Auth.CertificatesPerSecond, o.Log)
	s.ca = ca.New(s.authority, s.limiter, o.CA.Limits, o.Log)
	s.xds = xds.New(s.loop, o.Log, s.metrics)
	s.xds.Limit(o.Limits)
	if s.cluster != nil && s.cluster.statuses != nil {
		s.observer = newObserver(s.loop, s.xds.Connection, s.cluster.statuses.Touch)
	}
	if err = s.openRotation(ctx, domain); err != nil {
		return nil, err
	}
	if err = publishRoots(o.StateDir, s.authority.State().RootsPEM()); err != nil {
		return nil, err
	}
	if s.serving, err = s.servingAuthority.ServerCertificate(ca.ServingNames(o.Names.Namespace, o.CA.ServingNames...)); err != nil {
		return nil, err
	}
	s.xds.Introspect(xds.Introspection{
		Namespace: o.Names.Namespace, Open: o.HTTP.OpenDebug, Instance: o.instance(), View: s.connectionView, Page: s.debugPage,
	})
	s.register()
	if err = s.openWebhooks(); err != nil {
		return nil, err
	}
	for _, l := range []struct {
		name, addr string
		to         *net.Listener
	}{
		{"HTTP", o.Ports.HTTP, &s.listeners.http}, {"plaintext gRPC", o.Ports.GRPC, &s.listeners.grpc},
		{"secure gRPC", o.Ports.SecureGRPC, &s.listeners.secure}, {"monitoring", o.Ports.Monitoring, &s.listeners.monitoring},
		{"HTTPS", o.Ports.HTTPS, &s.listeners.https},
	} {
		if l.addr == "" {
			continue
		}
		if *l.to, err = net.Listen("tcp", l.addr); err != nil {
			return nil, fmt.Errorf("open the %s port: %w", l.name, err)
		}
		s.done.Add("close the "+l.name+" port", closeOnce(*l.to))
	}
	return s, nil
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

func closeOnce(l net.Listener) func() error {
	return func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// Addresses returns the addresses of the listeners, with the actual ports.
func (s *Server) Addresses() Ports {
	at := func(l net.Listener) string {
		if l == nil {
			return ""
		}
		return l.Addr().String()
	}
	return Ports{HTTP: at(s.listeners.http), GRPC: at(s.listeners.grpc), SecureGRPC: at(s.listeners.secure), Monitoring: at(s.listeners.monitoring), HTTPS: at(s.listeners.https)}
}

// Run serves until ctx ends, and returns nil then. The loop ends after the servers, since streams that
// end notify it. If it hangs, Run returns an error that says so. Run must be called once.
func (s *Server) Run(ctx context.Context) error {
	a := s.Addresses()
	if l := s.listeners.grpc; l != nil && !isLoopback(l.Addr()) {
		s.opts.Log.Warn("xDS in plaintext is open to other hosts, which get the configuration of any namespace that they claim (--grpcAddr)", "address", a.GRPC)
	}
	if s.listeners.grpc != nil && s.opts.CA.Plaintext && !s.opts.CA.Off {
		s.opts.Log.Warn("certificates are served in plaintext: who can read the connection can use the tokens in it (--plaintext-certificates)", "address", a.GRPC)
	}
	s.opts.Log.Info("serving", "http", a.HTTP, "grpc", a.GRPC, "secure_grpc", a.SecureGRPC, "monitoring", a.Monitoring, "https", a.HTTPS, "version", s.opts.Version)
	loopCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	served, stopped := context.WithCancel(context.WithoutCancel(ctx))
	defer stopped()
	err := run.Group(loopCtx,
		run.Task{Name: "loop", Run: func(loopCtx context.Context) error { return s.runLoop(loopCtx, served) }},
		run.Task{Name: "control plane", Run: func(loopCtx context.Context) error {
			defer stop()
			return s.serve(ctx, loopCtx, stopped)
		}},
	)
	return errors.Join(err, s.done.Close())
}

// defaultLoopLimit is how long the loop may go on after the servers have stopped: longer than any commit, shorter
// than Kubernetes waits for a Pod's end.
const defaultLoopLimit = 15 * time.Second

// runLoop runs the loop until ctx ends. If it has not ended within loopLimit after served has, an event hangs:
// nobody waits for it any more, and the error says so.
func (s *Server) runLoop(ctx, served context.Context) error {
	l, ended := s.loop, make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-served.Done():
	}
	limit := time.NewTimer(s.loopLimit)
	defer limit.Stop()
	select {
	case err := <-ended:
		return err
	case <-limit.C:
	}
	event, busy := l.watchdog.busy()
	busy = busy.Round(time.Millisecond)
	s.opts.Log.Error("the loop has not ended: stopping without it", "doing", event, "for", busy)
	l.end()
	return fmt.Errorf("has not ended within %s: %s for %s", s.loopLimit, event, busy)
}

// serve runs everything but the loop. When ctx ends, the gRPC servers stop first, and everything else when
// they have stopped: meanwhile readiness is reported and configuration is kept up to date. It calls stopped
// when they have.
func (s *Server) serve(ctx, parent context.Context, stopped func()) error {
	life, end := context.WithCancel(parent)
	defer end()
	defer context.AfterFunc(life, stopped)()
	return run.Group(life,
		run.Task{Name: "read configuration", Run: func(ctx context.Context) error {
			// Mesh configuration comes first, since proxies are served once the source has synced.
			select {
			case <-s.meshFile.read:
				return s.source.Run(ctx, s.scope.take)
			case <-ctx.Done():
				return nil
			}
		}},
		run.Task{Name: "follow the selectors of namespaces", Run: s.scope.follow},
		run.Task{Name: "read mesh configuration", Run: func(ctx context.Context) error { return s.meshFile.Run(ctx, s.loop.Emit) }},
		run.Task{Name: "save configuration", Run: func(ctx context.Context) error { return s.loop.kept.run(ctx, s.loop.goodObjects) }},
		run.Task{Name: "follow the CA", Run: func(ctx context.Context) error {
			if s.plugged == nil {
				return nil
			}
			return s.plugged.Run(ctx, s.rotator.Plug)
		}},
		run.Task{Name: "publish the roots", Run: s.publishNewRoots},
		run.Task{Name: "fetch the keys of token issuers", Run: s.issuers.Run},
		run.Task{Name: "distribute the roots", Run: s.distributeRoots},
		run.Task{Name: "rotate the root", Run: s.rotator.Run},
		run.Task{Name: "lead", Run: s.lead},
		run.Task{Name: "observe objects", Run: s.observe},
		run.Task{Name: "warn of the root's end", Run: s.warnOfTheEnd},
		run.Task{Name: "watch the loop", Run: s.loop.watchdog.run},
		run.Task{Name: "serve HTTP", Run: s.serveHTTP(s.listeners.http, s.debugMux())},
		run.Task{Name: "serve metrics", Run: s.serveHTTP(s.listeners.monitoring, s.monitoringMux())},
		run.Task{Name: "serve webhooks", Run: s.serveWebhooks},
		run.Task{Name: "follow the injector's configuration", Run: s.followInjector},
		run.Task{Name: "serve gRPC", Run: func(life context.Context) error {
			defer end()
			serving, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(life, cancel)()
			return run.Group(serving,
				run.Task{Name: "plaintext", Run: s.serveGRPC(s.listeners.grpc, nil)},
				run.Task{Name: "secure", Run: s.serveGRPC(s.listeners.secure, s.serving.TLSConfig(s.opts.CA.MinTLS))},
			)
		}},
	)
}

// isLoopback reports whether only this host can reach an address.
func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func (s *Server) serveHTTP(l net.Listener, h http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		if l == nil {
			return nil
		}
		srv := httpguard.Server(h)
		srv.MaxHeaderBytes = 64 << 10 // tokens may be long
		// Whoever connects could fill the log.
		srv.ErrorLog = slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug)
		stop := context.AfterFunc(ctx, func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.HTTP.Shutdown)
			defer cancel()
			if srv.Shutdown(bounded) != nil {
				_ = srv.Close() // close connections that have not ended in time
			}
		})
		defer stop()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// serveGRPC returns the task of one gRPC port. When its context ends, streams are told to go and ended
// within Keepalive.Drain, and other calls may take HTTP.Shutdown longer.
func (s *Server) serveGRPC(l net.Listener, secure *tls.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		if l == nil {
			<-ctx.Done() // the end of this task is the end of the control plane
			s.refuseProxies()
			return nil
		}
		k := s.opts.Keepalive
		creds := insecure.NewCredentials()
		var auth xds.Authenticate
		if secure != nil {
			creds = credentials.NewTLS(secure)
			auth = s.auth.AuthenticateUntil
		}
		srv := grpc.NewServer(append(s.xds.ServerOptions(creds), grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: k.Interval, Timeout: k.Timeout, MaxConnectionAge: k.MaxAge, MaxConnectionAgeGrace: 10 * time.Second,
			// Agents reconnect when they need a connection.
			MaxConnectionIdle: maxIdle,
		}))...)
		s.xds.Register(srv, auth)
		if !s.opts.CA.Off && (secure != nil || s.opts.CA.Plaintext) {
			s.ca.Register(srv)
		}
		stopped := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(stopped)
			s.refuseProxies()
			s.xds.Drain(k.Drain)
			limit := time.AfterFunc(k.Drain+s.opts.HTTP.Shutdown, srv.Stop)
			defer limit.Stop()
			srv.GracefulStop()
		})
		err := srv.Serve(s.xds.Listen(l))
		if stop() { // it has failed, and has not been stopped
			srv.Stop()
			return err
		}
		<-stopped
		return nil
	}
}

// refuseProxies makes readiness fail, and logs once why.
func (s *Server) refuseProxies() {
	if !s.stopping.Swap(true) {
		s.opts.Log.Info("stopping: no new streams are accepted", "streams", len(s.xds.Connections()))
	}
}
