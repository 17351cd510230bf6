package sds

import (
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilothouse/pilothouse/internal/pki"
)

func ask(nonce string, names ...string) *discovery.DiscoveryRequest {
	return &discovery.DiscoveryRequest{TypeUrl: TypeURL, ResourceNames: names, ResponseNonce: nonce}
}

func refusal(nonce string, names ...string) *discovery.DiscoveryRequest {
	r := ask(nonce, names...)
	r.ErrorDetail = &statuspb.Status{Message: "bad key"}
	return r
}

var (
	secretA = &pki.Secret{Key: []byte("ka"), Chain: []byte("ca"), Roots: []byte("r")}
	secretB = &pki.Secret{Key: []byte("kb"), Chain: []byte("cb"), Roots: []byte("r")}
	secretC = &pki.Secret{Key: []byte("kb"), Chain: []byte("cb"), Roots: []byte("r2")}
)

// step is one thing that happens to a stream, and what must come of it.
type step struct {
	req    *discovery.DiscoveryRequest // nil: only the secret changed
	secret *pki.Secret
	sends  string // names in the response, "" for no response
	says   string // part of the report, "" for none
}

var scripts = map[string][]step{
	"a stream waits for the first secret": {
		{ask("", LeafName), nil, "", ""},
		{nil, secretA, "default", ""},
		{ask("1", LeafName), secretA, "", ""},
	},
	"a renewed leaf moves those who watch it": {
		{ask("", LeafName), secretA, "default", ""},
		{nil, secretB, "default", ""},
		{nil, secretC, "", ""},
	},
	"a new root moves those who watch it": {
		{ask("", RootsName), secretA, "ROOTCA", ""},
		{nil, secretB, "", ""},
		{nil, secretC, "ROOTCA", ""},
	},
	"both names, in any order, twice": {
		{ask("", LeafName, RootsName, LeafName), secretA, "ROOTCA default", ""},
		{ask("1", RootsName, LeafName), secretA, "", ""},
		{nil, secretB, "ROOTCA default", ""},
	},
	"a refusal is said once and does not loop": {
		{ask("", LeafName), secretA, "default", ""},
		{refusal("1", LeafName), secretA, "", "refused"},
		{refusal("1", LeafName), secretA, "", ""},
		{nil, secretB, "default", ""},
		{refusal("2", LeafName), secretB, "", "refused"},
	},
	"an answer to an older response changes nothing": {
		{ask("", LeafName), secretA, "default", ""},
		{nil, secretB, "default", ""},
		{refusal("1", RootsName), secretB, "", ""},
		{ask("2", LeafName), secretB, "", ""},
	},
	"another subscription is answered": {
		{ask("", LeafName), secretA, "default", ""},
		{ask("1", RootsName), secretA, "ROOTCA", ""},
		{ask("2"), secretB, "", ""},
	},
	"a strange name is said once and holds up nothing": {
		{ask("", "nosuch", LeafName), secretA, "default", "does not have"},
		{ask("1", "nosuch", LeafName), secretA, "", ""},
	},
	"a nonce from an earlier stream": {
		{ask("17", LeafName), secretA, "default", ""},
	},
}

func TestStream(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			var s stream
			for i, st := range script {
				if st.req != nil {
					rep, err := s.request(st.req)
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					if (rep.text == "") != (st.says == "") || !strings.Contains(rep.text, st.says) {
						t.Errorf("step %d: says %q, want %q", i, rep.text, st.says)
					}
				}
				r, err := s.response(st.secret)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(namesIn(t, r), " "); got != st.sends {
					t.Errorf("step %d: sends %q, want %q", i, got, st.sends)
				}
			}
		})
	}
}

func TestStreamEndsOnNonsense(t *testing.T) {
	for why, r := range map[string]*discovery.DiscoveryRequest{
		"not served here": {TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"},
		"at most 64":      ask("", make([]string, 65)...),
	} {
		if _, err := new(stream).request(r); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}
