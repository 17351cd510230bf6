package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// Constants of the tokens that pilot-discovery signs itself, without Kubernetes.
const (
	// TokenIssuer is their iss claim.
	TokenIssuer = "pilothouse"
	// DefaultTokenTTL is their default lifetime. [control-plane B2]
	DefaultTokenTTL = settings.DefaultTokenTTL

	// DefaultJoinTTL and MaxJoinTTL are the default and the greatest lifetime of a join token, MaxJoinUses the greatest number
	// of machines that may join with one.
	DefaultJoinTTL = settings.DefaultJoinTTL
	MaxJoinTTL     = 7 * 24 * time.Hour
	MaxJoinUses    = 100

	maxToken  = 8 << 10          // bytes
	maxShown  = 300              // bytes of a claim in an error
	clockSkew = 60 * time.Second // tolerated between issuer and verifier
	subject   = "system:serviceaccount:"

	issuerFolder = "token-issuer"
	issuerKey    = "key.pem"
)

// Reason is why a token was rejected.
type Reason string

// The reasons, as in messages.
const (
	Malformed         Reason = "malformed"
	BadSignature      Reason = "signature"
	WrongIssuer       Reason = "wrong issuer"
	WrongAudience     Reason = "wrong audience"
	Expired           Reason = "expired"
	NotYetValid       Reason = "not yet valid"
	ConflictingClaims Reason = "conflicting claims"
)

// TokenError is the error for a rejected token. Text never contains the token.
type TokenError struct {
	Reason Reason
	Text   string
}

// Error returns the reason and the text.
func (e *TokenError) Error() string { return fmt.Sprintf("bearer token: %s: %s", e.Reason, e.Text) }

// Issuer signs and verifies tokens with an ECDSA P-256 key. It is immutable and safe for concurrent
// use.
type Issuer struct {
	key       crypto.Signer
	keyID     string
	signer    jose.Signer
	audiences []string
	created   bool
}

// ErrNoKey is returned by FindIssuer if there is no key.
var ErrNoKey = errors.New("there is no key that signs tokens")

// FindIssuer is OpenIssuer for a key that exists: without one it returns ErrNoKey.
func FindIssuer(stateDir string) (*Issuer, error) {
	if _, err := os.Lstat(filepath.Join(stateDir, issuerFolder, issuerKey)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoKey, stateDir)
	}
	return OpenIssuer(stateDir)
}

// OpenIssuer loads the issuer's key from the state folder, or creates it if there is none. Processes
// that open the same folder, such as pilot-discovery and pilotctl, get the same key. It returns an
// error if others can access the key.
func OpenIssuer(stateDir string) (*Issuer, error) {
	path := filepath.Join(stateDir, issuerFolder, issuerKey)
	text, err := statefile.ReadPrivate(path)
	created := errors.Is(err, fs.ErrNotExist)
	if created {
		if err := createKey(stateDir); err != nil {
			return nil, err
		}
		text, err = statefile.ReadPrivate(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read token issuer key: %w", err)
	}
	key, err := pki.ParseKey(text)
	if err != nil {
		return nil, fmt.Errorf("read token issuer key %s: %w", path, err)
	}
	i, err := newIssuer(key)
	if err == nil {
		i.created = created
	}
	return i, err
}

// Created reports whether OpenIssuer has made the key. KeyID is its fingerprint: the beginning of its RFC 7638 thumbprint, which
// tokens have as kid.
func (i *Issuer) Created() bool { return i.created }

// KeyID is the fingerprint of the key.
func (i *Issuer) KeyID() string { return i.keyID }

func createKey(stateDir string) error {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return fmt.Errorf("create token issuer key: %w", err)
	}
	text, err := pki.EncodeKey(key, true)
	if err != nil {
		return fmt.Errorf("create token issuer key: %w", err)
	}
	return statefile.CreateOnce(stateDir, issuerFolder, map[string][]byte{issuerKey: text})
}

func newIssuer(key crypto.Signer) (*Issuer, error) {
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve.Params().BitSize != 256 {
		return nil, errors.New("invalid token issuer key: want ECDSA P-256")
	}
	thumb, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("token issuer key: %w", err)
	}
	i := &Issuer{key: key, keyID: fmt.Sprintf("%x", thumb[:8]), audiences: orDefault()}
	opts := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", i.keyID)
	if i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, opts); err != nil {
		return nil, fmt.Errorf("token issuer key: %w", err)
	}
	return i, nil
}

// Issue signs a token for a service account and an audience (empty means mesh.TokenAudience), valid
// from now for ttl (0 means DefaultTokenTTL). Invalid names and a negative ttl are errors.
func (i *Issuer) Issue(namespace, serviceAccount, audience string, ttl time.Duration, now time.Time) (string, error) {
	if err := errors.Join(pki.CheckName("namespace", namespace), pki.CheckName("service account", serviceAccount)); err != nil {
		return "", fmt.Errorf("issue token: %w", err)
	}
	if ttl < 0 {
		return "", fmt.Errorf("issue token: invalid lifetime %s: want 0 or more", ttl)
	}
	if ttl == 0 {
		ttl = DefaultTokenTTL
	}
	if audience == "" {
		audience = mesh.TokenAudience
	}
	if audience == mesh.JoinAudience {
		return "", fmt.Errorf("issue token: audience %s is that of join tokens: use pilotctl vm join-token", audience)
	}
	return i.sign(namespace, serviceAccount, claims{Claims: jwt.Claims{Audience: jwt.Audience{audience}}}, ttl, now)
}

// IssueJoin signs a join token for a service account: the CA accepts it from so many different keys, from 1 to MaxJoinUses, and
// nobody else does. It is valid from now for ttl, at most MaxJoinTTL (0 means DefaultJoinTTL). It returns the token and its end.
func (i *Issuer) IssueJoin(namespace, serviceAccount string, uses int, ttl time.Duration, now time.Time) (string, time.Time, error) {
	if err := errors.Join(pki.CheckName("namespace", namespace), pki.CheckName("service account", serviceAccount)); err != nil {
		return "", time.Time{}, fmt.Errorf("issue join token: %w", err)
	}
	if ttl == 0 {
		ttl = DefaultJoinTTL
	}
	if ttl < 0 || ttl > MaxJoinTTL {
		return "", time.Time{}, fmt.Errorf("issue join token: invalid lifetime %s: want at most %s", ttl, MaxJoinTTL)
	}
	if uses < 1 || uses > MaxJoinUses {
		return "", time.Time{}, fmt.Errorf("issue join token: invalid number of uses %d: want 1–%d", uses, MaxJoinUses)
	}
	token, err := i.sign(namespace, serviceAccount, claims{Claims: jwt.Claims{Audience: jwt.Audience{mesh.JoinAudience}, ID: rand.Text()}, Uses: uses}, ttl, now)
	return token, now.Add(ttl), err
}

// sign signs a token with the claims and those that every token has.
func (i *Issuer) sign(namespace, serviceAccount string, c claims, ttl time.Duration, now time.Time) (string, error) {
	c.Issuer, c.Subject = TokenIssuer, subject+namespace+":"+serviceAccount
	c.IssuedAt, c.NotBefore, c.Expiry = jwt.NewNumericDate(now), jwt.NewNumericDate(now), jwt.NewNumericDate(now.Add(ttl))
	c.Kubernetes = &boundTo{Namespace: namespace, ServiceAccount: object{Name: serviceAccount}}
	token, err := jwt.Signed(i.signer).Claims(c).Serialize()
	if err != nil {
		return "", fmt.Errorf("issue token: %w", err)
	}
	return token, nil
}

// ForAudiences returns the issuer as one that accepts tokens for any of the audiences; for none given,
// those for istio-ca.
func (i *Issuer) ForAudiences(audiences ...string) *Issuer {
	out := *i
	out.audiences = orDefault(audiences)
	return &out
}

// Verify verifies a token at the time now. It must have at most 8 KiB, be signed by this issuer with
// ES256, be for an accepted audience or a join token, be valid now with a tolerance of 60 s, and be for one
// service account. Every error is a *TokenError.
func (i *Issuer) Verify(token string, now time.Time) (Subject, error) {
	if len(token) > maxToken {
		return Subject{}, rejected(Malformed, "%d bytes, want at most %d", len(token), maxToken)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return Subject{}, rejected(Malformed, "not a JWT signed with ES256")
	}
	var c claims
	err = parsed.Claims(i.key.Public(), &c) // verifies the signature before it decodes the payload
	if errors.Is(err, jose.ErrCryptoFailure) {
		return Subject{}, rejected(BadSignature, "not signed by this mesh (key %s)", i.keyID)
	}
	if err != nil {
		return Subject{}, rejected(Malformed, "claims of an invalid type")
	}
	join, err := c.join()
	if err != nil {
		return Subject{}, err
	}
	accepted := i.audiences
	if join != nil {
		accepted = []string{mesh.JoinAudience}
	}
	if err := c.check(TokenIssuer, accepted, now); err != nil {
		return Subject{}, err
	}
	s, err := c.subject()
	s.Join = join
	return s, err
}
