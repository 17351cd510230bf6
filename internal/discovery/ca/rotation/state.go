// Package rotation decides how a CA moves from one root certificate to the next, so that no handshake fails meanwhile.
//
// A new root is first distributed to every workload, next to the one that signs. It signs once
// every connected proxy has acknowledged it, or once all leaves have ended whose owners may not
// have got it. The old root remains trusted until the last leaf that it has signed has ended.
// Step is a function of the state, the reports of all instances of the control plane, and the time.
// The state is stored, so that an instance that restarts continues where it was, and all
// instances decide the same.
package rotation

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Times and limits.
const (
	// Hold is how long all connected proxies must have acknowledged the new root before it signs. It
	// covers proxies that connect again, such as after a restart of the control plane, and the time in
	// which an agent gives the root to its Envoy.
	Hold = time.Minute
	// HoldFiles is Hold for a root that was plugged in. Instances with state folders of their own do not know of each
	// other, and may get the files up to two minutes later, as the kubelet updates mounted Secrets.
	HoldFiles = 5 * time.Minute
	// ReportTTL is the age at which an instance's report no longer counts: the instance has ended.
	ReportTTL = 45 * time.Second
	// forcedBefore is how long before the end of the signing root the new one signs in any case.
	forcedBefore = time.Minute
	// MaxTrusted is the maximum number of roots that are trusted at a time because they sign, will sign or have signed.
	MaxTrusted = 8
)

// Root is a root certificate.
type Root struct {
	// ID is the SHA-256 of the certificate in hexadecimal.
	ID        string    `json:"id"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// Plugged says that the CA below it is plugged in from files, and that its key is not stored.
	Plugged bool `json:"plugged,omitempty"`
}

// State is the state of the CA's roots. Values are not changed: methods return a new State.
type State struct {
	// Signer is the root that signs.
	Signer Root `json:"signer"`
	// LastLeaf is not before the end of any leaf that Signer has signed; zero if it has signed none.
	LastLeaf time.Time `json:"lastLeaf,omitzero"`
	// Next is the root that will sign; nil if no rotation is in progress.
	Next *Next `json:"next,omitempty"`
	// Retired are the roots that no longer sign and are still trusted, oldest first.
	Retired []Retired `json:"retired,omitempty"`
	// Further are the roots in the files of a plugged-in CA, which are trusted as long as they are there. They may be among the
	// others.
	Further []Next `json:"further,omitempty"`
}

// Next is a root that is distributed and has not signed yet.
type Next struct {
	Root
	// Added is since when it is distributed, and Why the reason of the rotation, empty for a further root.
	Added time.Time `json:"added"`
	Why   string    `json:"why"`
	// Served is since when all instances distribute it; zero before.
	Served time.Time `json:"served,omitzero"`
	// Deadline is when the last leaf ends that was issued before Served. Whoever has a valid leaf then
	// got it together with this root. It is zero before Served.
	Deadline time.Time `json:"deadline,omitzero"`
}

// Retired is a root that has signed earlier.
type Retired struct {
	Root
	// Until is when the last leaf ends that it has signed.
	Until time.Time `json:"until"`
}

// Phase is a part of a rotation.
type Phase string

// The phases, in order. Stable follows Overlap.
const (
	// Stable means that one root signs, and none is trusted because it has signed or will sign.
	Stable Phase = "stable"
	// Distributing means that a new root is trusted and does not sign yet.
	Distributing Phase = "distributing"
	// Overlap means that the new root signs, and an older one is still trusted.
	Overlap Phase = "overlap"
)

// Phase returns the phase of the newest rotation.
func (s State) Phase() Phase {
	switch {
	case s.Next != nil:
		return Distributing
	case len(s.Retired) > 0:
		return Overlap
	}
	return Stable
}

// Trusted returns the roots to distribute: the one that signs first, then the next, then the retired
// ones, oldest first, then the further ones.
func (s State) Trusted() []Root {
	out := []Root{s.Signer}
	add := func(r Root) {
		if !slices.ContainsFunc(out, func(o Root) bool { return o.ID == r.ID }) {
			out = append(out, r)
		}
	}
	if s.Next != nil {
		add(s.Next.Root)
	}
	for _, r := range s.Retired {
		add(r.Root)
	}
	for _, r := range s.Further {
		add(r.Root)
	}
	return out
}

// Signers returns the roots by which an instance may sign, best first: the one that signs, and, for an instance that does not
// have its key, those that have signed before, newest first, and the next one.
func (s State) Signers() []Root {
	out := []Root{s.Signer}
	for _, r := range slices.Backward(s.Retired) {
		out = append(out, r.Root)
	}
	if s.Next != nil {
		out = append(out, s.Next.Root)
	}
	return out
}

// Serving returns the root that issues the certificates of the control plane's own servers: the oldest that has signed, is trusted, and
// can sign at least until forcedBefore later, as until says for an ID (zero if it cannot sign). Agents verify these servers with a file, which may
// be older than the rotation, so that such agents can connect as long as possible.
func (s State) Serving(now time.Time, until func(id string) time.Time) Root {
	for _, r := range s.Retired {
		if now.Before(until(r.ID).Add(-forcedBefore)) {
			return r.Root
		}
	}
	return s.Signer
}

// Errors of Begin, which time removes.
var (
	// ErrInProgress is the error during a rotation.
	ErrInProgress = errors.New("a rotation of the root is in progress")
	// ErrTooMany is the error while MaxTrusted roots are trusted.
	ErrTooMany = fmt.Errorf("%d roots are trusted, the maximum", MaxTrusted)
)

// ErrPlugged is the error of Begin while the CA is plugged in.
var ErrPlugged = errors.New("the CA is plugged in from files: replace them to rotate it")

// CanBegin returns why no rotation can begin, nil if one can.
func (s State) CanBegin() error {
	switch {
	case s.Next != nil:
		return fmt.Errorf("%w since %s: pilotctl ca status says what it waits for", ErrInProgress, s.Next.Added.UTC().Format(time.RFC3339))
	case s.Signer.Plugged:
		return ErrPlugged
	}
	return s.room()
}

// room returns why no further root can be trusted that signs later, nil if one can.
func (s State) room() error {
	if 1+len(s.Retired) >= MaxTrusted {
		return fmt.Errorf("%w: want the oldest to end first, at %s", ErrTooMany, s.firstEnd().UTC().Format(time.RFC3339))
	}
	return nil
}

// Begin returns the state in which a new root is distributed.
func (s State) Begin(r Root, why string, now time.Time) (State, error) {
	if err := s.CanBegin(); err != nil {
		return s, err
	}
	if slices.ContainsFunc(s.Trusted(), func(old Root) bool { return old.ID == r.ID }) {
		return s, fmt.Errorf("invalid root %.16s: want a new one", r.ID)
	}
	s.Next = &Next{Root: r, Added: now, Why: why}
	return s, nil
}

// Signed returns the state after the root with an ID has signed a leaf that ends at until, and
// whether it differs. The error says that the root is not trusted any more.
func (s State) Signed(id string, until time.Time) (State, bool, error) {
	if id == s.Signer.ID {
		if !until.After(s.LastLeaf) {
			return s, false, nil
		}
		s.LastLeaf = until
		return s, true, nil
	}
	// An instance that has not seen yet that the root has retired.
	i := slices.IndexFunc(s.Retired, func(r Retired) bool { return r.ID == id })
	if i < 0 {
		return s, false, fmt.Errorf("root %.16s does not sign any more", id)
	}
	if !until.After(s.Retired[i].Until) {
		return s, false, nil
	}
	s.Retired = slices.Clone(s.Retired)
	s.Retired[i].Until = until
	return s, true, nil
}

func (s State) firstEnd() time.Time {
	var first time.Time
	for _, r := range s.Retired {
		if first.IsZero() || r.Until.Before(first) {
			first = r.Until
		}
	}
	return first
}
