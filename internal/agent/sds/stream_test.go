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
	names := namesIn(t, &d)
	for _, e := range d.GetResourceErrors() {
		names = append(names, "!"+e.GetResourceName().GetName())
	}
	return strings.Join(names, " ")
}

// finds is a lookup of the names that TestStream uses.
func finds(secret *pki.Secret) lookup {
	return func(name string) resource {
		switch {
		case !isFile(name) && name != LeafName && name != RootsName:
			return resource{problem: "none of this name"}
		case isFile(name):
			secret := fileSecrets[name]
			if secret == nil {
				return resource{}
			}
			return resource{version: pki.VersionOf(secret.Key, secret.Chain, secret.Roots), encode: func() []byte { return encodeTest(secret, name) }}
		case secret == nil:
			return resource{}
		case name == LeafName:
			return resource{version: pki.VersionOf(secret.Key), encode: func() []byte { return encodeTest(secret, name) }}
		}
		return resource{version: pki.VersionOf(secret.Roots), encode: func() []byte { return encodeTest(secret, name) }}
	}
}

func encodeTest(secret *pki.Secret, name string) []byte {
	if isPair(name) {
		return encodePair(name, secret.Chain, secret.Key, nil)
	}
	return encodeRoots(name, secret.Roots, nil)
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
	"an unknown name is an error of that name, once": {
		{says("", "nosuch", LeafName), secretA, "default !nosuch", ""},
		{says("1", "nosuch", LeafName), secretA, "", ""},
		{nil, secretB, "default !nosuch", ""},
	},
	"an unknown name alone": {
		{says("", "nosuch"), secretA, "!nosuch", ""},
		{says("1", "nosuch"), secretB, "", ""},
		{says("1", "nosuch", LeafName), secretB, "default !nosuch", ""},
	},
	"a name that waits does not delay others": {
		{says("", "file-root:/none", "file-root:/r", LeafName), nil, "file-root:/r", ""},
		{says("1", "file-root:/none", "file-root:/r", LeafName), nil, "", ""},
		{nil, secretA, "default file-root:/r", ""},
		{says("2", "file-cert:/c~/k"), secretA, "file-cert:/c~/k", ""},
	},
	"a nonce from an earlier stream": {
		{says("17", LeafName), secretA, "default", ""},
	},
}

func TestStream(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			s := stream{}
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
				if got := namesOf(t, s.response(finds(st.secret))); got != st.sends {
					t.Errorf("step %d: sends %q, want %q", i, got, st.sends)
				}
			}
		})
	}
}

func TestInvalidRequestEndsTheStream(t *testing.T) {
	for why, r := range map[string]*request{
		"want " + TypeURL: {typeURL: "type.googleapis.com/envoy.config.cluster.v3.Cluster"},
		"at most 64":      says("", make([]string, 65)...),
		"name of":         says("", strings.Repeat("x", maxName+1)),
	} {
		if _, err := new(stream).request(r); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}
