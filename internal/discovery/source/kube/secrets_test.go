package kube

import (
	"context"
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
