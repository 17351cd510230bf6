package policy

import (
	"crypto/x509"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// forcedBefore is how long before its end an issuer is replaced in any case.
const forcedBefore = time.Minute

// Succession decides how the CA that is in use becomes the one that was plugged in last, so that no
// handshake fails: a root that workloads do not trust yet is distributed first, and signs when every
// certificate has ended that was issued without it. The root that signed before remains trusted until
// its last certificate has ended. It is a value: methods return a new one.
type Succession struct {
	signs   *Issuer
	plugged Plugged
	trusted []since
	retired []until
}

// since is a root with the time since which all new certificates come with it.
type since struct {
	root *x509.Certificate
	at   time.Time
}

// until is a root with the time until which it remains trusted.
type until struct {
	root *x509.Certificate
	at   time.Time
}

// NewSuccession begins with an issuer and its roots, which all workloads are assumed to trust.
func NewSuccession(issuer *Issuer, roots []*x509.Certificate) Succession {
	s := Succession{signs: issuer, plugged: Plugged{Issuer: issuer, Roots: roots}}
	for _, r := range append(slices.Clone(roots), issuer.Root()) {
		s.trusted = append(s.trusted, since{root: r})
	}
	return s
}

// Plug returns the succession after a CA was plugged in. Step says what follows.
func (s Succession) Plug(p Plugged) Succession {
	if p.Issuer.Equal(s.signs) {
		p.Issuer = s.signs
	}
	s.plugged = p
	return s
}

// Plugged returns the CA that was plugged in last.
func (s Succession) Plugged() Plugged { return s.plugged }

// Next is what Step decides.
type Next struct {
	// Issuer signs, and Roots are trusted besides its root.
	Issuer *Issuer
	Roots  []*x509.Certificate
	// Waits says that another issuer has been plugged in and does not sign yet.
	Waits bool
	// At is when to call Step again; zero if nothing will change by itself.
	At time.Time
}

// Step returns what holds at the time now. The lifetime is the longest that a certificate may have that
// has been issued so far.
func (s Succession) Step(lifetime time.Duration, now time.Time) (Succession, Next) {
	s.retired = slices.DeleteFunc(slices.Clone(s.retired), func(r until) bool { return !now.Before(r.at) })
	next := s.bundle()
	s.trusted = follow(s.trusted, next, now)
	n := Next{Issuer: s.signs}
	if s.plugged.Issuer != s.signs {
		ready := s.sinceOf(s.plugged.Issuer.Root()).Add(lifetime)
		if forced := s.signs.Validity().NotAfter.Add(-forcedBefore); forced.Before(ready) {
			ready = forced
		}
		if now.Before(ready) {
			n.Waits, n.At = true, ready
		} else {
			s = s.switchTo(s.plugged.Issuer, lifetime, now)
			n.Issuer = s.signs
		}
	}
	n.Roots = s.bundle()
	for _, r := range s.retired {
		if n.At.IsZero() || r.at.Before(n.At) {
			n.At = r.at
		}
	}
	return s, n
}

// switchTo makes an issuer sign. The root of the former one retires unless it is still plugged in.
func (s Succession) switchTo(issuer *Issuer, lifetime time.Duration, now time.Time) Succession {
	former := s.signs.Root()
	s.signs = issuer
	if !former.Equal(issuer.Root()) {
		s.retired = append(s.retired, until{root: former, at: now.Add(lifetime)})
	}
	return s
}

// bundle returns the roots that are trusted.
func (s Succession) bundle() []*x509.Certificate {
	roots := append(slices.Clone(s.plugged.Roots), s.signs.Root(), s.plugged.Issuer.Root())
	for _, r := range s.retired {
		roots = append(roots, r.root)
	}
	return pki.Normalize(roots)
}

func (s Succession) sinceOf(root *x509.Certificate) time.Time {
	i := slices.IndexFunc(s.trusted, func(t since) bool { return t.root.Equal(root) })
	return s.trusted[i].at // bundle has the root, and so has trusted
}

// follow returns the roots with the times since which they are trusted, at the time now.
func follow(old []since, roots []*x509.Certificate, now time.Time) []since {
	var out []since
	for _, r := range roots {
		i := slices.IndexFunc(old, func(t since) bool { return t.root.Equal(r) })
		if i >= 0 {
			out = append(out, old[i])
		} else {
			out = append(out, since{root: r, at: now})
		}
	}
	return out
}
