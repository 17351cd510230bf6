package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

var alice = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "alice"}

func leaf(t *testing.T, id mesh.Identity, life time.Duration) *x509.Certificate {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := pki.WorkloadTemplate(id, pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pki.Sign(tmpl, nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var noTLS tls.ConnectionState

// call returns the server's context of a call with these credentials.
func call(state tls.ConnectionState, authorization ...string) context.Context {
	ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
	md := metadata.MD{}
	md.Append("authorization", authorization...)
	return metadata.NewIncomingContext(ctx, md)
}

func verified(c *x509.Certificate) tls.ConnectionState {
	return tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
}

func TestAuthenticate(t *testing.T) {
	i := testIssuer(t)
	a := New("cluster.local", i)
	token := "Bearer " + issue(t, i, "", 0, time.Now())
	bob := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "bob"}
	shown := tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf(t, bob, time.Hour)}}
	expired := verified(leaf(t, bob, -time.Minute))
	foreign := verified(leaf(t, mesh.Identity{TrustDomain: "other", Namespace: "shop", ServiceAccount: "bob"}, time.Hour))
	none := tls.ConnectionState{}
	cert := leaf(t, bob, time.Hour)
	for _, tt := range []struct {
		name string
		ctx  context.Context
		want mesh.Identity
		code codes.Code
		why  string
	}{
		{"a token", call(none, token), alice, codes.OK, ""},
		{"a certificate", call(verified(leaf(t, bob, time.Hour))), bob, codes.OK, ""},
		{"both", call(verified(leaf(t, bob, time.Hour)), token), bob, codes.OK, ""},
		{"an expired certificate and a token", call(expired, token), alice, codes.OK, ""},
		{"lower-case scheme", call(none, "bearer"+token[6:]), alice, codes.OK, ""},
		{"no context at all", context.Background(), mesh.Identity{}, codes.Unauthenticated, "no credentials"},
		{"nothing", call(none), mesh.Identity{}, codes.Unauthenticated, "no credentials"},
		{"an unverified certificate", call(shown), mesh.Identity{}, codes.Unauthenticated, "no credentials"},
		{"an expired certificate", call(expired), mesh.Identity{}, codes.Unauthenticated, "expired: at "},
		{"another trust domain", call(foreign), mesh.Identity{}, codes.PermissionDenied, `invalid trust domain "other": want "cluster.local"`},
		{"two tokens", call(none, token, token), mesh.Identity{}, codes.Unauthenticated, "more than one"},
		{"a password", call(none, "Basic abc"), mesh.Identity{}, codes.Unauthenticated, "Bearer <token>"},
		{"wrong audience", call(none, "Bearer "+issue(t, i, "bank", 0, time.Now())), mesh.Identity{}, codes.Unauthenticated, `wrong audience: ["bank"], want "istio-ca"`},
		{"expired", call(none, "Bearer "+issue(t, i, "", time.Second, time.Now().Add(-time.Hour))), mesh.Identity{}, codes.Unauthenticated, "expired: at "},
		{"expired certificate, malformed token", call(expired, "Bearer x"), mesh.Identity{}, codes.Unauthenticated, "; bearer token: malformed"},
	} {
		id, err := a.Authenticate(tt.ctx)
		if status.Code(err) != tt.code || id != tt.want || err != nil && !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, %v; want %v, %s %q", tt.name, id, err, tt.want, tt.code, tt.why)
		}
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		want time.Time
	}{
		"a certificate":                         {call(verified(cert)), cert.NotAfter},
		"both":                                  {call(verified(cert), token), cert.NotAfter},
		"a token":                               {call(none, token), time.Time{}},
		"an expired certificate and a token":    {call(expired, token), time.Time{}},
		"an expired certificate":                {call(expired), expired.PeerCertificates[0].NotAfter},
		"nothing":                               {call(none), time.Time{}},
		"a certificate of another trust domain": {call(foreign), time.Time{}},
	} {
		if _, until, _ := a.AuthenticateUntil(c.ctx); !until.Equal(c.want) {
			t.Errorf("%s holds until %v, want %v", name, until, c.want)
		}
	}
	if _, err := New("cluster.local", nil).Authenticate(call(none, token)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a verifier: %v", err)
	}
}
