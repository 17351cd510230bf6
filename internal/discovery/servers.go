package discovery

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/httpguard"
	"github.com/pilothouse/pilothouse/internal/run"
)

// maxIdle is how long a gRPC connection may have no call.
const maxIdle = 5 * time.Minute

func closeOnce(l net.Listener) func() error {
	return func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// maxOwnAddresses bounds how many addresses of this machine are in its certificate.
const maxOwnAddresses = 64

// ownAddresses are the addresses of this machine by which others may reach it: names of its certificate.
func ownAddresses() (out []string) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the names of Services, and --servingName, do without
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && len(out) < maxOwnAddresses {
			out = append(out, n.IP.String())
		}
	}
	return out
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
		run.Task{Name: "follow configSources", Run: s.followConfigSources},
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
		run.Task{Name: "fetch the keys of RequestAuthentications", Run: func(ctx context.Context) error { return s.keys.Run(ctx, s.loop.EmitKeys) }},
		run.Task{Name: "distribute the roots", Run: s.distributeRoots},
		run.Task{Name: "rotate the root", Run: s.rotator.Run},
		run.Task{Name: "lead", Run: s.lead},
		run.Task{Name: "register proxies", Run: s.runRegistrar},
		run.Task{Name: "observe objects", Run: s.observe},
		run.Task{Name: "read the Secrets of gateways", Run: s.readSecrets},
		run.Task{Name: "follow the Secrets of Gateways", Run: s.followSecrets},
		run.Task{Name: "warn of the root's end", Run: s.warnOfTheEnd},
		run.Task{Name: "watch the loop", Run: s.loop.watchdog.run},
		run.Task{Name: "update pages", Run: s.hub.Run},
		run.Task{Name: "ask for rates of requests", Run: s.askForTraffic},
		run.Task{Name: "serve HTTP", Run: s.serveHTTP(s.listeners.http, s.debugMux())},
		run.Task{Name: "serve metrics", Run: s.serveHTTP(s.listeners.monitoring, s.monitoringMux())},
		run.Task{Name: "serve webhooks", Run: s.serveWebhooks},
		run.Task{Name: "renew the webhooks' certificate", Run: s.handOver},
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

func (s *Server) serveHTTP(l net.Listener, h http.Handler, more ...func(*http.Server)) func(context.Context) error {
	return func(ctx context.Context) error {
		if l == nil {
			return nil
		}
		srv := httpguard.Server(h)
		srv.MaxHeaderBytes = 64 << 10 // tokens may be long
		// Whoever connects could fill the log.
		srv.ErrorLog = slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug)
		for _, set := range more {
			set(srv)
		}
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
