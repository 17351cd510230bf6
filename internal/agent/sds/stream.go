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

// maxNames is the maximum number of names in one request.
const maxNames = 64

// stream is the state of one stream, its requests and responses: a state machine
// without I/O. The zero value is a stream without a request.
type stream struct {
	files   bool     // names of files are served, too
	names   []string // sorted, each once; only those that are served
	unknown []string // requested, but not served
	sent    string   // version of the last response
	nonce   int      // of the last response
	nacked  string   // version whose NACK was reported
}

// report is a warning about a stream for the log; the zero value is none.
type report struct {
	text, detail string
}

// request handles a request. The error ends the stream: the
// request is invalid.
func (s *stream) request(r *request) (report, error) {
	if r.typeURL != "" && r.typeURL != TypeURL {
		return report{}, fmt.Errorf("type %.200q is not served here, only %s", r.typeURL, TypeURL)
	}
	if len(r.names) > maxNames {
		return report{}, fmt.Errorf("too many names: want at most %d", maxNames)
	}
	// A request that answers an older response than the last is stale; Envoy
	// repeats what is still valid when it answers the last. (xDS protocol, "ACK and NACK")
	if r.nonce != "" && s.nonce > 0 && r.nonce != strconv.Itoa(s.nonce) {
		return report{}, nil
	}
	rep := s.subscribe(r.names)
	if r.refused && s.nacked != s.sent {
		s.nacked = s.sent
		rep = report{"Envoy rejected a secret and keeps the previous one", r.reason}
	}
	return rep, nil
}

// subscribe sets the names of the stream; other names than before get a new response.
func (s *stream) subscribe(asked []string) report {
	var names, unknown []string
	for _, n := range asked {
		if n == LeafName || n == RootsName || s.files && isFile(n) {
			names = append(names, n)
		} else {
			unknown = append(unknown, n)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if !slices.Equal(names, s.names) {
		s.names, s.sent, s.nacked = names, "", ""
	}
	var rep report
	if !slices.Equal(unknown, s.unknown) && len(unknown) > 0 {
		rep = report{"Envoy requests a secret that the agent does not have", fmt.Sprintf("%.100q", unknown)}
	}
	s.unknown = unknown
	return rep
}

// response returns the response to send now. have returns the secret of a name, nil if
// there is none yet. The result is nil if no name was requested, no secret
// exists yet, or nothing has changed. A name without a secret does not delay the others.
func (s *stream) response(have func(name string) *pki.Secret) *response {
	var there []string
	var secrets []*pki.Secret
	var parts [][]byte
	for _, n := range s.names {
		secret := have(n)
		if secret == nil {
			continue
		}
		there, secrets = append(there, n), append(secrets, secret)
		// The version depends only on what was requested, so that a renewed
		// leaf is not pushed to a stream that requested the roots only.
		parts = append(parts, []byte(n))
		if isPair(n) {
			parts = append(parts, secret.Key, secret.Chain)
		} else {
			parts = append(parts, secret.Roots)
		}
	}
	version := pki.VersionOf(parts...)
	if len(there) == 0 || version == s.sent {
		return nil
	}
	s.nonce++
	s.sent = version
	r := &response{version: version, nonce: strconv.Itoa(s.nonce)}
	for i, n := range there {
		r.resources = append(r.resources, encodeSecret(secrets[i], n))
	}
	return r
}
