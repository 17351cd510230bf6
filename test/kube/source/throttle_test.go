package source_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

// link is the network between a source and the API server.
type link struct {
	throttled atomic.Int32 // responses "too many requests", which are not those of the server
	expired   atomic.Int32 // responses of the server that say that a version is too old

	mu       sync.Mutex
	throttle bool
	down     bool
	conns    []net.Conn
}

// through returns a configuration that connects over the link.
func (l *link) through(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.down {
			return nil, syscall.ECONNREFUSED
		}
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
			a, err := next.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			if a.StatusCode == http.StatusGone {
				l.expired.Add(1)
			}
			a.Body = &expirations{ReadCloser: a.Body, link: l}
			return a, nil
		})
	})
	return c
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// expirations counts in the body of a response, which may be a watch, what says that a version is too old. That is a Status, as
// JSON or protobuf; no object of these tests has its words.
type expirations struct {
	io.ReadCloser
	link *link
	end  []byte // of what was read before
}

// Read implements io.Reader.
func (e *expirations) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && e.link.isDown() {
		err = io.EOF
	}
	text := append(e.end, p[:n]...)
	const words = "too old resource version"
	e.link.expired.Add(int32(bytes.Count(text, []byte(words))))
	e.end = bytes.Clone(text[max(0, len(text)-len(words)+1):])
	return n, err
}

func (l *link) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// cut ends all connections and lets none begin, or lets them begin again. Watches end as if the server had ended them, so that
// client-go asks for what follows the last version that it knows; after a broken one it lists anew.
func (l *link) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

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
