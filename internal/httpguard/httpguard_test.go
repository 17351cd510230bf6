package httpguard_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/httpguard"
)

func TestSourceOfARequest(t *testing.T) {
	for _, c := range []struct {
		from           string
		loopback, host bool
	}{
		{"127.0.0.1:1", true, true}, {"127.1.2.3:1", true, true}, {"[::1]:1", true, true}, {"[::ffff:127.0.0.1]:1", true, true},
		// Connections of other hosts that Envoy forwards.
		{"127.0.0.6:1", false, false}, {"[::ffff:127.0.0.6]:1", false, false}, {"[::6]:1", false, false},
		{"10.9.9.9:1", false, true}, {"[::ffff:10.9.9.9]:1", false, true},
		{"10.9.9.8:1", false, false}, {"", false, false}, {"pipe", false, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.from
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 8080})))
		if l, h := httpguard.FromLoopback(r), httpguard.FromThisHost(r); l != c.loopback || h != c.host {
			t.Errorf("%q: from loopback %v, from this host %v, want %v, %v", c.from, l, h, c.loopback, c.host)
		}
		toItself := r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 6), Port: 8080})))
		if strings.Contains(c.from, "127.0.0.6") && httpguard.FromThisHost(toItself) {
			t.Errorf("%q: a forwarded connection to its own address is let in", c.from)
		}
	}
}

func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	for _, c := range []struct {
		host, origin, site string
		refused            bool
	}{
		{"localhost:8080", "", "", false}, {"LOCALHOST", "", "", false}, {"localhost.:1", "", "", false}, {"127.0.0.1:8080", "", "", false}, {"10.0.0.1", "", "", false},
		{"[::1]:8080", "", "", false}, {"[::1]", "", "", false}, {"[fe80::1%25eth0]:80", "", "", false}, {"", "", "", false},
		{"evil.example:8080", "", "", true}, {"evil.example", "", "", true}, {"localhost.evil.example", "", "", true}, {"127.0.0.1.evil.example:80", "", "", true},
		{"localhost:8080:1", "", "", true}, {"127.1:8080", "", "", true}, {"istiod.istio-system.svc:8080", "", "", true},
		{"localhost:8080", "http://localhost:8080", "same-origin", false}, {"[::1]:80", "http://[::1]:80", "", false},
		{"localhost:8080", "http://localhost:9090", "", true}, {"localhost:8080", "http://evil.example", "", true}, {"localhost:8080", "null", "", true},
		{"127.0.0.1:8080", "http://203.0.113.1:8080", "", true}, {"localhost:8080", "%", "", true},
		{"localhost:8080", "", "none", false}, {"localhost:8080", "", "cross-site", true}, {"localhost:8080", "", "same-site", true},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Add("Origin", c.origin)
		}
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if err := httpguard.CheckPage(r); (err != nil) != c.refused {
			t.Errorf("Host %q, Origin %q, Sec-Fetch-Site %q: %v, want refused %v", c.host, c.origin, c.site, err, c.refused)
		}
		r.Header.Add("Origin", "http://evil.example")
		if httpguard.CheckPage(r) == nil {
			t.Errorf("Host %q: a second Origin is let in", c.host)
		}
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { close(p.closed); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// The clock is synctest's.
func TestClientsThatStallAreDisconnected(t *testing.T) {
	for name, c := range map[string]struct {
		send      string
		responses int
		after     time.Duration // before which the connection must have ended
	}{
		"no request":            {"", 0, httpguard.HeaderTimeout},
		"half a header":         {"GET / HTTP/1.1\r\nHost: x\r\n", 0, httpguard.HeaderTimeout},
		"no further request":    {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1, httpguard.IdleTimeout},
		"a second half header":  {"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n", 1, httpguard.IdleTimeout},
		"half a body":           {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", 1, httpguard.BodyTimeout},
		"half a body, read":     {"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", 1, httpguard.BodyTimeout},
		"half a body in chunks": {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", 1, httpguard.BodyTimeout},
		"nothing of a response": {"GET /long HTTP/1.1\r\nHost: x\r\n\r\n", -1, httpguard.WriteTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mux := http.NewServeMux()
				mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
				mux.HandleFunc("/read", func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.ReadAll(r.Body); err != nil {
						http.Error(w, err.Error(), http.StatusRequestTimeout)
					}
				})
				mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
					for range 1 << 10 {
						if _, err := io.WriteString(w, strings.Repeat("x", 1<<10)); err != nil {
							return
						}
					}
				})
				ended := make(chan struct{})
				server, l := httpguard.Server(mux), pipes{make(chan net.Conn), make(chan struct{})}
				server.ConnState = func(_ net.Conn, s http.ConnState) {
					if s == http.StateClosed {
						close(ended)
					}
				}
				go func() { _ = server.Serve(l) }()
				client, conn := net.Pipe()
				l.conns <- conn
				go func() { _, _ = io.WriteString(client, c.send) }()
				start := time.Now()
				if c.responses >= 0 {
					text, _ := io.ReadAll(bufio.NewReader(client))
					if got := strings.Count(string(text), "HTTP/1.1 "); got < c.responses {
						t.Errorf("%d responses, want %d: %q", got, c.responses, text)
					}
				}
				<-ended
				if took := time.Since(start); took > c.after+time.Second {
					t.Errorf("the connection ended after %v, want at most %v", took, c.after)
				}
				_ = client.Close()
				_ = server.Close()
			})
		})
	}
}

// A profile takes as long as the client wishes, and is not ended with the other bounds.
func TestUnlimitedResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, l := httpguard.Server(httpguard.Unlimited(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(2 * httpguard.WriteTimeout):
				_, _ = io.WriteString(w, "complete")
			case <-r.Context().Done():
			}
		})), pipes{make(chan net.Conn), make(chan struct{})}
		go func() { _ = server.Serve(l) }()
		client, conn := net.Pipe()
		l.conns <- conn
		go func() { _, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
		if text, _ := io.ReadAll(client); !strings.HasSuffix(string(text), "complete") {
			t.Errorf("response %q", text)
		}
		_ = server.Close()
	})
}

func TestLongHeadersAreRefused(t *testing.T) {
	w := httptest.NewUnstartedServer(nil)
	w.Config = httpguard.Server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w.Start()
	defer w.Close()
	r, err := http.NewRequest(http.MethodGet, w.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X", strings.Repeat("x", 2*httpguard.MaxHeaderBytes))
	resp, err := w.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d, want 431", resp.StatusCode)
	}
}
