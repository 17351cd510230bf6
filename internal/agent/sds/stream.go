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

// isFile says whether the name is that of files.
func isFile(name string) bool {
	return strings.HasPrefix(name, certPrefix) || strings.HasPrefix(name, rootPrefix)
}

// isPair says whether the name stands for certificate and key, rather than for roots.
func isPair(name string) bool { return name == LeafName || strings.HasPrefix(name, certPrefix) }

// maxNames bounds what one stream may ask for.
const maxNames = 64

// stream is what one stream of the protocol has asked for and been sent: a machine
// without a socket. The zero value is a stream that has said nothing yet.
type stream struct {
	files   bool     // names of files are served, too
	names   []string // sorted, each once; only those that are served
	unknown []string // asked for, but not served
	sent    string   // version of the last response
	nonce   int      // of the last response
	nacked  string   // version of which a refusal was reported
}

// report is something about a stream that a person should read, or nothing.
type report struct {
	text, detail string
}

// request takes what Envoy says. It returns an error that ends the stream where the
// request makes no sense, and a report where there is something to say.
func (s *stream) request(r *request) (report, error) {
	if r.typeURL != "" && r.typeURL != TypeURL {
		return report{}, fmt.Errorf("type %.200q is not served here, only %s", r.typeURL, TypeURL)
	}
	if len(r.names) > maxNames {
		return report{}, fmt.Errorf("too many names: want at most %d", maxNames)
	}
	// Whatever answers an older response than the last is out of date as a whole; Envoy
	// repeats what still holds when it answers the last. (xDS protocol, "ACK and NACK")
	if r.nonce != "" && s.nonce > 0 && r.nonce != strconv.Itoa(s.nonce) {
		return report{}, nil
	}
	rep := s.subscribe(r.names)
	if r.refused && s.nacked != s.sent {
		s.nacked = s.sent
		rep = report{"Envoy refused a secret and keeps the one it had", r.reason}
	}
	return rep, nil
}

// subscribe changes what the stream is about; new names bring a response of their own.
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
		rep = report{"Envoy asks for a secret that the agent does not have", fmt.Sprintf("%.100q", unknown)}
	}
	s.unknown = unknown
	return rep
}

// response is what is to be sent now that have tells what each name stands for, nil where
// there is nothing yet. It is nil itself for nothing: nothing was asked for, nothing of
// that is there, or nothing has changed. A name that waits holds up no other.
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
		// The version differs exactly where what was asked for differs, so that a renewed
		// leaf moves nobody who only looks at the roots.
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
