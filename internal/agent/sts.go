package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/sts"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/claim"
)

// newSTS takes the port of the token service; the result is nil if no setting asks for it. [agent T1–T5]
func newSTS(ctx context.Context, s *spec.Spec, log *slog.Logger) (*sts.Server, error) {
	if s.STS.Port == 0 {
		return nil, nil
	}
	l, err := claim.Port(ctx, net.JoinHostPort(s.Loopback(), strconv.Itoa(s.STS.Port)), 0)
	if err != nil {
		return nil, fmt.Errorf("take the port of the token service (--stsPort): %w", claim.PortError(err))
	}
	o := sts.Options{Listener: l, TokenEnd: upstream.TokenExpiry, Log: log}
	if g := s.STS.Google; g != nil {
		plugin := sts.NewGoogle(sts.GoogleOptions{
			Audience: g.Audience, TokenURL: g.TokenURL, AccessURL: g.AccessURL,
			TLS: func() (*tls.Config, error) { return upstream.ClientTLS("token service", g.RootFile, s.TLS) },
		})
		o.Plugin, o.Exchange = sts.PluginGoogle, plugin.Exchange
	}
	return sts.New(o), nil
}
