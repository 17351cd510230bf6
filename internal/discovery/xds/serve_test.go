package xds

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// oneClass is a registry in which all proxies are alike.
type oneClass struct {
	latest *LatestView
	mu     sync.Mutex
	seen   []mesh.Node
	gone   int
	err    error
}

func (r *oneClass) Join(_ context.Context, n mesh.Node, _ mesh.Identity, _ string) (*LatestView, func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, nil, r.err
	}
	r.seen = append(r.seen, n)
	return r.latest, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gone++
	}, nil
}

// serveOn runs a server of ours on a listener until the function is called or the test
// ends.
func serveOn(t testing.TB, l net.Listener, s *Server, auth Authenticate, more ...grpc.ServerOption) (stop func()) {
	g := grpc.NewServer(append(serverOptions(s), more...)...)
	s.Register(g, auth)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(s.Listen(l))
	}()
	stop = sync.OnceFunc(func() { g.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

// quiet is a logger for tests: shown only when they fail.
func quiet(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// serverOptions are those of a gRPC server for s in plaintext.
func serverOptions(s *Server) []grpc.ServerOption { return s.ServerOptions(insecure.NewCredentials()) }

// textLog is a logger that writes to w.
func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// as authenticates every caller as one identity, without an end.
func as(id mesh.Identity) Authenticate {
	return func(context.Context) (mesh.Identity, time.Time, error) { return id, time.Time{}, nil }
}
