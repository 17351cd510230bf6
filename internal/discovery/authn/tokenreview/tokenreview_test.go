package tokenreview

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/authn/reviewtest"
)

func connect(t *testing.T, s *reviewtest.APIServer) *Reviewer {
	t.Helper()
	c := &rest.Config{Host: s.URL, BearerToken: s.Credential, QPS: 0.001, Burst: 1}
	c.Transport = &http.Transport{TLSClientConfig: tlsOf(s), DisableKeepAlives: true}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReviewerContract(t *testing.T) {
	reviewtest.Run(t, func(s *reviewtest.APIServer) authn.Reviewer { return connect(t, s) })
}

// jwt is a token that ends then; it is not signed.
func jwt(end time.Time) string {
	return "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp": %d}`, end.Unix())) + ".c2ln"
}

// An accepted token is asked about again after 10 s at the latest, and when it has ended; a rejected one after 1 s.
func TestAnswersAreRememberedWithinBounds(t *testing.T) {
	s := reviewtest.Start(t)
	r := connect(t, s)
	start := time.Unix(1_000_000, 0)
	now := start
	r.now = func() time.Time { return now }
	known := reviewtest.Token{User: "system:serviceaccount:shop:alice", Groups: []string{"system:serviceaccounts"}, Audiences: []string{"istio-ca", "bank"}}
	long, short, none, unknown := jwt(start.Add(time.Hour)), jwt(start.Add(4*time.Second)), "e30.e30.c2ln", jwt(start.Add(2*time.Hour))
	for _, token := range []string{long, short, none} {
		s.Add(token, known)
	}
	for _, tt := range []struct {
		token, audience string
		after           time.Duration
		asked           int
		authenticated   bool
	}{
		{long, "istio-ca", 0, 1, true},
		{long, "istio-ca", 9 * time.Second, 0, true},
		{long, "bank", 9 * time.Second, 1, true}, // another question
		{long, "istio-ca", 10 * time.Second, 1, true},
		{short, "istio-ca", 0, 1, true},
		{short, "istio-ca", 3 * time.Second, 0, true},
		{short, "istio-ca", 4 * time.Second, 1, true}, // it has ended: the API server decides
		{short, "istio-ca", 4 * time.Second, 1, true},
		{none, "istio-ca", 0, 1, true}, // it does not say when it ends
		{none, "istio-ca", 0, 1, true},
		{unknown, "istio-ca", 0, 1, false},
		{unknown, "istio-ca", 999 * time.Millisecond, 0, false},
		{unknown, "istio-ca", time.Second, 1, false},
	} {
		now = start.Add(tt.after)
		before := s.Asked()
		got, err := r.Review(t.Context(), tt.token, []string{tt.audience})
		if err != nil || got.Authenticated != tt.authenticated || s.Asked()-before != tt.asked {
			t.Errorf("%+v: %+v, %v, %d requests", tt, got, err, s.Asked()-before)
		}
	}
	if m := r.Metrics(); m.Remembered != 3 || m.Asked != int64(s.Asked()) || m.Failed != 0 {
		t.Errorf("%+v", m)
	}
}

// That there was no answer is not remembered.
func TestFailuresAreNotRemembered(t *testing.T) {
	s := reviewtest.Start(t)
	r := connect(t, s)
	token := jwt(time.Now().Add(time.Hour))
	s.Add(token, reviewtest.Token{User: "u", Audiences: []string{"istio-ca"}})
	s.Respond(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	if _, err := r.Review(t.Context(), token, []string{"istio-ca"}); err == nil || !strings.Contains(err.Error(), "tokenreviews.authentication.k8s.io") {
		t.Errorf("%v, want one that names the permission", err)
	}
	s.Respond(nil)
	if got, err := r.Review(t.Context(), token, []string{"istio-ca"}); err != nil || !got.Authenticated {
		t.Errorf("%+v, %v", got, err)
	}
	if m := r.Metrics(); m.Failed != 1 {
		t.Errorf("%+v", m)
	}
}

// Whoever can connect can ask about any number of tokens: memory is bounded, and answers that count are kept.
func TestTheCacheIsBounded(t *testing.T) {
	var c cache
	now := time.Unix(1_000_000, 0)
	accepted := authn.Review{Authenticated: true}
	mine := ask("mine", nil)
	c.put(mine, accepted, now.Add(time.Hour), now)
	for i := range 3 * maxAnswers {
		c.put(ask(fmt.Sprint(i), nil), authn.Review{Error: "no"}, time.Time{}, now)
	}
	if _, ok := c.get(mine, now); !ok || len(c.answers) > maxAnswers {
		t.Errorf("%d answers, %v", len(c.answers), ok)
	}
	now = now.Add(rejectedFor)
	c.put(ask("later", nil), accepted, now.Add(time.Hour), now)
	if len(c.answers) != 2 {
		t.Errorf("%d answers are left, want 2", len(c.answers))
	}
	c.put(ask("large", nil), authn.Review{Authenticated: true, Username: strings.Repeat("x", maxAnswer+1)}, now.Add(time.Hour), now)
	if len(c.answers) != 2 {
		t.Error("an answer of any size is kept")
	}
}

// No part of a question can be taken for another.
func TestQuestionsDiffer(t *testing.T) {
	all := map[question]string{}
	for _, q := range [][]string{{"a"}, {"a", ""}, {"a", "b"}, {"ab"}, {"a", "b", "c"}, {"a", "bc"}, {"", "a"}} {
		key := ask(q[0], q[1:])
		if other, ok := all[key]; ok {
			t.Errorf("%q is the same as %s", q, other)
		}
		all[key] = fmt.Sprintf("%q", q)
	}
}

func TestErrorsDoNotHaveTheToken(t *testing.T) {
	if err := withoutToken(errors.New("got secret-token"), "secret-token"); strings.Contains(err.Error(), "secret-token") {
		t.Error(err)
	}
}

func TestOwnCluster(t *testing.T) {
	r := &Reviewer{}
	o := Own{Name: "east", Cluster: r}
	if o.Reviewer("") != r || o.Reviewer("east") != r || o.Reviewer("west") != nil {
		t.Error("want the reviewer for the own cluster only")
	}
}

func tlsOf(s *reviewtest.APIServer) *tls.Config {
	return &tls.Config{RootCAs: s.Roots, MinVersion: tls.VersionTLS12}
}
