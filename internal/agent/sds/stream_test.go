package sds

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// namesOf lists a response's secrets.
func namesOf(t *testing.T, r *response) string {
	t.Helper()
	if r == nil {
		return ""
	}
	var d discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(r.encode(), &d); err != nil {
		t.Fatal(err)
	}
	return strings.Join(namesIn(t, &d), " ")
}

func says(nonce string, names ...string) *request {
	return &request{typeURL: TypeURL, names: names, nonce: nonce}
}

func refuses(nonce string, names ...string) *request {
	return &request{typeURL: TypeURL, names: names, nonce: nonce, refused: true, reason: "bad key"}
}

var (
	secretA = &pki.Secret{Key: []byte("ka"), Chain: []byte("ca"), Roots: []byte("r")}
	secretB = &pki.Secret{Key: []byte("kb"), Chain: []byte("cb"), Roots: []byte("r")}
	secretC = &pki.Secret{Key: []byte("kb"), Chain: []byte("cb"), Roots: []byte("r2")}
)

// fileSecrets are the secrets of files that exist.
var fileSecrets = map[string]*pki.Secret{"file-root:/r": {Roots: []byte("fr")}, "file-cert:/c~/k": {Chain: []byte("fc"), Key: []byte("fk")}}

// step is one event of a stream, and its expected result.
type step struct {
	req    *request // nil: only the secret changed
	secret *pki.Secret
	sends  string // names in the response, "" for no response
	says   string // part of the report, "" for none
}

var scripts = map[string][]step{
	"a stream waits for the first secret": {
		{says("", LeafName), nil, "", ""},
		{nil, secretA, "default", ""},
		{says("1", LeafName), secretA, "", ""},
	},
	"a renewed leaf is pushed to its subscribers": {
		{says("", LeafName), secretA, "default", ""},
		{nil, secretB, "default", ""},
		{nil, secretC, "", ""},
	},
	"a new root is pushed to its subscribers": {
		{says("", RootsName), secretA, "ROOTCA", ""},
		{nil, secretB, "", ""},
		{nil, secretC, "ROOTCA", ""},
	},
	"both names, in any order, twice": {
		{says("", LeafName, RootsName, LeafName), secretA, "ROOTCA default", ""},
		{says("1", RootsName, LeafName), secretA, "", ""},
		{nil, secretB, "ROOTCA default", ""},
	},
	"a NACK is reported once and does not loop": {
		{says("", LeafName), secretA, "default", ""},
		{refuses("1", LeafName), secretA, "", "rejected"},
		{refuses("1", LeafName), secretA, "", ""},
		{nil, secretB, "default", ""},
		{refuses("2", LeafName), secretB, "", "rejected"},
	},
	"an answer to an older response changes nothing": {
		{says("", LeafName), secretA, "default", ""},
		{nil, secretB, "default", ""},
		{refuses("1", RootsName), secretB, "", ""},
		{says("2", LeafName), secretB, "", ""},
	},
	"another subscription is answered": {
		{says("", LeafName), secretA, "default", ""},
		{says("1", RootsName), secretA, "ROOTCA", ""},
		{says("2"), secretB, "", ""},
	},
	"an unknown name is reported once and delays nothing": {
		{says("", "nosuch", LeafName), secretA, "default", "does not have"},
		{says("1", "nosuch", LeafName), secretA, "", ""},
	},
	"a name that waits does not delay others": {
		{says("", "file-root:/none", "file-root:/r", LeafName), nil, "file-root:/r", ""},
		{says("1", "file-root:/none", "file-root:/r", LeafName), nil, "", ""},
		{nil, secretA, "default file-root:/r", ""},
		{says("2", "file-cert:/c~/k"), secretA, "file-cert:/c~/k", ""},
	},
	"without files, their names are unknown": {
		{says("", "file-root:/r", LeafName), secretA, "default", "does not have"},
	},
	"a nonce from an earlier stream": {
		{says("17", LeafName), secretA, "default", ""},
	},
}

func TestStream(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			s := stream{files: !strings.Contains(name, "without files")}
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
				have := func(name string) *pki.Secret {
					if isFile(name) {
						return fileSecrets[name]
					}
					return st.secret
				}
				if got := namesOf(t, s.response(have)); got != st.sends {
					t.Errorf("step %d: sends %q, want %q", i, got, st.sends)
				}
			}
		})
	}
}

func TestInvalidRequestEndsTheStream(t *testing.T) {
	for why, r := range map[string]*request{
		"not served here": {typeURL: "type.googleapis.com/envoy.config.cluster.v3.Cluster"},
		"at most 64":      says("", make([]string, 65)...),
	} {
		if _, err := new(stream).request(r); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}
