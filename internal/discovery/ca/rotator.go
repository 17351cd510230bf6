package ca

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// defaultPoll is how often an instance looks for changes of other instances, and reports to them.
const defaultPoll = 5 * time.Second

// issueTimeout is how long a leaf waits until its end is stored.
const issueTimeout = 3 * time.Second

// RotatorOptions configure a Rotator. All are required except Distribute and Proxies.
type RotatorOptions struct {
	// Store has the roots, and the state of their rotation.
	Store Store
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
	store     Store
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

// loadedRoot is a root of the store. The issuer is nil if it cannot sign any more.
type loadedRoot struct {
	cert   *x509.Certificate
	issuer *policy.Issuer
}

// OpenRotator continues the rotation of the authority, which OpenStore has opened with the same store.
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
		options: o, authority: a, serving: serving, store: o.Store, wake: make(chan struct{}, 1),
		roots: map[string]*loadedRoot{}, issued: map[string]time.Time{}, stored: map[string]time.Time{},
	}
	now := time.Now()
	var s rotation.State
	err = r.store.Change(context.Background(), func(old rotation.State, found bool) (*StoreChange, error) {
		if !found {
			old = r.initial(first.Issuer.Root(), now)
		}
		// The time alone may have changed it.
		s, _ = old.Step(o.Policy, rotation.Facts{Now: now})
		return &StoreChange{State: s}, nil
	})
	if err != nil {
		return nil, err
	}
	r.applied = first
	if err := r.apply(context.Background(), s, now); err != nil {
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
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
			defer cancel()
			return r.store.Leave(bounded)
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
	if err := r.store.Report(ctx, r.report(now)); err != nil {
		return false, err
	}
	// Before the state: a report that is older than the state can only delay the rotation.
	reports, err := r.store.Reports(ctx, now)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	r.reports = reports
	r.mu.Unlock()
	next, d, err := r.step(ctx, reports, now)
	if err != nil {
		return false, err
	}
	for _, text := range d.Changes {
		r.options.Log.Info("rotation of the root", "change", text)
	}
	if d.Begin {
		r.tellBegun(next)
	}
	r.hasStored(next)
	if err := r.apply(ctx, next, now); err != nil {
		return false, err
	}
	return d.Begin || len(d.Changes) > 0, nil
}

// step lets time and reports change the stored state, and stores the ends of leaves.
func (r *Rotator) step(ctx context.Context, reports []rotation.Report, now time.Time) (next rotation.State, d rotation.Decision, err error) {
	var made madeRoot
	err = r.changeExisting(ctx, func(s rotation.State) (_ *StoreChange, err error) {
		var added *StoredRoot
		s, stored := r.storeIssued(s)
		next, d = s.Step(r.options.Policy, rotation.Facts{Now: now, Reports: reports})
		if d.Begin {
			if next, added, err = r.begin(next, d.Why, &made, now); err != nil {
				return nil, err
			}
		}
		if !d.Begin && len(d.Changes) == 0 && !stored {
			return nil, nil
		}
		return &StoreChange{State: next, Added: added}, nil
	})
	return next, d, err
}

// changeExisting changes a state that must exist.
func (r *Rotator) changeExisting(ctx context.Context, f func(rotation.State) (*StoreChange, error)) error {
	return r.store.Change(ctx, func(old rotation.State, found bool) (*StoreChange, error) {
		if !found {
			return nil, fmt.Errorf("%s in %s: %w", RotationKey, r.store, errNotStored)
		}
		return f(old)
	})
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

// madeRoot is a root that was made for a rotation; empty before.
type madeRoot struct {
	issuer *policy.Issuer
	stored StoredRoot
}

// begin makes a root, unless it has been made, and returns the state in which it is distributed.
func (r *Rotator) begin(s rotation.State, why string, made *madeRoot, now time.Time) (rotation.State, *StoredRoot, error) {
	if err := s.CanBegin(); err != nil {
		return s, nil, err
	}
	if made.issuer == nil {
		var err error
		if made.issuer, made.stored, err = newStoredRoot(r.options.Organization, r.options.RootKey, r.options.RootTTL, now); err != nil {
			return s, nil, err
		}
	}
	next, err := s.Begin(rootOf(made.issuer.Root()), why, now)
	return next, &made.stored, err
}

// tellBegun logs that a rotation has begun.
func (r *Rotator) tellBegun(s rotation.State) {
	r.options.Log.Info("rotation of the root begins", "reason", s.Next.Why, "root", s.Next.ID[:16], "until", s.Next.NotAfter)
}

// Rotate begins a rotation, which Status has when it returns. The error wraps rotation.ErrInProgress if one is in progress.
func (r *Rotator) Rotate(ctx context.Context) error {
	if err := r.replaced(); err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	var made madeRoot
	var next rotation.State
	err := r.changeExisting(ctx, func(s rotation.State) (_ *StoreChange, err error) {
		var added *StoredRoot
		next, added, err = r.begin(s, "requested", &made, time.Now())
		if err != nil {
			return nil, err
		}
		return &StoreChange{State: next, Added: added}, nil
	})
	if err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	r.tellBegun(next)
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
func (r *Rotator) apply(ctx context.Context, s rotation.State, now time.Time) error {
	loaded := map[string]*loadedRoot{}
	var certs []*x509.Certificate
	for _, t := range s.Trusted() {
		r.mu.Lock()
		l := r.roots[t.ID]
		r.mu.Unlock()
		if l == nil {
			stored, err := r.store.Root(ctx, t.ID)
			if err != nil {
				return err
			}
			if l, err = stored.load(t.ID, now); err != nil {
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

// noteIssued records that a root has signed a leaf, before the leaf is handed out. What is stored lies
// somewhat later, so that it is not written for each leaf.
func (r *Rotator) noteIssued(root *x509.Certificate, until time.Time) {
	id := pki.Fingerprint(root)
	r.mu.Lock()
	known, failing := !until.After(r.stored[id]), r.problem != ""
	if ahead := until.Add(time.Until(until) / 8); !known && ahead.After(r.issued[id]) {
		r.issued[id] = ahead
	}
	r.mu.Unlock()
	// While nothing can be stored, nobody waits for it: Run stores it before the state changes.
	if known || failing {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), issueTimeout)
	defer cancel()
	var next rotation.State
	err := r.changeExisting(ctx, func(s rotation.State) (*StoreChange, error) {
		var changed bool
		if next, changed = r.storeIssued(s); !changed {
			return nil, nil
		}
		return &StoreChange{State: next}, nil
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
