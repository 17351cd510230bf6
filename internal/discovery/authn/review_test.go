package authn_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/authn/reviewtest"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// client is a Reviewer over HTTP with nothing but the standard library.
type client struct {
	server *reviewtest.APIServer
	http   http.Client
}

func connect(s *reviewtest.APIServer) authn.Reviewer {
	return &client{s, http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}}
}

func (c *client) Review(ctx context.Context, token string, audiences []string) (authn.Review, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": map[string]any{"token": token, "audiences": audiences},
	})
	if err != nil {
		return authn.Review{}, errors.New("encode the TokenReview")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.server.URL+"/apis/authentication.k8s.io/v1/tokenreviews", bytes.NewReader(body))
	if err != nil {
		return authn.Review{}, err
	}
	req.Header.Set("Authorization", "Bearer "+c.server.Credential)
	resp, err := c.http.Do(req)
	if err != nil {
		return authn.Review{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return authn.Review{}, fmt.Errorf("status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var m struct {
		Kind   string
		Status struct {
			Authenticated bool
			Error         string
			Audiences     []string
			User          struct {
				Username string
				Groups   []string
				Extra    map[string][]string
			}
		}
	}
	if err != nil || json.Unmarshal(text, &m) != nil || m.Kind != "TokenReview" {
		return authn.Review{}, errors.New("invalid response: want a TokenReview")
	}
	s := m.Status
	return authn.Review{
		Authenticated: s.Authenticated, Error: s.Error, Username: s.User.Username, Groups: s.User.Groups, Audiences: s.Audiences,
		Pod: strings.Join(s.User.Extra["authentication.kubernetes.io/pod-uid"], ""),
	}, nil
}

func TestReviewerContract(t *testing.T) { reviewtest.Run(t, connect) }

// clusters finds reviewers by the names of their clusters.
type clusters map[string]authn.Reviewer

func (c clusters) Reviewer(cluster string) authn.Reviewer { return c[cluster] }

// cluster signs tokens and reviews them.
type cluster struct {
	*reviewtest.APIServer
	signer jose.Signer
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{reviewtest.Start(t), signer}
}

// token signs a token that the API server knows as known.
func (c *cluster) token(t *testing.T, known *reviewtest.Token, changes map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": "https://kubernetes.default.svc", "aud": []string{"istio-ca"}, "exp": time.Now().Unix() + 3600, "sub": fmt.Sprint(time.Now().UnixNano())}
	for k, v := range changes {
		claims[k] = v
	}
	text, err := jwt.Signed(c.signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if known != nil {
		c.Add(text, *known)
	}
	return text
}

func TestTokensAreReviewedByTheirCluster(t *testing.T) {
	own, remote, log := newCluster(t), newCluster(t), &wait.Output{}
	broken := newCluster(t)
	broken.Respond(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) })
	a := authn.New("cluster.local", nil, authn.WithReviewers(clusters{
		"": connect(own.APIServer), "Kubernetes": connect(own.APIServer), "remote": connect(remote.APIServer), "broken": connect(broken.APIServer),
	}, slog.New(slog.NewTextHandler(log, nil))))
	account := []string{"system:serviceaccounts"}
	known := func(user string, groups ...string) *reviewtest.Token {
		return &reviewtest.Token{User: user, Groups: groups, Audiences: []string{"istio-ca"}, Pod: "1"}
	}
	alice := known("system:serviceaccount:shop:alice", account...)
	good := own.token(t, alice, nil)
	for name, tt := range map[string]struct {
		token   string
		cluster []string
		code    codes.Code
		why     string
	}{
		"own cluster":                {good, nil, codes.OK, ""},
		"own cluster by name":        {good, []string{"Kubernetes"}, codes.OK, ""},
		"remote cluster":             {remote.token(t, alice, nil), []string{"remote"}, codes.OK, ""},
		"another cluster's token":    {remote.token(t, alice, nil), nil, codes.Unauthenticated, "Kubernetes rejects it"},
		"our token as another's":     {good, []string{"remote"}, codes.Unauthenticated, "Kubernetes rejects it"},
		"an unknown cluster":         {good, []string{"elsewhere"}, codes.Unauthenticated, `unknown cluster "elsewhere"`},
		"two clusters":               {good, []string{"", "remote"}, codes.Unauthenticated, "more than one clusterid"},
		"a forged token":             {own.token(t, nil, nil), nil, codes.Unauthenticated, "Kubernetes rejects it"},
		"expired":                    {own.token(t, alice, map[string]any{"exp": time.Now().Unix() - 100}), nil, codes.Unauthenticated, "expired"},
		"wrong audience":             {own.token(t, alice, map[string]any{"aud": "https://kubernetes.default.svc"}), nil, codes.Unauthenticated, "wrong audience"},
		"without audience":           {own.token(t, alice, map[string]any{"aud": []string{}}), nil, codes.Unauthenticated, "wrong audience"},
		"audience in the claim only": {own.token(t, &reviewtest.Token{User: alice.User, Groups: account, Audiences: []string{"bank"}}, nil), nil, codes.Unauthenticated, "Kubernetes rejects it"},
		"a user":                     {own.token(t, known("admin", account...), nil), nil, codes.Unauthenticated, `user "admin"`},
		"a user named as an account": {own.token(t, known("system:serviceaccount:shop:alice", "system:authenticated"), nil), nil, codes.Unauthenticated, "in group system:serviceaccounts"},
		"an account with a colon":    {own.token(t, known("system:serviceaccount:shop:alice:x", account...), nil), nil, codes.Unauthenticated, "malformed"},
		"the API server is down":     {good, []string{"broken"}, codes.Unavailable, "Kubernetes does not answer"},
	} {
		md := metadata.MD{"authorization": {"Bearer " + tt.token}, "clusterid": tt.cluster}
		id, err := a.Authenticate(metadata.NewIncomingContext(t.Context(), md))
		if status.Code(err) != tt.code || err == nil && id.SPIFFE() != "spiffe://cluster.local/ns/shop/sa/alice" || err != nil && (!strings.Contains(err.Error(), tt.why) || strings.Contains(err.Error(), tt.token)) {
			t.Errorf("%s: %v, %v; want %s %q", name, id, err, tt.code, tt.why)
		}
	}
	if text := log.String(); strings.Count(text, "status 503") != 1 || !strings.Contains(text, "cluster=broken") {
		t.Errorf("want one line of the log that says why:\n%s", text)
	}
	before := own.Asked()
	for _, refused := range []string{"x", own.token(t, alice, map[string]any{"aud": "bank"}), own.token(t, alice, map[string]any{"exp": 1})} {
		_, err := a.Authenticate(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+refused)))
		if status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
	}
	if n := own.Asked() - before; n != 0 {
		t.Errorf("the API server was asked %d times about tokens that are refused anyway", n)
	}
}

// An API server without support for audiences lists none: it has not checked them.
func TestReviewsWithoutAudiencesAreRejected(t *testing.T) {
	c := newCluster(t)
	a := authn.New("cluster.local", nil, authn.WithReviewers(clusters{"": answer{authn.Review{
		Authenticated: true, Username: "system:serviceaccount:shop:alice", Groups: []string{"system:serviceaccounts"},
	}}}, slog.New(slog.DiscardHandler)))
	_, err := a.Authenticate(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+c.token(t, nil, nil))))
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "does not say that it is for") {
		t.Error(err)
	}
}

// answer gives the same answer to each question.
type answer struct{ review authn.Review }

func (a answer) Review(context.Context, string, []string) (authn.Review, error) { return a.review, nil }

// Whoever can connect must not be able to flood the API server.
func TestReviewsAtATimeAreBounded(t *testing.T) {
	c := newCluster(t)
	r := &slow{entered: make(chan struct{}, 1000), leave: make(chan struct{})}
	a := authn.New("cluster.local", nil, authn.WithReviewers(clusters{"": r}, slog.New(slog.DiscardHandler)))
	token := c.token(t, nil, nil)
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token)))
	results := make(chan error, 100)
	for range 100 {
		go func() {
			_, err := a.Authenticate(ctx)
			results <- err
		}()
	}
	for range 32 {
		<-r.entered
	}
	cancel()
	for range 100 - 32 {
		if err := <-results; status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
	close(r.leave)
	for range 32 {
		<-results
	}
	if n := r.most.Load(); n > 32 {
		t.Errorf("%d reviews at a time, want at most 32", n)
	}
}

// slow answers when leave is closed.
type slow struct {
	entered, leave chan struct{}
	now, most      atomic.Int64
}

func (s *slow) Review(context.Context, string, []string) (authn.Review, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	s.entered <- struct{}{}
	<-s.leave
	return authn.Review{}, errors.New("too late")
}
