package policy

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxChain limits the certificates of an issuer's chain: peers verify all of them.
const maxChain = 10

// minRemaining is for how long a plugged-in CA must be valid, unless workload certificates live shorter.
const minRemaining = time.Hour

// FileNames are the names of the files of a CA in a directory. Chain is empty if Cert has the
// intermediates.
type FileNames struct {
	Cert, Key, Chain, Roots string
}

// The names in the Secret cacerts: those that Istio has introduced, and those of Secrets of the type
// kubernetes.io/tls, which cert-manager writes. [control-plane 1.14.3]
var (
	IstioNames = FileNames{Cert: "ca-cert.pem", Key: "ca-key.pem", Chain: "cert-chain.pem", Roots: "root-cert.pem"}
	TLSNames   = FileNames{Cert: "tls.crt", Key: "tls.key", Roots: "ca.crt"}
)

// All returns the names that are not empty.
func (n FileNames) All() []string {
	return slices.DeleteFunc([]string{n.Cert, n.Key, n.Chain, n.Roots}, func(name string) bool { return name == "" })
}

// ChooseNames returns which names the CA in a directory has, and false if there is none. If tls.crt
// exists, they are those of Kubernetes, as in Istio.
func ChooseNames(exists func(name string) bool) (FileNames, bool) {
	switch {
	case exists(TLSNames.Cert):
		return TLSNames, true
	case slices.ContainsFunc(IstioNames.All(), exists):
		return IstioNames, true
	case slices.ContainsFunc(TLSNames.All(), exists):
		return TLSNames, true
	}
	return FileNames{}, false
}

// Files are the contents of the files of a CA, in PEM. Chain may be empty.
type Files struct {
	Cert, Key, Chain, Roots []byte
}

// Plugged is a CA that was read from files.
type Plugged struct {
	Issuer *Issuer
	// Roots are all certificates of the file of roots, normalized.
	Roots []*x509.Certificate
}

// LoadFiles returns the CA of the files at the time now. It returns an error, which says what to
// change in which file, unless the key is that of the CA certificate, the certificates are a chain from
// it to one of the roots, all of them are CA certificates, and valid for at least an hour or, if that is
// shorter, the default lifetime of workload certificates. Errors never quote the key.
func LoadFiles(f Files, names FileNames, lim Limits, now time.Time) (Plugged, error) {
	key, err := pki.ParseKey(f.Key)
	if err != nil {
		return Plugged{}, fmt.Errorf("%s: %w", names.Key, err)
	}
	certs, err := pki.ParseBundle(f.Cert)
	if err != nil {
		return Plugged{}, fmt.Errorf("%s: %w", names.Cert, err)
	}
	roots, err := pki.ParseBundle(f.Roots)
	if err != nil {
		return Plugged{}, fmt.Errorf("%s: %w", names.Roots, err)
	}
	if !pki.KeyMatches(key, certs[0]) {
		return Plugged{}, fmt.Errorf("%s: not the key of the first certificate of %s, %q: replace both files together", names.Key, names.Cert, certs[0].Subject)
	}
	others := certs[1:]
	if len(bytes.TrimSpace(f.Chain)) > 0 {
		more, err := pki.ParseBundle(f.Chain)
		if err != nil {
			return Plugged{}, fmt.Errorf("%s: %w", names.Chain, err)
		}
		others = append(others, more...)
	}
	chain, err := buildChain(certs[0], others, roots, names)
	if err != nil {
		return Plugged{}, err
	}
	issuer, err := NewIssuer(key, chain, now)
	if err != nil {
		return Plugged{}, err
	}
	if err := endsTooSoon(issuer, lim, now); err != nil {
		return Plugged{}, err
	}
	roots, err = usableRoots(roots, now)
	if err != nil {
		return Plugged{}, fmt.Errorf("%s: %w", names.Roots, err)
	}
	return Plugged{Issuer: issuer, Roots: roots}, nil
}

// buildChain returns the chain from a certificate to one of the roots. Intermediates may have any
// order, and may contain the certificate itself and roots, as files made for Istio do.
func buildChain(cert *x509.Certificate, intermediates, roots []*x509.Certificate, names FileNames) ([]*x509.Certificate, error) {
	chain := []*x509.Certificate{cert}
	for {
		last := chain[len(chain)-1]
		signs := func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, last.RawIssuer) && last.CheckSignatureFrom(c) == nil
		}
		if slices.ContainsFunc(roots, last.Equal) {
			return chain, nil
		}
		i := slices.IndexFunc(roots, signs)
		if i >= 0 {
			return append(chain, roots[i]), nil
		}
		if len(chain) == maxChain {
			return nil, fmt.Errorf("%s: the chain has more than %d certificates", names.Cert, maxChain)
		}
		i = slices.IndexFunc(intermediates, func(c *x509.Certificate) bool { return signs(c) && !slices.ContainsFunc(chain, c.Equal) })
		if i < 0 {
			where := names.Roots
			if names.Chain != "" {
				where = names.Chain + " or " + names.Roots
			}
			return nil, fmt.Errorf("%s: certificate %q is not signed by any certificate of %s: want the one of %q there", names.Cert, last.Subject, where, last.Issuer)
		}
		chain = append(chain, intermediates[i])
	}
}

// endsTooSoon returns an error if the issuer cannot sign certificates of a useful lifetime.
func endsTooSoon(i *Issuer, lim Limits, now time.Time) error {
	want := min(minRemaining, lim.Lifetime())
	for _, c := range i.chain {
		if c.NotAfter.Sub(now) < want {
			return fmt.Errorf("CA certificate %q ends too soon, at %s: want it valid for at least %s; renew it", c.Subject, c.NotAfter.UTC().Format(time.RFC3339), want)
		}
	}
	return nil
}

// usableRoots returns the roots that have not expired, normalized: expired ones may be left over from
// earlier CAs. A certificate that is not a CA's is an error, since a workload's could be trusted.
func usableRoots(roots []*x509.Certificate, now time.Time) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for _, c := range roots {
		if !now.Before(c.NotAfter) {
			continue
		}
		if !c.BasicConstraintsValid || !c.IsCA {
			return nil, fmt.Errorf("certificate %q: not a CA certificate", c.Subject)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("all certificates have expired")
	}
	return pki.Normalize(out), nil
}
