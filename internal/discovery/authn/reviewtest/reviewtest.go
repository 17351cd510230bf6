// Package reviewtest tests implementations of authn.Reviewer, against an API server of its own.
//
// The API server speaks as Kubernetes' does as far as TokenReviews are concerned. Package authn's own
// tests use it too.
package reviewtest

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
)

const (
	path = "/apis/authentication.k8s.io/v1/tokenreviews"
	// credential is what the API server wants of whoever asks it.
	credential = "credential-of-the-reviewer"
	// podUID is the user's extra value with the Pod's unique id.
	podUID = "authentication.kubernetes.io/pod-uid"
)

// Token is one that the API server knows.
type Token struct {
	// User and Groups are whose it is.
	User   string
	Groups []string
	// Audiences are what it is for.
	Audiences []string
	// Pod is the unique id of the Pod that it is bound to; empty for none.
	Pod string
}

// APIServer is a fake API server. Its methods may be called concurrently.
type APIServer struct {
	// URL is its address, https://HOST:PORT, and Roots verifies its certificate.
	URL   string
	Roots *x509.CertPool
	// Credential is the bearer token that it wants of clients.
	Credential string

	mu      sync.Mutex
	tokens  map[string]Token
	respond http.HandlerFunc
	asked   int
}

// Start starts an API server that ends with the test.
func Start(t testing.TB) *APIServer {
	t.Helper()
	s := &APIServer{Credential: credential, tokens: map[string]Token{}}
	srv := httptest.NewTLSServer(s)
	t.Cleanup(srv.Close)
	s.URL, s.Roots = srv.URL, x509.NewCertPool()
	s.Roots.AddCert(srv.Certificate())
	return s
}

// Add makes a token known.
func (s *APIServer) Add(text string, token Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[text] = token
}

// Respond replaces how the API server answers; nil restores it.
func (s *APIServer) Respond(f http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.respond = f
}

// Asked returns how many requests have come.
func (s *APIServer) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// tokenReview is the message in both directions.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences,omitempty"`
	} `json:"spec"`
	Status struct {
		Authenticated bool     `json:"authenticated,omitempty"`
		Error         string   `json:"error,omitempty"`
		Audiences     []string `json:"audiences,omitempty"`
		User          struct {
			Username string              `json:"username,omitempty"`
			Groups   []string            `json:"groups,omitempty"`
			Extra    map[string][]string `json:"extra,omitempty"`
		} `json:"user"`
	} `json:"status"`
}

// ServeHTTP implements http.Handler.
func (s *APIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked++
	respond := s.respond
	s.mu.Unlock()
	if respond != nil {
		respond(w, r)
		return
	}
	var m tokenReview
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	switch {
	case r.Method != http.MethodPost || r.URL.Path != path:
		http.Error(w, "want POST "+path, http.StatusNotFound)
		return
	case r.Header.Get("Authorization") != "Bearer "+s.Credential:
		http.Error(w, "want the credential of the reviewer", http.StatusUnauthorized)
		return
	case err != nil || json.Unmarshal(body, &m) != nil || m.APIVersion != "authentication.k8s.io/v1" || m.Kind != "TokenReview":
		http.Error(w, "want a TokenReview of authentication.k8s.io/v1", http.StatusBadRequest)
		return
	}
	s.review(&m)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	if err := json.NewEncoder(w).Encode(m); err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
}

// review fills in the status as Kubernetes does.
func (s *APIServer) review(m *tokenReview) {
	s.mu.Lock()
	known, ok := s.tokens[m.Spec.Token]
	s.mu.Unlock()
	if !ok {
		m.Status.Error = "[invalid bearer token, square/go-jose: error in cryptographic primitive]"
		return
	}
	for _, a := range m.Spec.Audiences {
		if slices.Contains(known.Audiences, a) {
			m.Status.Audiences = append(m.Status.Audiences, a)
		}
	}
	if len(m.Status.Audiences) == 0 {
		m.Status.Error = "[invalid bearer token, token audiences are invalid for the target audiences]"
		return
	}
	m.Status.Authenticated = true
	m.Status.User.Username, m.Status.User.Groups = known.User, known.Groups
	if known.Pod != "" {
		m.Status.User.Extra = map[string][]string{podUID: {known.Pod}}
	}
}

// Run tests an implementation: connect returns one that asks the given API server.
func Run(t *testing.T, connect func(*APIServer) authn.Reviewer) {
	const secret = "header.payload-of-the-token.signature"
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"}
	start := func(t *testing.T) (*APIServer, authn.Reviewer) {
		s := Start(t)
		s.Add(secret, Token{User: "system:serviceaccount:shop:alice", Groups: groups, Audiences: []string{"istio-ca", "x"}, Pod: "1-2-3"})
		return s, connect(s)
	}
	review := func(t *testing.T, r authn.Reviewer, token string, audiences ...string) (authn.Review, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return r.Review(ctx, token, audiences)
	}

	t.Run("a token of a service account", func(t *testing.T) {
		_, r := start(t)
		got, err := review(t, r, secret, "other", "istio-ca")
		if err != nil || !got.Authenticated || got.Error != "" || got.Username != "system:serviceaccount:shop:alice" || !slices.Equal(got.Groups, groups) ||
			!slices.Equal(got.Audiences, []string{"istio-ca"}) || got.Pod != "1-2-3" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("a token that is bound to no Pod", func(t *testing.T) {
		s, r := start(t)
		s.Add("unbound", Token{User: "u", Audiences: []string{"istio-ca"}})
		if got, err := review(t, r, "unbound", "istio-ca"); err != nil || !got.Authenticated || got.Pod != "" || got.Username != "u" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("rejected tokens are answers", func(t *testing.T) {
		_, r := start(t)
		for name, ask := range map[string][2]string{"unknown": {"forged", "istio-ca"}, "another audience": {secret, "bank"}} {
			got, err := review(t, r, ask[0], ask[1])
			if err != nil || got.Authenticated || !strings.Contains(got.Error, "invalid bearer token") {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
	})
	t.Run("what is not an answer is an error without the token", func(t *testing.T) {
		s, r := start(t)
		status := func(code int) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				http.Error(w, string(body), code)
			}
		}
		text := func(body string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				if _, err := io.WriteString(w, body); err != nil {
					return // the client has seen enough
				}
			}
		}
		for name, respond := range map[string]http.HandlerFunc{
			"401": status(401), "403": status(403), "404": status(404), "409": status(409), "422": status(422), "500": status(500), "503": status(503),
			"200 with garbage": text("<html>" + secret), "an empty body": text(""),
			"16 MiB":              text(`{"status": {"authenticated": true, "error": "` + strings.Repeat("x", 16<<20) + `"}}`),
			"another kind":        text(`{"apiVersion": "v1", "kind": "Status", "status": {"authenticated": true}}`),
			"a closed connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		} {
			s.Respond(respond)
			if got, err := review(t, r, secret, "istio-ca"); err == nil || got.Authenticated || strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		s.Respond(nil)
		if got, err := review(t, r, secret, "istio-ca"); err != nil || !got.Authenticated {
			t.Errorf("afterwards: %+v, %v", got, err)
		}
	})
	t.Run("the context ends a review", func(t *testing.T) {
		s, r := start(t)
		reached := make(chan struct{})
		s.Respond(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is seen when the body has been read
			close(reached)
			<-r.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-reached
			cancel()
		}()
		if got, err := r.Review(ctx, secret, []string{"istio-ca"}); err == nil || got.Authenticated || strings.Contains(err.Error(), secret) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("concurrent reviews", func(t *testing.T) {
		_, r := start(t)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if got, err := review(t, r, secret, "istio-ca"); err != nil || !got.Authenticated {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
		wg.Wait()
	})
}
