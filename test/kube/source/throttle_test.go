package source_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

// link is the network between a source and the API server.
type link struct {
	throttled atomic.Int32 // responses "too many requests", which are not those of the server

	mu       sync.Mutex
	throttle bool
	conns    []net.Conn
}

// through returns a configuration that connects over the link.
func (l *link) through(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			l.conns = append(l.conns, conn)
		}
		return conn, err
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			l.mu.Lock()
			throttle := l.throttle
			l.mu.Unlock()
			if throttle {
				l.throttled.Add(1)
				return &http.Response{
					StatusCode: http.StatusTooManyRequests, Status: "429 Too Many Requests", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
					Header: http.Header{"Retry-After": {"1"}}, Body: io.NopCloser(bytes.NewReader([]byte("slow down"))),
				}, nil
			}
			return next.RoundTrip(r)
		})
	})
	return c
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// limit has requests answered with "too many requests", or not any more.
func (l *link) limit(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.throttle = on
	for _, c := range l.conns {
		_ = c.Close() // watches that are open would go on
	}
	l.conns = nil
}

// Where all requests are answered with "too many requests" for a time, nothing is removed, and what has changed is read afterwards.
func TestThrottlingIsSurvived(t *testing.T) {
	c := kubetest.Shared(t)
	install(t, c, permissive)
	const ns = "throttled"
	apply := func(text string) {
		t.Helper()
		if _, err := c.ApplyYAML(t.Context(), "", text); err != nil {
			t.Fatal(err)
		}
	}
	apply(namespace(ns) + service(ns, "a", 80) + service(ns, "b", 80))
	l := &link{}
	o := options(c)
	o.Config, o.Patience, o.Backoff = l.through(c.Config), time.Millisecond, [2]time.Duration{time.Millisecond, 10 * time.Millisecond}
	r := start(t, o)
	r.until(t, "the sync", func() bool { return r.synced && r.port(ns, "a") == 80 && r.port(ns, "b") == 80 })
	l.limit(true)
	apply(service(ns, "a", 81))
	r.until(t, "requests that are refused", func() bool { return l.throttled.Load() > 20 && len(r.problems) == 1 })
	if _, behind := r.source.Behind(); !behind {
		t.Error("not behind")
	}
	r.mu.Lock()
	if len(r.removed) > 0 || r.port(ns, "a") != 80 {
		t.Errorf("removed %v, port %d", r.removed, r.port(ns, "a"))
	}
	r.mu.Unlock()
	l.limit(false)
	r.until(t, "the change", func() bool { return r.port(ns, "a") == 81 && r.port(ns, "b") == 80 && len(r.problems) == 0 })
}
