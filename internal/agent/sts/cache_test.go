package sts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// exchanges is a plugin that counts, of tokens that live for an hour.
type exchanges struct {
	n    atomic.Int32
	err  error
	wait time.Duration
}

func (e *exchanges) exchange(ctx context.Context, r Request) (Token, error) {
	n := e.n.Add(1)
	select {
	case <-time.After(e.wait):
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
	if e.err != nil {
		return Token{}, e.err
	}
	now := time.Now()
	return Token{Value: fmt.Sprintf("%s-%d", r.SubjectToken, n), Type: "access token", Issued: now, End: now.Add(time.Hour)}, nil
}

// pass lets time pass on the clock of a bubble.
func pass(d time.Duration) { <-time.After(d) }

func never(string) time.Time { return time.Time{} }

func mustGet(t *testing.T, c *cache, r Request) string {
	t.Helper()
	got, err := c.get(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got.Value
}

func TestTokensAreKeptAndRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &exchanges{wait: time.Second}
		c := newCache(e.exchange, never, slog.New(slog.DiscardHandler))
		defer c.close()
		a, b := Request{SubjectToken: "a"}, Request{SubjectToken: "a", Scope: "s"}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if got := mustGet(t, c, a); got != "a-1" {
					t.Errorf("token %s, want the one of the one exchange", got)
				}
			})
		}
		all.Wait()
		if got := mustGet(t, c, b); got != "a-2" {
			t.Errorf("token %s for another scope, want another one", got)
		}
		pass(54 * time.Minute)
		if got := mustGet(t, c, a); got != "a-1" || e.n.Load() != 2 {
			t.Errorf("token %s after %d exchanges", got, e.n.Load())
		}
		// Five minutes before its end it is replaced, and given as long as it is valid.
		pass(90 * time.Second)
		if got := mustGet(t, c, a); got != "a-1" {
			t.Errorf("token %s while another one is got", got)
		}
		pass(2 * time.Second)
		if got := mustGet(t, c, a); got != "a-3" || len(c.states()) != 2 {
			t.Errorf("token %s, states %v", got, c.states())
		}
		// While it cannot be renewed, it is given until its end.
		e.err = errors.New("away")
		pass(58 * time.Minute)
		if got := mustGet(t, c, a); got != "a-3" {
			t.Errorf("token %s while none can be had", got)
		}
		pass(3 * time.Minute)
		if _, err := c.get(t.Context(), a); !errors.Is(err, e.err) {
			t.Errorf("error %v after the token's end", err)
		}
		if left := c.states(); len(left) != 0 {
			t.Errorf("states %v", left)
		}
	})
}

// A token is not given to one whose own token has ended.
func TestATokenLivesNoLongerThanItsSubject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, end := &exchanges{}, time.Now().Add(10*time.Minute)
		c := newCache(e.exchange, func(string) time.Time { return end }, slog.New(slog.DiscardHandler))
		defer c.close()
		mustGet(t, c, Request{SubjectToken: "a"})
		pass(11 * time.Minute)
		e.err = errors.New("the token has expired")
		if got, err := c.get(t.Context(), Request{SubjectToken: "a"}); !errors.Is(err, e.err) {
			t.Errorf("token %v, %v", got, err)
		}
	})
}

// Floods of tokens are bounded, and end with the server.
func TestTheCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &exchanges{}
		c := newCache(e.exchange, never, slog.New(slog.DiscardHandler))
		for i := range 3 * maxTokens {
			mustGet(t, c, Request{SubjectToken: fmt.Sprint(i)})
		}
		if n := len(c.states()); n != maxTokens {
			t.Errorf("%d tokens are held, want %d", n, maxTokens)
		}
		e.wait = 2 * exchangeTimeout
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var refused atomic.Int32
		var all sync.WaitGroup
		for i := range 2 * maxTokens {
			all.Go(func() {
				if _, err := c.get(ctx, Request{SubjectToken: fmt.Sprint("slow", i)}); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if n := refused.Load(); n != maxTokens {
			t.Errorf("%d requests were refused at once, want %d", n, maxTokens)
		}
		c.close()
		if _, err := c.get(t.Context(), Request{SubjectToken: "late"}); err == nil {
			t.Error("a token after the end")
		}
	})
}
