// Package secret obtains and renews a workload's identity: its private key, its certificates and the roots it trusts.
//
// Current never blocks and returns one consistent value, which is served until its
// successor exists, whatever fails in the meantime. Keys are
// generated here and are sent only to the local Envoy. Run does all the waiting and
// retrying, so that no other part of the agent waits for the CA. Values come from the CA
// (Keeper) or from files (Files), and both publish them into a Value. A Copy lets a restarted agent serve the
// value of its predecessor. Named holds the other secrets, which clusters name by the paths of files.
package secret

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// signTimeout bounds one request, with all addresses of the signer.
const signTimeout = time.Minute

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
	// Source is the name of the signer, such as its address. A copy of another signer's certificate is not used.
	Source string
	// Copy keeps a copy of the current certificate; nil for none.
	Copy *Copy
}

// State says what a Keeper has done and what it does next. Times are of the wall clock.
type State struct {
	// Received is when the current certificate was requested; zero if there is none. Restored says that it
	// is the copy of an earlier agent.
	Received time.Time
	Restored bool
	// Next is when the next request is made; zero before the first one.
	Next time.Time
	// Failures counts the failed requests since the last success.
	Failures int
	// Requests, Failed and Retries count requests since the start; Retries are those that follow a failure.
	Requests, Failed, Retries int
	// Waited is the time that all requests have taken together.
	Waited time.Duration
}

// Keeper obtains a certificate from a Signer and renews it.
type Keeper struct {
	*Value
	options Options
	signer  Signer
	log     *slog.Logger
	clock   func() reading
	random  func() float64 // 0 to 1

	mu    sync.Mutex
	state State
}

// NewKeeper makes a keeper that publishes into v. Run makes the requests.
func NewKeeper(v *Value, o Options, signer Signer, log *slog.Logger) *Keeper {
	if o.TTL == 0 {
		o.TTL = settings.DefaultSecretTTL
	}
	if o.KeyKind == "" {
		o.KeyKind = pki.ECDSAP256
	}
	start := time.Now()
	clock := func() reading { return reading{wall: time.Now().Round(0), up: time.Since(start)} }
	return &Keeper{Value: v, options: o, signer: signer, log: log, clock: clock, random: rand.Float64}
}

// State returns the current state. Any goroutine may call it.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

func (k *Keeper) update(f func(*State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.state)
}

// Run publishes the copy of an earlier agent's certificate if there is one, requests a certificate when one
// is due, until ctx ends, and then returns nil. Failures are logged and retried without a limit.
// Call it once.
func (k *Keeper) Run(ctx context.Context) error {
	s := schedule{held: k.restore()}
	for {
		now := k.clock()
		wait := s.next(now)
		k.update(func(st *State) { st.Next = now.wall.Add(wait) })
		if wait > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(min(wait, reevaluate)):
			}
			continue
		}
		if s = k.request(ctx, s, now); ctx.Err() != nil {
			return nil
		}
	}
}

// request makes one request and returns the schedule after it.
func (k *Keeper) request(ctx context.Context, s schedule, asked reading) schedule {
	value, err := k.renew(ctx, asked.wall)
	now := k.clock()
	if ctx.Err() != nil {
		return s
	}
	k.update(func(st *State) {
		st.Requests++
		st.Waited += now.since(asked)
		if s.failures > 0 {
			st.Retries++
		}
	})
	if err != nil {
		s.failures, s.failed, s.draw = s.failures+1, now, k.random()
		k.fail(err)
		k.update(func(st *State) { st.Failed, st.Failures = st.Failed+1, s.failures })
		left := max(k.left(now.wall), 0)
		k.log.Warn("certificate not renewed", "reason", err, "attempt", s.failures, "next", s.next(now).Round(time.Millisecond), "left", left.Round(time.Second))
		return s
	}
	k.publish(value)
	k.update(func(st *State) { st.Received, st.Restored, st.Failures = asked.wall, false, 0 })
	s = schedule{held: k.hold(value, asked)}
	k.log.Info("certificate obtained", "version", value.Version, "until", value.NotAfter, "renewal", now.wall.Add(s.next(now)))
	k.warn(value, now.wall)
	if k.options.Copy != nil {
		k.options.Copy.save(saved{Source: k.options.Source, Received: asked.wall, Key: value.Key, Chain: value.Chain, Roots: value.Roots})
	}
	return s
}

// warn logs what is wrong with a certificate that is used nevertheless.
func (k *Keeper) warn(s *pki.Secret, now time.Time) {
	if s.EndsWithIssuer() {
		k.log.Error("the certificate ends because a certificate that signed it ends: no renewal can last longer", "until", s.IssuerNotAfter,
			"remedy", "renew the root or the intermediate certificate of the CA")
	}
	if now.Before(s.NotBefore) {
		k.log.Warn("the certificate is not valid yet", "from", s.NotBefore, "now", now, "remedy", "set the clocks of this machine and of the CA")
	}
}

// hold describes a secret that was requested at a time.
func (k *Keeper) hold(s *pki.Secret, asked reading) *held {
	left := share(k.options.Ratio, k.options.Jitter*(2*k.random()-1))
	return &held{received: asked, notBefore: s.NotBefore, notAfter: s.NotAfter, left: left}
}

// restore publishes the copy of an earlier agent's certificate. Its renewal is due at once, but for the gap
// after a success: a restarted agent asks for a certificate of today's roots and options.
func (k *Keeper) restore() *held {
	if k.options.Copy == nil {
		return nil
	}
	now := k.clock()
	c, err := k.options.Copy.load()
	if c == nil && err == nil {
		return nil
	}
	var value *pki.Secret
	var kind pki.KeyKind
	if err == nil {
		value, kind, err = c.secret(k.options, now.wall)
	}
	if err != nil {
		k.log.Warn("the copy of the certificate is not used", "reason", err)
		return nil
	}
	k.publish(value)
	k.update(func(st *State) { st.Received, st.Restored = c.Received, true })
	k.log.Info("certificate of the last agent is used", "version", value.Version, "until", value.NotAfter, "received", c.Received)
	k.warn(value, now.wall)
	age := max(now.wall.Sub(c.Received), 0)
	return &held{
		received:  reading{wall: now.wall.Add(-age), up: now.up - age},
		notBefore: value.NotBefore, notAfter: value.NotAfter, left: 1, unwanted: kind != k.options.KeyKind,
	}
}

func (k *Keeper) renew(ctx context.Context, now time.Time) (*pki.Secret, error) {
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
	s, err := pki.NewSecret(text, chain, roots, validTime(chain, now))
	if err != nil {
		return nil, fmt.Errorf("check the CA's response: %w", err)
	}
	return s, nil
}

// validTime returns the time at which to verify a chain that was received now: a chain that is not valid yet, because
// the clock of this machine is behind that of the CA, is used, since peers judge by their own clocks.
func validTime(chain []byte, now time.Time) time.Time {
	certs, err := pki.ParseBundle(chain)
	if err != nil {
		return now // NewSecret says why
	}
	if begin := pki.ValidityOf(certs).NotBefore; begin.After(now) {
		return begin
	}
	return now
}
