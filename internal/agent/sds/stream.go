package sds

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// TypeURL is the one type that is served. [agent D2]
const TypeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// The names of secrets; those of files begin with a prefix. [agent S2]
const (
	LeafName   = mesh.SecretDefault
	RootsName  = mesh.SecretRoot
	certPrefix = mesh.SecretFileCert
	rootPrefix = mesh.SecretFileRoot
)

// isFile reports whether name is the name of a secret in files.
func isFile(name string) bool {
	return strings.HasPrefix(name, certPrefix) || strings.HasPrefix(name, rootPrefix)
}

// isPair reports whether name is the name of a certificate and key, and not of roots.
func isPair(name string) bool { return name == LeafName || strings.HasPrefix(name, certPrefix) }

const (
	// maxNames is the maximum number of names of one stream.
	maxNames = 64
	// maxName is the maximum length of a name in bytes: two paths.
	maxName = 2*4096 + 64
)

// resource is what a name stands for now. The zero value is a secret that does not exist yet.
type resource struct {
	// version is a hash of the content; empty if there is none yet.
	version string
	// encode writes the secret.
	encode func() []byte
	// problem says why the name is not served; empty if it is.
	problem string
}

// lookup returns the resource of a name.
type lookup func(name string) resource

// report is a warning about a stream for the log; the zero value is none.
type report struct {
	text, detail string
}

// stream is the state of one stream of the state-of-the-world variant, its requests and responses: a state machine
// without I/O. The zero value is a stream without a request.
type stream struct {
	names  []string // sorted, each once
	sent   string   // digest of the last response
	nonce  int      // of the last response
	nacked string   // digest whose NACK was reported
}

// request handles a request. The error ends the stream: the
// request is invalid.
func (s *stream) request(r *request) (report, error) {
	if err := r.check(); err != nil {
		return report{}, err
	}
	// A request that answers an older response than the last is stale; Envoy
	// repeats what is still valid when it answers the last. (xDS protocol, "ACK and NACK")
	if r.nonce != "" && s.nonce > 0 && r.nonce != strconv.Itoa(s.nonce) {
		return report{}, nil
	}
	names := slices.Compact(slices.Sorted(slices.Values(r.names)))
	if !slices.Equal(names, s.names) { // other names than before get a new response
		s.names, s.sent, s.nacked = names, "", ""
	}
	if r.refused && s.nacked != s.sent {
		s.nacked = s.sent
		return report{"Envoy rejected a secret and keeps the previous one", r.reason}, nil
	}
	return report{}, nil
}

// response returns the response to send now: the secrets that exist, and an error for each name that is not served. The
// result is nil if there is nothing to say, or nothing has changed. A name without a secret does not delay the others.
func (s *stream) response(find lookup) *response {
	r := &response{}
	// The version depends only on what was requested, so that a renewed
	// leaf is not pushed to a stream that requested the roots only.
	var versions, problems [][]byte
	for _, n := range s.names {
		switch got := find(n); {
		case got.problem != "":
			r.problems = append(r.problems, problem{n, got.problem})
			problems = append(problems, []byte(n), []byte(got.problem))
		case got.version != "":
			r.resources = append(r.resources, named{n, got.version, got.encode()})
			versions = append(versions, []byte(n), []byte(got.version))
		}
	}
	r.version = pki.VersionOf(versions...)
	digest := pki.VersionOf([]byte(r.version), []byte(pki.VersionOf(problems...)))
	if len(r.resources)+len(r.problems) == 0 || digest == s.sent {
		return nil
	}
	s.nonce++
	s.sent, r.nonce = digest, strconv.Itoa(s.nonce)
	return r
}

// check returns an error if a request asks for what this server never serves.
func (r *request) check() error {
	if r.typeURL != "" && r.typeURL != TypeURL {
		return fmt.Errorf("invalid type %.200q: want %s", r.typeURL, TypeURL)
	}
	return checkNames(r.names)
}

func checkNames(names []string) error {
	if len(names) > maxNames {
		return fmt.Errorf("too many names: want at most %d", maxNames)
	}
	for _, n := range names {
		if len(n) > maxName {
			return fmt.Errorf("invalid name of %d bytes: want at most %d", len(n), maxName)
		}
	}
	return nil
}
