package upstream

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// jwt is a token that ends at a time, with a signature that nobody verifies here.
func jwt(until time.Time) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, until.Unix())) + ".c2ln"
}

func TestTokenExpiry(t *testing.T) {
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	if got := TokenExpiry(jwt(until)); !got.Equal(until) {
		t.Errorf("got %s, want %s", got, until)
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"exp":"x"}`))
	for _, token := range []string{"", "opaque", "a.b", "a.!.c", "a." + none + ".c", "a.e30.c"} {
		if got := TokenExpiry(token); !got.IsZero() {
			t.Errorf("%q: %s, want none", token, got)
		}
	}
}

// metadataServer is a metadata server for one test.
type metadataServer struct {
	mu     sync.Mutex
	calls  int
	answer func(w http.ResponseWriter)
}

func (m *metadataServer) set(answer func(w http.ResponseWriter)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = answer
}

func (m *metadataServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/identity" || r.URL.Query().Get("audience") != "cluster.local" ||
		r.URL.Query().Get("format") != "full" || r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "unexpected "+r.URL.String(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Metadata-Flavor", "Google")
	m.answer(w)
}

func TestGCETokensAreKeptAndReplaced(t *testing.T) {
	m := &metadataServer{}
	s := httptest.NewServer(m)
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	give := func(token string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = w.Write([]byte(token)) }
	}
	down := func(w http.ResponseWriter) { http.Error(w, "down", http.StatusServiceUnavailable) }
	g := NewGCE(host, "cluster.local")
	want := func(token string, calls int) {
		t.Helper()
		got, err := g.Token(t.Context())
		if err != nil || got != token || m.calls != calls {
			t.Errorf("got %.20q, %v after %d requests, want %.20q after %d", got, err, m.calls, token, calls)
		}
	}
	soon, later := jwt(time.Now().Add(time.Minute)), jwt(time.Now().Add(time.Hour))
	m.set(give(soon))
	want(soon, 1)
	m.set(down)
	want(soon, 2) // it ends soon, but not yet
	m.set(give(later + "\n"))
	want(later, 3)
	m.set(down)
	want(later, 3)
	for why, answer := range map[string]func(http.ResponseWriter){
		"status 503":            down,
		"not a JWT":             give("opaque"),
		"that is valid now":     give(jwt(time.Now().Add(-time.Minute))),
		"the response is empty": give(""),
		"more than 65536":       give(strings.Repeat("x", maxToken+1)),
		"lacks Metadata-Flavor": func(w http.ResponseWriter) { w.Header().Del("Metadata-Flavor"); _, _ = w.Write([]byte(later)) },
		"status 302": func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		},
	} {
		m.set(answer)
		if _, err := NewGCE(host, "cluster.local").Token(t.Context()); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), later) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewGCE(host, "cluster.local").Token(ctx); err == nil {
		t.Error("a request after the end of its context")
	}
}
