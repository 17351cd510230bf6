package authn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

func joinToken(t testing.TB, i *Issuer, uses int, at time.Time) string {
	t.Helper()
	token, _, err := i.IssueJoin("shop", "alice", uses, 0, at)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A join token is good for one key's certificate and for nothing else.
func TestJoinTokenIsUsedOnce(t *testing.T) {
	i, dir := testIssuer(t), wait.Folder(t)
	var logs bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logs, nil))
	a := New("cluster.local", i, WithJoinTokens(NewUsedFile(dir), log))
	token := joinToken(t, i, 1, time.Now())
	ctx := call(noTLS, "Bearer "+token)
	if _, err := a.Authenticate(ctx); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "first certificate only") {
		t.Errorf("for configuration: %v", err)
	}
	use := func(a *Authenticator, key string) error {
		t.Helper()
		id, redeem, err := a.AuthenticateForCertificate(ctx)
		if err != nil || redeem == nil || id != alice {
			t.Fatalf("%v, %v", id, err)
		}
		return redeem(ctx, []byte(key))
	}
	if err := use(a, "one"); err != nil {
		t.Fatal(err)
	}
	if err := use(a, "one"); err != nil {
		t.Errorf("a retry: %v", err)
	}
	// Another process has the same file.
	b := New("cluster.local", i, WithJoinTokens(NewUsedFile(dir), log))
	for _, x := range []*Authenticator{a, b} {
		err := use(x, "two")
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "used up: 1 of 1, last by another machine at ") || !strings.Contains(err.Error(), "pilotctl vm join-token shop/alice") {
			t.Errorf("another key: %v", err)
		}
	}
	if _, redeem, err := a.AuthenticateForCertificate(call(noTLS, "Bearer "+issue(t, i, "", 0, time.Now()))); err != nil || redeem != nil {
		t.Errorf("an ordinary token: %v", err)
	}
	if _, _, err := New("cluster.local", i).AuthenticateForCertificate(ctx); status.Code(err) != codes.Unauthenticated {
		t.Errorf("where nothing is remembered: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, usedFile))
	if err != nil || bytes.Contains(text, []byte(token[:20])) || strings.Contains(logs.String(), token[:20]) {
		t.Errorf("%s, %s, %v: want no token", text, logs.String(), err)
	}
	// A file that cannot be read lets nobody in.
	if err := os.WriteFile(filepath.Join(dir, usedFile), []byte(`{"tokens":[`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := use(a, "one"); status.Code(err) != codes.Unavailable || !strings.Contains(logs.String(), "remove the file") {
		t.Errorf("with a file that cannot be read: %v, %s", err, logs.String())
	}
}

// Of machines that use a token concurrently, as many succeed as it is for.
func TestJoinTokenForSeveral(t *testing.T) {
	i, dir := testIssuer(t), wait.Folder(t)
	ctx := call(noTLS, "Bearer "+joinToken(t, i, 3, time.Now()))
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for n := range errs {
		wg.Go(func() {
			a := New("cluster.local", i, WithJoinTokens(NewUsedFile(dir), slog.New(slog.DiscardHandler)))
			_, redeem, err := a.AuthenticateForCertificate(ctx)
			if err == nil {
				err = redeem(ctx, fmt.Append(nil, n))
			}
			errs[n] = err
		})
	}
	wg.Wait()
	good := 0
	for _, err := range errs {
		if err == nil {
			good++
		} else if status.Code(err) != codes.PermissionDenied {
			t.Error(err)
		}
	}
	if good != 3 {
		t.Errorf("%d of 8 joined, want 3", good)
	}
}

func TestJoinTokensThatAreRefused(t *testing.T) {
	i := testIssuer(t)
	sign := func(change func(*claims)) string {
		c := claims{}
		c.Audience, c.ID = []string{mesh.JoinAudience}, "x"
		change(&c)
		ttl := time.Hour
		if c.Uses < 0 {
			c.Uses, ttl = 0, MaxJoinTTL+time.Second
		}
		token, err := i.sign("shop", "alice", c, ttl, noon)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for want, token := range map[string]string{
		"without an id":       sign(func(c *claims) { c.ID = "" }),
		"for 101 uses":        sign(func(c *claims) { c.Uses = 101 }),
		"for more than 168h":  sign(func(c *claims) { c.Uses = -1 }),
		"expired: at ":        joinToken(t, i, 1, noon.Add(-2*time.Hour)),
		"not yet valid: befo": joinToken(t, i, 1, noon.Add(2*time.Hour)),
	} {
		if _, err := i.Verify(token, noon); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// With another audience beside its own it is a join token, too.
	if s, err := i.Verify(sign(func(c *claims) { c.Audience = append(c.Audience, mesh.TokenAudience) }), noon); err != nil || s.Join == nil {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := i.Issue("shop", "alice", mesh.JoinAudience, 0, noon); err == nil {
		t.Error("an ordinary token for the audience of join tokens was issued")
	}
	for _, tt := range []struct {
		uses int
		ttl  time.Duration
	}{{0, 0}, {MaxJoinUses + 1, 0}, {1, MaxJoinTTL + 1}, {1, -1}} {
		if _, _, err := i.IssueJoin("shop", "alice", tt.uses, tt.ttl, noon); err == nil {
			t.Errorf("%+v was issued", tt)
		}
	}
}

func TestLedger(t *testing.T) {
	use := func(token, key string) Use { return Use{Token: token, Key: key, Uses: 1, Until: noon.Add(time.Hour)} }
	l, changed, err := Ledger{}.Use(use("a", "1"), noon)
	if err != nil || !changed {
		t.Fatal(err)
	}
	if _, changed, err = l.Use(use("a", "1"), noon.Add(retryFor)); err != nil || changed {
		t.Errorf("a retry: %v, %v", changed, err)
	}
	if _, _, err = l.Use(use("a", "1"), noon.Add(retryFor+time.Minute)); !errors.Is(err, errUsedUp) {
		t.Errorf("a late retry: %v", err)
	}
	if next, _, err := l.Use(use("b", "1"), noon.Add(time.Hour)); err != nil || len(next.Tokens) != 1 {
		t.Errorf("%+v, %v: a token that has ended is kept", next, err)
	}
	for n := range maxUsed - 1 {
		if l, _, err = l.Use(use(hashOf(fmt.Append(nil, n)), hashOf(fmt.Append(nil, "key", n))), noon); err != nil {
			t.Fatal(n, err)
		}
	}
	text, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a full ledger has %d bytes", len(text))
	if again, err := DecodeLedger(text); err != nil || len(again.Tokens) != maxUsed {
		t.Errorf("%d tokens, %v", len(again.Tokens), err)
	}
	if _, _, err := l.Use(use("z", "1"), noon); !errors.Is(err, errFull) {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := l.Use(use("z", "1"), noon.Add(time.Hour)); err != nil {
		t.Errorf("one more when the others have ended: %v", err)
	}
	for _, text := range []string{"x", "{}x", `{"more":1}`, `{"tokens":[{}]}`, strings.Repeat(" ", MaxLedger+1)} {
		if _, err := DecodeLedger([]byte(text)); err == nil {
			t.Errorf("%.20q is a ledger", text)
		}
	}
}

func FuzzDecodeLedger(f *testing.F) {
	l, _, err := Ledger{}.Use(Use{Token: "a", Key: "b", Uses: 1, Until: noon.Add(time.Hour)}, noon)
	if err != nil {
		f.Fatal(err)
	}
	text, err := l.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := DecodeLedger(text)
		if err != nil {
			return
		}
		if _, _, err := l.Use(Use{Token: "a", Key: "k", Uses: 1, Until: noon.Add(time.Hour)}, noon); err != nil && !errors.Is(err, errUsedUp) && !errors.Is(err, errFull) {
			t.Fatal(err)
		}
	})
}

// namedReviewer says that a token is alice's, with an id of its own.
type namedReviewer string

func (r namedReviewer) Reviewer(string) Reviewer { return r }

func (r namedReviewer) Review(_ context.Context, _ string, audiences []string) (Review, error) {
	return Review{Authenticated: true, Username: "system:serviceaccount:shop:alice", Groups: []string{accounts}, Audiences: audiences, Credential: string(r)}, nil
}

// A token of Kubernetes has the id that Kubernetes says, or what it claims itself if Kubernetes says none.
func TestJoinTokenOfKubernetes(t *testing.T) {
	i := testIssuer(t)
	c := claims{}
	c.Audience, c.ID, c.Uses = []string{mesh.JoinAudience}, "x", 5
	text, err := i.sign("shop", "alice", c, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := parseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	for credential, want := range map[string]bool{"": true, "JTI=x": true, "JTI=y": false, "x": false} {
		r := &reviewed{clusters: namedReviewer(credential), audiences: orDefault(nil), log: slog.New(slog.DiscardHandler), places: make(chan struct{}, 1)}
		s, err := r.verify(t.Context(), tok, time.Now())
		if (err == nil) != want || want && (s.Join == nil || s.Join.ID != "x" || s.Join.Uses != 1) {
			t.Errorf("%q: %+v, %v", credential, s.Join, err)
		}
	}
}
