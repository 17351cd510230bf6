package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/httpguard"
)

// tap serves pages of the control plane to this machine, on a port of its own. [agent X11, P4]
type tap struct {
	listener net.Listener
	server   *http.Server
}

// tapPages is the path below which the pages are.
const tapPages = "/debug/"

// newTap takes the port; the result is nil if no setting asks for it.
func newTap(ctx context.Context, s *spec.Spec, xds *xdsproxy.Proxy, log *slog.Logger) (*tap, error) {
	if s.Status.XDSPort == 0 {
		return nil, nil
	}
	l, err := claim.Port(ctx, net.JoinHostPort(s.Loopback(), strconv.Itoa(s.Status.XDSPort)), 0)
	if err != nil {
		return nil, fmt.Errorf("take the port for pages of the control plane (XDS_DEBUG_PORT): %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc(tapPages, status.Local(xds.Pages(tapPages).ServeHTTP))
	server := httpguard.Server(mux)
	server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return &tap{listener: l, server: server}, nil
}

func (t *tap) close() error {
	if t == nil {
		return nil
	}
	return t.listener.Close()
}

// run serves until ctx ends.
func (t *tap) run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- t.server.Serve(t.listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve pages of the control plane on %s: %w", t.listener.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if t.server.Shutdown(end) != nil {
		_ = t.server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
