package authn

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// logPause is the least time between two lines of the log about the same trouble, which callers can cause.
const logPause = 10 * time.Second

// Limiter authenticates like its Authenticator, and bounds how often each connection and each node calls.
// All replicas of a workload have the same identity, so that a node is the Pod that a token is bound to,
// or else an identity at an address. Calls beyond the limit are ResourceExhausted. It is safe for
// concurrent use.
type Limiter struct {
	auth *Authenticator
	log  *slog.Logger

	mu                 sync.Mutex // guards what follows
	connections, nodes *rates     // nil without a limit
	refused            int64
	logged             time.Time
	unlogged           int
}

// NewLimiter creates a limiter of so many calls in a second of one connection, and of one node; after a
// pause they may make as many at once as in 10 s. 0 means no limit.
func NewLimiter(auth *Authenticator, perSecond float64, log *slog.Logger) *Limiter {
	l := &Limiter{auth: auth, log: log}
	if perSecond > 0 {
		l.connections, l.nodes = newRates(perSecond), newRates(perSecond)
	}
	return l
}

// TrustDomains returns those of the Authenticator.
func (l *Limiter) TrustDomains() []string { return l.auth.TrustDomains() }

// Refused returns how many calls were refused because of the limits.
func (l *Limiter) Refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// AuthenticateForCertificate is that of the Authenticator. The connection is checked before its credentials, which
// cost more. Errors may also have the code ResourceExhausted.
func (l *Limiter) AuthenticateForCertificate(ctx context.Context) (mesh.Identity, Redeem, error) {
	var at string
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		at = p.Addr.String()
	}
	if err := l.take("connection", l.connections, at, at); err != nil {
		return mesh.Identity{}, nil, err
	}
	c, err := l.auth.authenticate(ctx)
	if err != nil {
		return mesh.Identity{}, nil, err
	}
	if err := l.take("node", l.nodes, nodeOf(ctx, c), at); err != nil {
		return mesh.Identity{}, nil, err
	}
	redeem, err := l.auth.redeem(c)
	return c.id, redeem, err
}

// nodeOf names the node that a caller is on.
func nodeOf(ctx context.Context, c caller) string {
	if c.pod != "" {
		return c.id.SPIFFE() + " pod " + c.pod
	}
	from, _ := addressOf(ctx)
	return c.id.SPIFFE() + " at " + from.String()
}

// take counts a call of one connection or node.
func (l *Limiter) take(what string, r *rates, name, at string) error {
	if r == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	wait := r.take(name, now)
	if wait == 0 {
		return nil
	}
	l.refused++
	if l.unlogged++; now.Sub(l.logged) >= logPause {
		l.log.Warn("certificate requests refused: too many", "of", what, "name", name, "address", at, "refused", l.unlogged)
		l.logged, l.unlogged = now, 0
	}
	return status.Errorf(codes.ResourceExhausted, "more than %g certificate requests a second of one %s (PILOTHOUSE_CERTIFICATES_PER_SECOND); try again in %s",
		r.perSecond, what, wait.Round(time.Millisecond)+time.Millisecond)
}
