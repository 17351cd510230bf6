// Package join encodes as one string what a machine outside Kubernetes needs to join a mesh.
//
// [Encode] is called by pilotctl vm join-token and [Decode] by pilot-agent join. A string is a prefix with
// its version, the fields as JSON in base64url, and a checksum, so that one that was cut or changed on its
// way is refused with the reason. It contains a credential. Decode bounds and checks every field: nothing
// in a decoded [Bundle] can end a line, a quoted value or a path. All functions are pure.
package join

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// MaxBytes is the greatest length of a string.
	MaxBytes = 64 << 10
	// prefix begins every string of this version; family those of every version.
	prefix = family + "1."
	family = "phjoin"

	maxToken  = 8 << 10 // bytes, as pilot-discovery accepts
	maxRoots  = 16
	maxValue  = 253 // bytes of a name that is not a Kubernetes name
	maxLabels = 64
	maxConfig = 16 << 10 // bytes of a ProxyConfig
	sumLength = 16       // hexadecimal digits
)

// Bundle is what a machine needs to join. The JSON names are the form on the wire: fields may be added, and
// Decode refuses those that it does not know, because what is accepted must take effect.
type Bundle struct {
	// Namespace and ServiceAccount are who the machine is.
	Namespace      string `json:"ns"`
	ServiceAccount string `json:"sa"`
	// Discovery is host:port of pilot-discovery's secure port, as the machine reaches it. The CA is there too.
	Discovery string `json:"discovery"`
	// ServerName is the name in pilot-discovery's certificate; empty for the host of Discovery.
	ServerName string `json:"serverName,omitempty"`
	// Roots are the root certificates of the mesh, in DER.
	Roots [][]byte `json:"roots"`
	// Token is the credential for the first certificate.
	Token string `json:"token"`
	// Expires is when the token ends.
	Expires time.Time `json:"expires"`
	// TrustDomain is that of the mesh.
	TrustDomain string `json:"trustDomain"`
	// Cluster, Network and Revision are what the proxy says of itself; empty for none.
	Cluster  string `json:"cluster,omitempty"`
	Network  string `json:"network,omitempty"`
	Revision string `json:"revision,omitempty"`
	// Group is the WorkloadGroup that registers the machine; empty if it has a WorkloadEntry already.
	Group string `json:"group,omitempty"`
	// Labels are those of the workload.
	Labels map[string]string `json:"labels,omitempty"`
	// ProxyConfig is YAML that is merged over the default ProxyConfig; empty for none.
	ProxyConfig string `json:"proxyConfig,omitempty"`
}

// Encode returns the string. The bundle must be one that Decode accepts.
func Encode(b *Bundle) (string, error) {
	if err := b.check(); err != nil {
		return "", fmt.Errorf("encode join token: %w", err)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "", fmt.Errorf("encode join token: %w", err)
	}
	out := prefix + base64.RawURLEncoding.EncodeToString(text)
	out += "." + sum(out)
	if len(out) > MaxBytes {
		return "", fmt.Errorf("encode join token: %d bytes, want at most %d", len(out), MaxBytes)
	}
	return out, nil
}

// sum is the checksum of what precedes it. It protects against accidents: who can change the string can change its sum.
func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])[:sumLength]
}

// IsToken reports whether a string begins as join tokens of any version do.
func IsToken(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), family) }

// Decode returns what a string says. Spaces around and line ends in it are left out, as mail programs and terminals add
// them. Errors never contain the string.
func Decode(text string) (*Bundle, error) {
	fail := func(err error) (*Bundle, error) { return nil, fmt.Errorf("read join token: %w", err) }
	if len(text) > 2*MaxBytes {
		return fail(fmt.Errorf("%d bytes, want at most %d", len(text), MaxBytes))
	}
	text = strings.Join(strings.Fields(text), "")
	switch {
	case text == "":
		return fail(errors.New("it is empty"))
	case len(text) > MaxBytes:
		return fail(fmt.Errorf("%d bytes, want at most %d", len(text), MaxBytes))
	case !strings.HasPrefix(text, prefix):
		if rest, ok := strings.CutPrefix(text, family); ok {
			version, _, _ := strings.Cut(rest, ".")
			if _, err := strconv.ParseUint(version, 10, 16); err == nil {
				return fail(fmt.Errorf("version %s, want 1: use pilotctl and pilot-agent of the same release", version))
			}
		}
		return fail(fmt.Errorf("it does not begin with %q: want what pilotctl vm join-token prints", prefix))
	}
	body, check, ok := strings.Cut(text[len(prefix):], ".")
	if !ok || sum(prefix+body) != check {
		return fail(errors.New("wrong checksum: it is not whole, or was changed on its way"))
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return fail(errors.New("it is not base64url"))
	}
	b := &Bundle{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(b); err != nil {
		return fail(fmt.Errorf("decode its fields: %w", err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("there is text behind its fields"))
	}
	if err := b.check(); err != nil {
		return fail(err)
	}
	return b, nil
}

// check returns what is wrong with the fields.
func (b *Bundle) check() error {
	errs := []error{
		pki.CheckIdentity(b.Identity()),
		checkAddress(b.Discovery),
		checkText("server name", b.ServerName), checkText("cluster", b.Cluster), checkText("network", b.Network), checkText("revision", b.Revision),
	}
	if b.Group != "" {
		errs = append(errs, pki.CheckName("group", b.Group))
	}
	if b.Token == "" || len(b.Token) > maxToken || strings.ContainsFunc(b.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, fmt.Errorf("invalid token: want 1–%d printable characters", maxToken))
	}
	if b.Expires.IsZero() {
		errs = append(errs, errors.New("invalid end of the token: none"))
	}
	if _, err := b.Certificates(); err != nil {
		errs = append(errs, err)
	}
	if len(b.Labels) > maxLabels {
		errs = append(errs, fmt.Errorf("%d labels, want at most %d", len(b.Labels), maxLabels))
	}
	for _, name := range slices.Sorted(maps.Keys(b.Labels)) {
		if name == "" {
			errs = append(errs, errors.New("invalid label: empty name"))
		}
		errs = append(errs, checkText("label", name), checkText("label "+strconv.Quote(name), b.Labels[name]))
	}
	if len(b.ProxyConfig) > maxConfig {
		errs = append(errs, fmt.Errorf("ProxyConfig of %d bytes, want at most %d", len(b.ProxyConfig), maxConfig))
	}
	return errors.Join(errs...)
}

// Identity is who the machine will be.
func (b *Bundle) Identity() mesh.Identity {
	return mesh.Identity{TrustDomain: b.TrustDomain, Namespace: b.Namespace, ServiceAccount: b.ServiceAccount}
}

// Certificates are the root certificates.
func (b *Bundle) Certificates() ([]*x509.Certificate, error) {
	if len(b.Roots) == 0 || len(b.Roots) > maxRoots {
		return nil, fmt.Errorf("%d root certificates, want 1–%d", len(b.Roots), maxRoots)
	}
	var out []*x509.Certificate
	for i, der := range b.Roots {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("root certificate %d: %w", i+1, err)
		}
		if !c.IsCA {
			return nil, fmt.Errorf("root certificate %d: it is not of a CA", i+1)
		}
		out = append(out, c)
	}
	return out, nil
}

func checkAddress(address string) error {
	fail := func(why string) error {
		return fmt.Errorf("invalid address %.300q of pilot-discovery: %s", address, why)
	}
	i := strings.LastIndexByte(address, ':')
	if i <= 0 {
		return fail("want host:port")
	}
	host, port := address[:i], address[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fail(fmt.Sprintf("invalid port %q: want 1–65535", port))
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if host, ok = strings.CutSuffix(inner, "]"); !ok || host == "" {
			return fail("want [IPv6]:port")
		}
	} else if strings.ContainsAny(host, ":[]") {
		return fail("want an IPv6 address in brackets")
	}
	if err := checkText("host", host); err != nil {
		return fail(err.Error())
	}
	return nil
}

// checkText checks a value that is written to files between single quotes.
func checkText(what, value string) error {
	if len(value) > maxValue {
		return fmt.Errorf("invalid %s: %d bytes, want at most %d", what, len(value), maxValue)
	}
	for _, r := range value {
		if r <= ' ' || r > '~' || strings.ContainsRune("'\"\\`$", r) {
			return fmt.Errorf("invalid %s %q: want printable ASCII without spaces, quotes, backslashes and $", what, value)
		}
	}
	return nil
}
