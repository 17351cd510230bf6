package authn

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/run"
)

// When keys are fetched.
const (
	// refreshInterval is the age at which keys are fetched again.
	refreshInterval = 20 * time.Minute
	// fetchGap is the least time between two fetches because of tokens with unknown keys, which anybody
	// can send.
	fetchGap = 10 * time.Second
	// retryFirst and retryMost bound the pause after a fetch that failed.
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Issuers verify the tokens of OIDC issuers. Run fetches their keys. If an issuer cannot be reached, its
// last good keys stay in use. It is safe for concurrent use.
type Issuers struct{ list []*issuer }

// issuer is one OIDC issuer.
type issuer struct {
	rule  Rule
	fetch func(ctx context.Context) (*keySet, error)
	log   *slog.Logger
	// asked has an element if a token has a key that is not known.
	asked chan struct{}

	mu sync.Mutex // guards fetched
	fetched
}

// fetched is the result of the fetches of an issuer's keys so far.
type fetched struct {
	keys *keySet // the last good ones; nil before the first
	// at is when the last fetch ended, zero before the first; err is its error.
	at  time.Time
	err error
	// next is closed when the next fetch has ended.
	next chan struct{}
}

// NewIssuers returns the issuers of the rules. A nil transport means HTTP with the proxies of the
// environment and the roots of the system (SSL_CERT_FILE).
func NewIssuers(rules []Rule, transport http.RoundTripper, log *slog.Logger) *Issuers {
	s := &Issuers{}
	for _, r := range rules {
		s.list = append(s.list, &issuer{
			rule: r, fetch: fetcher(r, transport), log: log.With("issuer", r.issuer), asked: make(chan struct{}, 1),
			fetched: fetched{keys: r.keys, next: make(chan struct{})},
		})
	}
	return s
}

// Run fetches the keys of all issuers now, when they are old, and when a token has an unknown key. It
// returns nil when ctx ends.
func (s *Issuers) Run(ctx context.Context) error {
	tasks := []run.Task{{Name: "wait", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}}
	for _, i := range s.list {
		if i.rule.keys == nil {
			tasks = append(tasks, run.Task{Name: "fetch the keys of " + i.rule.issuer, Run: i.run})
		}
	}
	return run.Group(ctx, tasks...)
}

func (i *issuer) run(ctx context.Context) error {
	for failures := 0; ; {
		bounded, cancel := context.WithTimeout(ctx, i.rule.timeout)
		keys, err := i.fetch(bounded)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		kept := i.store(keys, err)
		pause := refreshInterval
		switch {
		case err != nil:
			pause = min(retryFirst<<min(failures, 10), retryMost)
			failures++
			i.log.Warn("the keys of a token issuer could not be fetched", "error", err, "pause", pause, "last_good_kept", kept)
		case failures > 0:
			failures = 0
			i.log.Info("the keys of a token issuer were fetched")
		}
		if !i.wait(ctx, pause) {
			return nil
		}
	}
}

// wait returns true when the next fetch is due, and false when ctx has ended.
func (i *issuer) wait(ctx context.Context, pause time.Duration) bool {
	// Replicas that started together do not ask together.
	timer := time.NewTimer(pause - rand.N(pause/10))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-i.asked:
			// The fetch that has just ended is the answer to who asked during it.
			if time.Since(i.current().at) >= fetchGap {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// store records the result of a fetch and wakes those who wait for it. It reports whether older keys stay in use.
func (i *issuer) store(keys *keySet, err error) (kept bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.next)
	i.at, i.err, i.next = time.Now(), err, make(chan struct{})
	if err == nil {
		i.keys = keys
	}
	return err != nil && i.keys != nil
}

func (i *issuer) current() fetched {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetched
}

// accepts implements verifier.
func (i *issuer) accepts(iss string) bool { return iss == i.rule.issuer }

// verify implements verifier.
func (i *issuer) verify(ctx context.Context, t *token, now time.Time) (Subject, error) {
	// What the token says is checked first, so that keys are not fetched for one that would be refused anyway.
	if err := t.claimed.check(i.rule.issuer, i.rule.audiences, now); err != nil {
		return Subject{}, err
	}
	keys, err := i.keysOf(ctx, t)
	if err != nil {
		return Subject{}, err
	}
	c, err := t.verify(keys, "issuer "+printable.Quote(i.rule.issuer, maxShown))
	if err != nil {
		return Subject{}, err
	}
	if err := c.check(i.rule.issuer, i.rule.audiences, now); err != nil {
		return Subject{}, err
	}
	return c.subject()
}

// keysOf returns the keys that may have signed a token. If none is known, it waits for one fetch, unless
// the last one has just ended.
func (i *issuer) keysOf(ctx context.Context, t *token) ([]any, error) {
	state := i.current()
	if found := state.keys.find(t.keyID, t.signedWith); len(found) > 0 {
		return found, nil
	}
	if i.rule.keys == nil && (state.at.IsZero() || time.Since(state.at) >= fetchGap) {
		if !state.at.IsZero() {
			select {
			case i.asked <- struct{}{}:
			default: // somebody else has asked
			}
		}
		bounded, cancel := context.WithTimeout(ctx, i.rule.timeout)
		defer cancel()
		select {
		case <-state.next:
		case <-bounded.Done():
			return nil, unavailable("the keys of issuer %q could not be fetched in time", i.rule.issuer)
		}
		state = i.current()
		if found := state.keys.find(t.keyID, t.signedWith); len(found) > 0 {
			return found, nil
		}
	}
	if state.err != nil {
		// The log says why. Callers, whoever they are, need not know what pilot-discovery connects to.
		return nil, unavailable("the keys of issuer %q could not be fetched", i.rule.issuer)
	}
	return nil, rejected(BadSignature, "issuer %q has no key %s for %s", i.rule.issuer, printable.Quote(t.keyID, maxShown), t.signedWith)
}

// unavailableError says that a token could be neither verified nor rejected. The caller may try again.
type unavailableError struct{ text string }

// Error returns the text.
func (e *unavailableError) Error() string { return "bearer token: " + e.text }

func unavailable(format string, args ...any) error {
	return &unavailableError{fmt.Sprintf(format, args...)}
}
