// Package secret obtains and renews a workload's identity: its private key, its certificates and the roots it trusts.
//
// Current never blocks and returns one consistent value, which is served until its
// successor exists, whatever fails in the meantime. Keys are
// generated here and are sent only to the local Envoy. Run does all the waiting and
// retrying, so that no other part of the agent waits for the CA. Values come from the CA
// (Keeper) or from files (Files), and both publish them into a Value. Named holds the other secrets,
// which clusters name by the paths of files.
package secret

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// signTimeout bounds one call to the signer, connection included.
const signTimeout = 15 * time.Second

// Signer signs a certificate request (PEM). It returns a chain (PEM, leaf first; a root may be
// in it) and the roots to trust (PEM).
type Signer interface {
	Sign(ctx context.Context, csr []byte, ttl time.Duration) (chain, roots []byte, err error)
}

// Options say which certificate to request and when. Ratio and Jitter have no default: 0 means 0.
type Options struct {
	// Identity is the identity in the requests; the CA decides which one it signs.
	Identity mesh.Identity
	KeyKind  pki.KeyKind
	// PKCS8 encodes the key as PKCS #8.
	PKCS8 bool
	// TTL is the requested lifetime; 0 means settings.DefaultSecretTTL. [agent E14]
	TTL time.Duration
	// Ratio is the share of the lifetime that is left at the renewal, Jitter its greatest random change; both 0–1.
	Ratio, Jitter float64
}

// Keeper obtains a certificate from a Signer and renews it.
type Keeper struct {
	*Value
	options Options
	signer  Signer
	log     *slog.Logger
}

// NewKeeper makes a keeper that publishes into v. Run makes the requests.
func NewKeeper(v *Value, o Options, signer Signer, log *slog.Logger) *Keeper {
	if o.TTL == 0 {
		o.TTL = settings.DefaultSecretTTL
	}
	return &Keeper{Value: v, options: o, signer: signer, log: log}
}

// Run requests the first certificate at once, then renews it before it expires, until ctx
// ends; it returns nil then. Failures are logged and retried without a limit. Call it once.
func (k *Keeper) Run(ctx context.Context) error {
	for failures := 0; ; {
		var wait time.Duration
		started := time.Now()
		s, err := k.renew(ctx)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			wait = retry(failures, k.left(now), 2*rand.Float64()-1)
			k.fail(err)
			k.log.Warn("certificate not renewed", "reason", err, "attempt", failures, "next", wait.Round(time.Millisecond), "left", max(k.left(now), 0).Round(time.Second))
		default:
			failures = 0
			k.publish(s)
			wait = untilDue(k.due(s, started), now)
			k.log.Info("certificate obtained", "version", s.Version, "until", s.NotAfter, "renewal", now.Add(wait))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// due measures the lifetime from the request, because the CA backdates certificates.
func (k *Keeper) due(s *pki.Secret, asked time.Time) time.Time {
	created := s.NotBefore
	if asked.After(created) {
		created = asked
	}
	return due(created, s.NotAfter, k.options.Ratio, k.options.Jitter*(2*rand.Float64()-1))
}

func (k *Keeper) renew(ctx context.Context) (*pki.Secret, error) {
	key, err := pki.GenerateKey(k.options.KeyKind)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	csr, err := pki.MakeCSR(key, k.options.Identity)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	chain, roots, err := k.signer.Sign(ctx, csr, k.options.TTL)
	if err != nil {
		return nil, err
	}
	text, err := pki.EncodeKey(key, k.options.PKCS8)
	if err != nil {
		return nil, err
	}
	s, err := pki.NewSecret(text, chain, roots, time.Now())
	if err != nil {
		return nil, fmt.Errorf("check the CA's response: %w", err)
	}
	return s, nil
}
