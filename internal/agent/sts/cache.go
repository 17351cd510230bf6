package sts

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxTokens is how many tokens are held; the one that ends first makes room.
	maxTokens = 64
	// maxExchanges is how many exchanges run at once.
	maxExchanges = 8
	// exchangeTimeout bounds an exchange.
	exchangeTimeout = 30 * time.Second
	// renewBefore is how long before its end a token is replaced when somebody asks for it; at half of its life if that is later.
	renewBefore = 5 * time.Minute
)

// Token is a token that was issued.
type Token struct {
	Value string
	// Type says what was exchanged: federated token or access token.
	Type        string
	Issued, End time.Time
}

// TokenState is what is told of a token.
type TokenState struct {
	Type   string    `json:"token_type"`
	Issued time.Time `json:"issue_time"`
	End    time.Time `json:"expire_time"`
}

// cache exchanges tokens and remembers the results. All methods are safe for concurrent use.
type cache struct {
	exchange func(context.Context, Request) (Token, error)
	tokenEnd func(string) time.Time
	log      *slog.Logger
	slots    chan struct{}
	ctx      context.Context // of renewals
	stop     context.CancelFunc
	renewals sync.WaitGroup

	mu      sync.Mutex
	entries map[[sha256.Size]byte]*entry
	closed  bool
}

// entry is a token, or the exchange for it that runs.
type entry struct {
	token Token
	// until is when the token is not given any more: at its end, or at that of the token that it was exchanged for.
	until time.Time
	// running is closed at the end of the exchange that runs; nil if none does. Its result is err.
	running chan struct{}
	err     error
}

func newCache(exchange func(context.Context, Request) (Token, error), tokenEnd func(string) time.Time, log *slog.Logger) *cache {
	c := &cache{exchange: exchange, tokenEnd: tokenEnd, log: log, slots: make(chan struct{}, maxExchanges), entries: map[[sha256.Size]byte]*entry{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// close ends what runs, and waits for it.
func (c *cache) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.renewals.Wait()
}

func key(r Request) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join([]string{r.SubjectToken, r.Audience, r.Scope}, "\n")))
}

// get returns a token for a request. Concurrent calls for the same one share one exchange, which runs on after a call's end.
func (c *cache) get(ctx context.Context, r Request) (Token, error) {
	if c.exchange == nil {
		return Token{}, errors.New("no plugin exchanges tokens: set --tokenManagerPlugin")
	}
	now := time.Now()
	k := key(r)
	c.mu.Lock()
	e := c.entries[k]
	if e == nil {
		if !c.room() {
			c.mu.Unlock()
			return Token{}, errors.New("too many tokens are being exchanged")
		}
		e = &entry{}
		c.entries[k] = e
	}
	if now.Before(e.until) {
		t := e.token
		if now.After(renewal(t)) {
			c.start(k, e, r)
		}
		c.mu.Unlock()
		return t, nil
	}
	c.start(k, e, r)
	running := e.running
	c.mu.Unlock()
	if running == nil {
		return Token{}, errors.New("the agent ends")
	}
	select {
	case <-running:
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.token, e.err
}

// renewal is when a token is to be replaced.
func renewal(t Token) time.Time {
	half := t.Issued.Add(t.End.Sub(t.Issued) / 2)
	if before := t.End.Add(-renewBefore); before.After(half) {
		return before
	}
	return half
}

// start starts the exchange of an entry unless it runs. The caller holds mu.
func (c *cache) start(k [sha256.Size]byte, e *entry, r Request) {
	if e.running != nil || c.closed {
		return
	}
	done := make(chan struct{})
	e.running = done
	c.renewals.Go(func() {
		t, err := c.once(r)
		c.mu.Lock()
		defer c.mu.Unlock()
		defer close(done)
		now := time.Now()
		e.running, e.err = nil, err
		switch {
		case err == nil:
			e.token, e.until = t, t.End
			if end := c.tokenEnd(r.SubjectToken); !end.IsZero() && end.Before(t.End) {
				e.until = end
			}
		case now.Before(e.until):
			c.log.Warn("a token was not renewed", "until", e.until, "error", err)
		default:
			e.token = Token{}
			delete(c.entries, k)
		}
	})
}

// once runs one exchange when there is room for it.
func (c *cache) once(r Request) (Token, error) {
	ctx, cancel := context.WithTimeout(c.ctx, exchangeTimeout)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
	defer func() { <-c.slots }()
	return c.exchange(ctx, r)
}

// room makes room for one more entry; the caller holds mu. It fails if all entries are being exchanged.
func (c *cache) room() bool {
	if len(c.entries) < maxTokens {
		return true
	}
	var first [sha256.Size]byte
	var found *entry
	for k, e := range c.entries {
		if e.running == nil && (found == nil || e.until.Before(found.until)) {
			first, found = k, e
		}
	}
	if found == nil {
		return false
	}
	delete(c.entries, first)
	return true
}

// states are those of the tokens that are given, the one that ends first first.
func (c *cache) states() []TokenState {
	now := time.Now()
	out := []TokenState{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if now.Before(e.until) {
			out = append(out, TokenState{Type: e.token.Type, Issued: e.token.Issued.UTC(), End: e.token.End.UTC()})
		}
	}
	slices.SortFunc(out, func(a, b TokenState) int { return a.End.Compare(b.End) })
	return out
}
