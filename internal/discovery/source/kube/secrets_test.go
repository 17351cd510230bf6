package kube

import (
	"context"
	"encoding/base64"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A watch of the Secrets that could not be opened for a time, and is opened again without a list, ends the problem. What
// is refused is reported once, although lists and watches are refused in turn.
func TestSecretsAreWatchedAgainWithoutAList(t *testing.T) {
	f := newFake(t)
	secret := func(name string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
			"name": name, "namespace": "istio-system", "labels": map[string]any{"istio/multiCluster": "true"},
		}}
	}
	f.set("/secrets", secret("a"))
	var mu sync.Mutex
	names, errs := 0, 0
	var last error
	o := options(f)
	o.Namespace, o.Backoff = "istio-system", [2]time.Duration{time.Millisecond, 10 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- FollowSecrets(ctx, o, func(all []Secret, err error) {
			mu.Lock()
			defer mu.Unlock()
			if last = err; err != nil {
				errs++
				return
			}
			names = len(all)
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	now := func(count int, fails bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return names == count && (last != nil) == fails
		}
	}
	wait.Until(t, "a Secret", now(1, false))
	f.set("/secrets", secret("b")) // a watch that has had an event is opened again where it ended
	wait.Until(t, "another one", now(2, false))
	f.refuseWith(func(*http.Request) int { return http.StatusTooManyRequests })
	f.Cut()
	wait.Until(t, "a problem", now(2, true))
	f.refuseWith(nil)
	wait.Until(t, "the end of the problem", now(2, false))

	mu.Lock()
	errs = 0
	mu.Unlock()
	f.refuseWith(func(*http.Request) int { return http.StatusForbidden })
	f.Cut()
	const path = "list /api/v1/namespaces/istio-system/secrets"
	before := f.count(path)
	wait.Until(t, "further attempts", func() bool { return f.count(path) > before+5 })
	mu.Lock()
	defer mu.Unlock()
	if errs != 1 {
		t.Errorf("%d reports of what is refused, want 1", errs)
	}
}

// secretsSeen are what FollowNamespace has told.
type secretsSeen struct {
	mu     sync.Mutex
	all    map[string]map[string][]byte
	failed []string
}

func (s *secretsSeen) Put(name string, data map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = data
}

func (s *secretsSeen) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
}

func (s *secretsSeen) Replace(all map[string]map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
}

func (s *secretsSeen) Failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.failed = append(s.failed, text)
}

// The Secrets of a namespace are followed through failures, of which one that lasts is told once, and its end.
func TestTheSecretsOfANamespaceAreFollowed(t *testing.T) {
	f := newFake(t)
	secret := func(name, value string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "namespace": "edge"}, "data": map[string]any{"tls.crt": base64.StdEncoding.EncodeToString([]byte(value))}}
	}
	f.set("/secrets", secret("a", "1"))
	o := options(f)
	o.Backoff = [2]time.Duration{time.Millisecond, 10 * time.Millisecond}
	seen := &secretsSeen{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- FollowNamespace(ctx, o, "edge", seen) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	has := func(name, value string, failures int) func() bool {
		return func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return string(seen.all[name]["tls.crt"]) == value && len(seen.failed) == failures
		}
	}
	wait.Until(t, "a Secret", has("a", "1", 0))
	f.set("/secrets", secret("a", "2"))
	wait.Until(t, "its new version", has("a", "2", 0))
	f.refuseWith(func(*http.Request) int { return http.StatusForbidden })
	f.Cut()
	wait.Until(t, "the refusal", has("a", "2", 1))
	const path = "list /api/v1/namespaces/edge/secrets"
	before := f.count(path)
	wait.Until(t, "further attempts", func() bool { return f.count(path) > before+5 })
	f.refuseWith(nil)
	wait.Until(t, "the end of the refusal", has("a", "2", 2))
	f.set("/secrets", secret("b", "1"))
	wait.Until(t, "another Secret", has("b", "1", 2))
}
