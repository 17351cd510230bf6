package ca

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// defaultPoll is how often an instance looks for changes of other instances, and reports to them.
const defaultPoll = 5 * time.Second

// RotatorOptions configure a Rotator. All are required except Distribute and Proxies.
type RotatorOptions struct {
	// StateDir is the state folder, which instances may share.
	StateDir string
	// Organization and RootTTL are those of a root that is made; 0 means DefaultRootTTL.
	Organization string
	RootTTL      time.Duration
	// RootKey is the kind of its key; "" means ECDSA P-256.
	RootKey pki.KeyKind
	// MaxTTL is the longest lifetime of a leaf.
	MaxTTL time.Duration
	// Policy says when a root is rotated.
	Policy rotation.Policy
	// Interval is how often it is checked whether a root is due.
	Interval time.Duration
	// Poll is how often an instance looks for changes of others, and reports to them; 0 means 5 s.
	Poll time.Duration
	// Distribute is called with the roots to trust before they are in force.
	Distribute func(roots []*x509.Certificate)
	// Proxies returns how many proxies are connected, and which have not acknowledged what was distributed last.
	Proxies func() (connected int, waiting []string)
	Log     *slog.Logger
}

// Rotator rotates the self-signed root of an authority. It is safe for concurrent use. [control-plane 1.14.7]
type Rotator struct {
	options   RotatorOptions
	authority *Authority
	serving   *Authority
	store     *rotationStore
	wake      chan struct{}

	cycling sync.Mutex // held by cycle, so that states are applied in order

	mu      sync.Mutex // guards what follows
	state   rotation.State
	roots   map[string]*loadedRoot // trusted roots by ID
	issued  map[string]time.Time   // the ends of the last leaves that are not stored yet, by root
	stored  map[string]time.Time   // those that are
	reports []rotation.Report
	clear   time.Time
	problem string
	applied State // what the authority was given last
}

// loadedRoot is a root of the state folder. The issuer is nil if it cannot sign any more.
type loadedRoot struct {
	cert   *x509.Certificate
	issuer *policy.Issuer
}

// OpenRotator continues the rotation of the authority, which OpenRoot has opened in the same state folder.
func OpenRotator(a *Authority, o RotatorOptions) (*Rotator, error) {
	if o.Distribute == nil {
		o.Distribute = func([]*x509.Certificate) {}
	}
	if o.Proxies == nil {
		o.Proxies = func() (int, []string) { return 0, nil }
	}
	first := a.State()
	serving, err := NewAuthority(first.Issuer)
	if err != nil {
		return nil, err
	}
	r := &Rotator{
		options: o, authority: a, serving: serving, store: newRotationStore(o.StateDir), wake: make(chan struct{}, 1),
		roots: map[string]*loadedRoot{}, issued: map[string]time.Time{}, stored: map[string]time.Time{},
	}
	now := time.Now()
	var s rotation.State
	err = r.store.change(context.Background(), func(old rotation.State, found bool) (*rotation.State, error) {
		if !found {
			old = r.initial(first.Issuer.Root(), now)
		}
		// The time alone may have changed it.
		s, _ = old.Step(o.Policy, rotation.Facts{Now: now})
		return &s, nil
	})
	if err != nil {
		return nil, err
	}
	r.applied = first
	if err := r.apply(s, now); err != nil {
		return nil, err
	}
	a.onIssue(r.noteIssued)
	return r, nil
}

// initial returns the state for a root without one. If the root is not new, it may have signed leaves of the longest lifetime.
func (r *Rotator) initial(root *x509.Certificate, now time.Time) rotation.State {
	s := rotation.State{Signer: rootOf(root)}
	if now.Sub(root.NotBefore) > Backdate+time.Minute {
		s.LastLeaf = now.Add(r.options.MaxTTL)
	}
	return s
}

func rootOf(c *x509.Certificate) rotation.Root {
	return rotation.Root{ID: pki.Fingerprint(c), NotBefore: c.NotBefore, NotAfter: c.NotAfter}
}

// ServingAuthority returns the authority that issues the control plane's own certificates. Its trust bundle is that of the mesh. Its
// issuer is the oldest root that is trusted: agents that connect with an old file can verify it as long as possible.
func (r *Rotator) ServingAuthority() *Authority { return r.serving }

// Run rotates until ctx ends, then returns nil. Problems are logged and tried again.
func (r *Rotator) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(r.options.Poll, defaultPoll))
	defer tick.Stop()
	for {
		// A change of this instance's is reported at once, so that the next one need not wait for the next tick.
		for again := true; again && ctx.Err() == nil; {
			var err error
			again, err = r.cycle(ctx)
			r.tell(err)
		}
		select {
		case <-ctx.Done():
			return r.store.leave()
		case <-tick.C:
		case <-r.wake:
		}
	}
}

// tell logs a problem once, and its end.
func (r *Rotator) tell(err error) {
	r.mu.Lock()
	before := r.problem
	if r.problem = ""; err != nil {
		r.problem = err.Error()
	}
	now := r.problem
	r.mu.Unlock()
	switch {
	case now != "" && now != before:
		r.options.Log.Error("the root cannot be rotated", "reason", now)
	case now == "" && before != "":
		r.options.Log.Info("the root can be rotated again")
	}
}

// cycle reads the state, reports what this instance distributes, lets time and reports change the state, and applies it. It
// returns whether the state has changed.
func (r *Rotator) cycle(ctx context.Context) (changed bool, err error) {
	r.cycling.Lock()
	defer r.cycling.Unlock()
	if err := r.replaced(); err != nil {
		return false, err
	}
	now := time.Now()
	var next rotation.State
	err = r.store.changeExisting(ctx, func(s rotation.State) (*rotation.State, error) {
		if err := r.removeFolders(s); err != nil {
			return nil, err
		}
		s, stored := r.storeIssued(s)
		if err := r.store.report(r.report(now)); err != nil {
			return nil, err
		}
		reports, err := r.store.reports(now)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.reports = reports
		r.mu.Unlock()
		var d rotation.Decision
		next, d = s.Step(r.options.Policy, rotation.Facts{Now: now, Reports: reports})
		if d.Begin {
			if next, err = r.begin(next, d.Why, now); err != nil {
				return nil, err
			}
		}
		for _, text := range d.Changes {
			r.options.Log.Info("rotation of the root", "change", text)
		}
		changed = d.Begin || len(d.Changes) > 0
		if !changed && !stored {
			return nil, nil
		}
		return &next, nil
	})
	if err != nil {
		return false, err
	}
	r.hasStored(next)
	if err := r.apply(next, now); err != nil {
		return false, err
	}
	return changed, nil
}

// report returns what this instance distributes, and who has acknowledged it.
func (r *Rotator) report(now time.Time) rotation.Report {
	connected, waiting := r.options.Proxies()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(waiting) > 0:
		r.clear = time.Time{}
	case r.clear.IsZero():
		r.clear = now
	}
	out := rotation.Report{At: now, Connected: connected, Waiting: len(waiting), Names: waiting[:min(len(waiting), maxNames)], Clear: r.clear}
	for id := range r.roots {
		out.Trusted = append(out.Trusted, id)
	}
	slices.Sort(out.Trusted)
	return out
}

// maxNames limits the proxies that a report names.
const maxNames = 20

// begin makes a root and returns the state in which it is distributed.
func (r *Rotator) begin(s rotation.State, why string, now time.Time) (rotation.State, error) {
	if err := s.CanBegin(); err != nil {
		return s, err
	}
	ttl := r.options.RootTTL
	if ttl <= 0 {
		ttl = DefaultRootTTL
	}
	root, err := policy.NewRoot(r.options.Organization, r.rootKey(), pki.Validity{NotBefore: now.Add(-Backdate), NotAfter: now.Add(ttl)})
	if err != nil {
		return s, err
	}
	key, err := root.KeyPEM()
	if err != nil {
		return s, fmt.Errorf("create root key: %w", err)
	}
	next, err := s.Begin(rootOf(root.Root()), why, now)
	if err != nil {
		return s, err
	}
	if err := statefile.CreateOnce(r.options.StateDir, madeFolder(next.Next.ID), map[string][]byte{rootCert: pki.EncodeCerts(root.Root()), rootKey: key}); err != nil {
		return s, err
	}
	r.options.Log.Info("rotation of the root begins", "reason", why, "root", next.Next.ID[:16], "until", next.Next.NotAfter)
	return next, nil
}

func (r *Rotator) rootKey() pki.KeyKind {
	if r.options.RootKey == "" {
		return pki.ECDSAP256
	}
	return r.options.RootKey
}

// Rotate begins a rotation, which Status has when it returns. The error wraps rotation.ErrInProgress if one is in progress.
func (r *Rotator) Rotate(ctx context.Context) error {
	if err := r.replaced(); err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	err := r.store.changeExisting(ctx, func(s rotation.State) (*rotation.State, error) {
		next, err := r.begin(s, "requested", time.Now())
		if err != nil {
			return nil, err
		}
		return &next, nil
	})
	if err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	if _, err = r.cycle(ctx); err != nil { // for Status to have it
		r.tell(err)
	}
	select {
	case r.wake <- struct{}{}:
	default: // Run will look anyway
	}
	return nil
}

// apply loads the roots of a state, has them distributed, and replaces the issuer.
func (r *Rotator) apply(s rotation.State, now time.Time) error {
	loaded := map[string]*loadedRoot{}
	var certs []*x509.Certificate
	for _, t := range s.Trusted() {
		r.mu.Lock()
		l := r.roots[t.ID]
		r.mu.Unlock()
		if l == nil {
			var err error
			if l, err = loadRotated(folderOf(r.options.StateDir, t.ID), t.ID, now); err != nil {
				return err
			}
		}
		loaded[t.ID] = l
		certs = append(certs, l.cert)
	}
	signer, serving := loaded[s.Signer.ID].issuer, loaded[s.Serving(now).ID].issuer
	if signer == nil {
		return fmt.Errorf("root %.16s cannot sign: it has expired", s.Signer.ID)
	}
	if serving == nil {
		serving = signer
	}
	if err := r.replaced(); err != nil {
		return err
	}
	r.options.Distribute(pki.Normalize(certs))
	if err := errors.Join(r.serving.Replace(serving, certs), r.authority.Replace(signer, certs)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = r.authority.State()
	if !sameKeys(r.roots, loaded) {
		r.clear = time.Time{}
	}
	r.state, r.roots = s, loaded
	return nil
}

// errReplaced says that the self-signed root is not in use any more, or not alone.
var errReplaced = errors.New("another CA is plugged in: its files decide about the roots")

// replaced returns errReplaced if somebody else has changed the authority. The control plane's own certificates follow it then.
func (r *Rotator) replaced() error {
	now := r.authority.State()
	r.mu.Lock()
	applied := r.applied
	r.mu.Unlock()
	if now.Issuer == applied.Issuer && bytes.Equal(now.RootsPEM(), applied.RootsPEM()) {
		return nil
	}
	return errors.Join(errReplaced, r.serving.Replace(now.Issuer, now.Roots))
}

func sameKeys(a, b map[string]*loadedRoot) bool {
	for id := range a {
		if b[id] == nil {
			return false
		}
	}
	return len(a) == len(b)
}

// loadRotated loads a root, with its issuer unless it has expired.
func loadRotated(dir, id string, now time.Time) (*loadedRoot, error) {
	text, err := statefile.ReadPublic(filepath.Join(dir, rootCert))
	if err != nil {
		return nil, fmt.Errorf("read root certificate: %w", err)
	}
	certs, err := pki.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("read root certificate in %s: %w", dir, err)
	}
	if got := pki.Fingerprint(certs[0]); got != id {
		return nil, fmt.Errorf("read root certificate in %s: it is root %.16s, and %s names %.16s: restore the one that belongs to the other", dir, got, rotationFile, id)
	}
	if !now.Before(certs[0].NotAfter) {
		return &loadedRoot{cert: certs[0]}, nil
	}
	issuer, err := loadIssuer(dir, now)
	if err != nil {
		return nil, err
	}
	return &loadedRoot{cert: certs[0], issuer: issuer}, nil
}

// noteIssued records that a root has signed a leaf, before the leaf is handed out. What is stored lies
// somewhat later, so that it is not written for each leaf.
func (r *Rotator) noteIssued(root *x509.Certificate, until time.Time) {
	id := pki.Fingerprint(root)
	r.mu.Lock()
	known := !until.After(r.stored[id])
	if ahead := until.Add(time.Until(until) / 8); !known && ahead.After(r.issued[id]) {
		r.issued[id] = ahead
	}
	r.mu.Unlock()
	if known {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockTimeout)
	defer cancel()
	var next rotation.State
	err := r.store.changeExisting(ctx, func(s rotation.State) (*rotation.State, error) {
		var changed bool
		if next, changed = r.storeIssued(s); !changed {
			return nil, nil
		}
		return &next, nil
	})
	if err != nil {
		r.tell(err) // it is stored before the state changes
		return
	}
	r.hasStored(next)
}

// storeIssued adds the ends of leaves that are not stored yet to the state, and reports whether it has
// changed.
func (r *Rotator) storeIssued(s rotation.State) (rotation.State, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for id, until := range r.issued {
		next, later, err := s.Signed(id, until)
		if err != nil {
			r.options.Log.Error("a leaf was signed by a root that is not trusted any more", "reason", err, "until", until)
		}
		s, changed = next, changed || later
	}
	return s, changed
}

// hasStored notes that what storeIssued added to the state s is stored.
func (r *Rotator) hasStored(s rotation.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, until := range r.issued {
		if _, later, err := s.Signed(id, until); !later || err != nil {
			r.stored[id] = until
			delete(r.issued, id)
		}
	}
}

// removeFolders removes the folders of roots that the stored state s does not trust any more, with their
// keys, and those of rotations that were interrupted before they were stored.
func (r *Rotator) removeFolders(s rotation.State) error {
	made, err := madeFolders(r.options.StateDir)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, t := range s.Trusted() {
		keep[folderOf(r.options.StateDir, t.ID)] = true
	}
	for _, dir := range append(made, filepath.Join(r.options.StateDir, rootFolder)) {
		if keep[dir] {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove a root that is not trusted any more: %w", err)
		}
	}
	return nil
}
