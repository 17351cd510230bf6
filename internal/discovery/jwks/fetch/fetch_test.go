package fetch_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks/fetch"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// keySet returns a key set with one key.
func keySet(id string) string {
	return `{"keys":[{"crv":"Ed25519","kid":"` + id + `","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
}

// local allows the loopback addresses that servers of tests have.
func local(netip.Addr) error { return nil }

// serve serves a handler on a loopback address.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func keys(t *testing.T, c *fetch.Client, s jwks.Source, limit time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	text, number, err := c.Keys(ctx, s)
	if err == nil && number != 1 {
		t.Errorf("%d keys", number)
	}
	return text, err
}

func at(url string) jwks.Source { return jwks.Source{URL: url} }

func TestKeysByURLAndByIssuer(t *testing.T) {
	var s *httptest.Server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/keys":
			if r.Header.Get("accept-encoding") != "" || r.Header.Get("cookie") != "" {
				t.Errorf("header %v", r.Header)
			}
			fmt.Fprint(w, keySet("a"))
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer": "x", "jwks_uri": %q}`, s.URL+"/moved")
		case "/moved":
			http.Redirect(w, r, "/keys", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	})
	c := fetch.NewClient(fetch.Security{Check: local})
	for _, source := range []jwks.Source{at(s.URL + "/keys"), at(s.URL + "/moved"), {Issuer: s.URL}, {Issuer: s.URL + "/"}} {
		if got, err := keys(t, c, source, time.Minute); err != nil || got != keySet("a") {
			t.Errorf("%v: %s, %v", source, got, err)
		}
	}
}

func TestHostileServers(t *testing.T) {
	squeezed := func(n int64) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		_, _ = io.CopyN(z, zeros{}, n)
		_ = z.Close()
		return out.Bytes()
	}
	tests := map[string]struct {
		serve http.HandlerFunc
		want  string
		limit time.Duration
	}{
		"10 MB": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10<<20)) }, "more than 1048576 bytes", time.Minute},
		"10 MB, announced": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10485760")
			_, _ = w.Write([]byte("{"))
		}, "more than 1048576 bytes", time.Minute},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, "more than 1048576 bytes", time.Minute},
		"slow": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(" "))
				w.(http.Flusher).Flush()
				select {
				case <-time.After(10 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}, "not finished in time", 300 * time.Millisecond},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "not finished in time", 300 * time.Millisecond},
		"a gzip bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(squeezed(64 << 20))
		}, "compressed", time.Minute},
		"a gzip bomb, unannounced": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(squeezed(64 << 20)) }, "invalid key set", time.Minute},
		"long headers":             {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, "headers exceeded", time.Minute},
		"HTML":                     {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>secret of a service</html>") }, "invalid key set", time.Minute},
		"empty":                    {func(http.ResponseWriter, *http.Request) {}, "invalid key set", time.Minute},
		"no content":               {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "status 204", time.Minute},
		"status 500, with keys":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); fmt.Fprint(w, keySet("a")) }, "status 500", time.Minute},
		"private symmetric keys":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[{"kty":"oct","k":"AQ"}]}`) }, "symmetric", time.Minute},
		"redirects without end":    {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) }, "more than 5 redirects", time.Minute},
		"a redirect to a file": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(302)
		}, "invalid URL", time.Minute},
		"a redirect with a password": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://u:p@"+r.Host+"/")
			w.WriteHeader(302)
		}, "without a user", time.Minute},
		"a redirect to nowhere": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(302) }, "", time.Minute},
		"it hangs up":           {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF", time.Minute},
		"it hangs up in the middle": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, keySet("a"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "unexpected EOF", time.Minute},
	}
	c := fetch.NewClient(fetch.Security{Check: local})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tt.serve)
			got, err := keys(t, c, at(s.URL), tt.limit)
			if err == nil || got != "" || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%.80q, error %v, want %q", got, err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || len(err.Error()) > 320) {
				t.Errorf("error %q", err)
			}
		})
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Addresses are checked when connections are made: also those that names resolve to, and those that redirects and discovery documents lead to.
func TestAddressesAreChecked(t *testing.T) {
	var reached atomic.Int32
	inside := serve(t, func(w http.ResponseWriter, _ *http.Request) { reached.Add(1); fmt.Fprint(w, keySet("inside")) })
	port := inside.Listener.Addr().(*net.TCPAddr).Port
	c := fetch.NewClient(fetch.Security{})
	for _, url := range []string{
		fmt.Sprintf("http://127.0.0.1:%d/", port), fmt.Sprintf("http://localhost:%d/", port), fmt.Sprintf("http://[::ffff:127.0.0.1]:%d/", port),
		fmt.Sprintf("http://0.0.0.0:%d/", port), fmt.Sprintf("http://[::]:%d/", port), fmt.Sprintf("http://[::1]:%d/", port), fmt.Sprintf("http://2130706433:%d/", port), fmt.Sprintf("http://0x7f.1:%d/", port),
		"http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://[fe80::1]/",
	} {
		got, err := keys(t, c, at(url), time.Minute)
		if err == nil || got != "" {
			t.Errorf("%s: %q", url, got)
		}
		if !strings.Contains(url, "2130706433") && !strings.Contains(url, "0x7f") && (err == nil || !strings.Contains(err.Error(), "must not be asked")) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if got, err := keys(t, c, jwks.Source{Issuer: inside.URL}, time.Minute); err == nil {
		t.Errorf("by a discovery document: %q", got)
	}
	// What is asked first is allowed; what it leads to is not.
	outside := netip.MustParseAddr("127.0.0.2")
	half := fetch.NewClient(fetch.Security{Check: func(a netip.Addr) error {
		if a == outside {
			return nil
		}
		return jwks.CheckAddress(a, nil)
	}})
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"jwks_uri": %q}`, inside.URL)
		case "/own":
			fmt.Fprint(w, keySet("outside"))
		default:
			http.Redirect(w, r, inside.URL, http.StatusTemporaryRedirect)
		}
	})}}
	s.Start()
	defer s.Close()
	if got, err := keys(t, half, at(s.URL+"/own"), time.Minute); err != nil || got != keySet("outside") {
		t.Errorf("%q, %v", got, err)
	}
	for _, source := range []jwks.Source{at(s.URL), {Issuer: s.URL}} {
		if got, err := keys(t, half, source, time.Minute); err == nil || !strings.Contains(err.Error(), "must not be asked") {
			t.Errorf("%v: %q, %v", source, got, err)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("a server of this host was asked %d times", n)
	}
	blocked, err := jwks.ParseBlocked([]string{"10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys(t, fetch.NewClient(fetch.Security{Blocked: blocked}), at("http://10.255.0.1/"), time.Minute); err == nil || !strings.Contains(err.Error(), "BLOCKED_CIDRS_IN_JWKS_URIS") {
		t.Error(err)
	}
}

// A proxy of the environment would be asked instead of the server, whose address could not be checked.
func TestNoProxiesOfTheEnvironment(t *testing.T) {
	var asked atomic.Int32
	proxy := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	if _, err := keys(t, fetch.NewClient(fetch.Security{Check: local}), at("http://keys.invalid/"), time.Minute); err == nil || asked.Load() != 0 {
		t.Errorf("error %v, the proxy was asked %d times", err, asked.Load())
	}
}

func TestCertificates(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, "http://"+r.Host+"/", http.StatusFound)
			return
		}
		fmt.Fprint(w, keySet("a"))
	}))
	defer s.Close()
	s.Config.ErrorLog = nil
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	for name, c := range map[string]struct {
		fetch.Security
		path, want string
	}{
		"an unknown root":    {fetch.Security{}, "/", "certificate"},
		"a known root":       {fetch.Security{Roots: roots}, "/", ""},
		"not verified":       {fetch.Security{Insecure: true}, "/", ""},
		"down to plain text": {fetch.Security{Roots: roots}, "/down", "from https to http"},
	} {
		c.Check = local
		got, err := keys(t, fetch.NewClient(c.Security), at(s.URL+c.path), time.Minute)
		if err == nil != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got != keySet("a") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A fetcher takes over rotated keys, keeps the last good ones while a server fails, and is not held up by a dead one.
func TestFetcher(t *testing.T) {
	var answer atomic.Value
	answer.Store(keySet("one"))
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if text, _ := answer.Load().(string); text != "" {
			fmt.Fprint(w, text)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	dead := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f := fetch.New(fetch.NewClient(fetch.Security{Check: local}), 10*time.Millisecond, nil)
	ctx, stop := context.WithCancel(t.Context())
	updates, ended := make(chan fetch.Update, 1000), make(chan error, 1)
	go func() {
		ended <- f.Run(ctx, func(u fetch.Update) {
			select {
			case updates <- u:
			default:
			}
		})
	}()
	source := at(s.URL)
	f.Want(map[jwks.Source]time.Duration{source: time.Minute, at(dead.URL): time.Minute})
	until := func(what string, ok func(jwks.State) bool) {
		t.Helper()
		wait.Until(t, what, func() bool {
			select {
			case u := <-updates:
				return u.Source == source && ok(u.State)
			default:
				return false
			}
		})
	}
	until("the first keys", func(st jwks.State) bool { return st.Keys == keySet("one") && st.Err == "" })
	answer.Store(keySet("two"))
	until("rotated keys", func(st jwks.State) bool { return st.Keys == keySet("two") && st.Err == "" })
	answer.Store("")
	until("the last good ones", func(st jwks.State) bool { return st.Keys == keySet("two") && strings.Contains(st.Err, "status 500") })
	answer.Store(keySet("three"))
	until("keys after the failure", func(st jwks.State) bool { return st.Keys == keySet("three") && st.Err == "" && st.Failing.IsZero() })
	if succeeded, failed := f.Counts(); succeeded < 3 || failed < 1 {
		t.Errorf("%d and %d", succeeded, failed)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Whatever a server sends, the result is a key set or an error without any of it.
func FuzzResponses(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n" + keySet("a")))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"key\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 302 Found\r\nLocation: //[::1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, response []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 4096))
				_, _ = c.Write(response)
				_ = c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		// Redirects lead to this server only.
		only := l.Addr().(*net.TCPAddr).AddrPort().Addr()
		c := fetch.NewClient(fetch.Security{Check: func(a netip.Addr) error {
			if a != only {
				return jwks.CheckAddress(a, nil)
			}
			return nil
		}})
		got, _, err := c.Keys(ctx, at("http://"+l.Addr().String()))
		if err == nil {
			if again, _, err := pki.PublicKeySet(got); err != nil || again != got {
				t.Errorf("%q: %v", got, err)
			}
		} else if got != "" || len(err.Error()) > 320 {
			t.Errorf("%q, %v", got, err)
		}
		_ = l.Close()
		<-done
	})
}
