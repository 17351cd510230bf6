package ca

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// defaultPoll is how often an instance looks for changes of other instances, and reports to them.
const defaultPoll = 5 * time.Second

// issueTimeout is how long a leaf waits until its end is stored.
const issueTimeout = 3 * time.Second

// RotatorOptions configure a Rotator. All are required except Distribute, Proxies and Serves.
type RotatorOptions struct {
	// Store has the roots, and the state of their rotation.
	Store Store
	// Organization and RootTTL are those of a root that is made; 0 means DefaultRootTTL.
	Organization string
	RootTTL      time.Duration
	// RootKey is the kind of its key; "" means ECDSA P-256.
	RootKey pki.KeyKind
	// TTL is the default lifetime of a leaf, MaxTTL the longest.
	TTL, MaxTTL time.Duration
	// Plugged is the CA in files; nil if there is none, and the self-signed root signs. Plug replaces it.
	Plugged *policy.Plugged
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
	// Serves returns the ID of the root below which this instance serves webhooks; empty for none.
	Serves func() string
	Log    *slog.Logger
}

// Rotator replaces the root of an authority without a failed handshake: it rotates a self-signed root, and carries out the
// changes of a CA that is plugged in. It is safe for concurrent use. [control-plane 1.14.3, 1.14.7]
type Rotator struct {
	options   RotatorOptions
	authority *Authority
	serving   *Authority
	store     Store
	wake      chan struct{}

	cycling *semaphore.Weighted // held by cycle, which may wait for the Store, so that states are applied in order
	applied applied             // guarded by cycling

	mu      sync.Mutex // guards what follows
	state   rotation.State
	roots   map[string]*loadedRoot // trusted roots by ID
	issued  map[string]time.Time   // the ends of the last leaves that are not stored yet, by root
	stored  map[string]time.Time   // those that are
	reports []rotation.Report
	clear   time.Time
	problem string
	told    map[string]bool // the reasons that have been logged since it began
	broken  bool            // nothing could be stored when it was tried last
	serves  string          // the ID of the root that issues the control plane's own certificates
	// files is the CA that was plugged in last, nil if there is none, and pending says that the state does not have it yet.
	files   *policy.Plugged
	pending bool
	// issuers are those of CAs that were plugged in, by root: the newest of each.
	issuers map[string]*policy.Issuer
}

// loadedRoot is a root of the store. The issuer is nil if the store has no key, or if the root has expired.
type loadedRoot struct {
	cert   *x509.Certificate
	issuer *policy.Issuer
}

// OpenRotator continues the rotation of the authority, which Open has opened with the same store. If another root
// signed last, that root goes on if its key is there, and is only trusted otherwise.
func OpenRotator(ctx context.Context, a *Authority, o RotatorOptions) (*Rotator, error) {
	if o.Distribute == nil {
		o.Distribute = func([]*x509.Certificate) {}
	}
	if o.Serves == nil {
		o.Serves = func() string { return "" }
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
		options: o, authority: a, serving: serving, store: o.Store, wake: make(chan struct{}, 1), cycling: semaphore.NewWeighted(1),
		roots: map[string]*loadedRoot{}, issued: map[string]time.Time{}, stored: map[string]time.Time{}, issuers: map[string]*policy.Issuer{},
	}
	if o.Plugged != nil {
		if err := r.setFiles(*o.Plugged); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	s, err := r.open(ctx, first.Issuer, now)
	if err != nil {
		return nil, err
	}
	if err := r.apply(ctx, s, now); err != nil && !errors.Is(err, errNoKey) {
		return nil, err
	}
	a.onIssue(r.noteIssued)
	return r, nil
}

// open brings the stored state up to date: the time alone may have changed it, and the CA may be another one.
func (r *Rotator) open(ctx context.Context, first *policy.Issuer, now time.Time) (s rotation.State, err error) {
	var left leftOver
	if r.files != nil {
		left = r.leftOver(ctx, now)
	}
	var isNew, gone bool
	var changes []string
	err = r.store.Change(ctx, func(old rotation.State, found bool) (*StoreChange, error) {
		if isNew, gone, changes = !found, false, nil; isNew {
			old = r.initial(first, left, now)
		}
		s = old
		var added []StoredRoot
		switch {
		case r.files != nil:
			s, changes, added, err = r.plug(old, r.files, now)
		case old.HasPlugged():
			gone = true
			if s, changes, err = old.Plug(rootOf(first.Root()), nil, now); err != nil {
				break
			}
			// An instance with the files may have removed it meanwhile.
			added, err = keyOf(first)
		}
		if err != nil {
			return nil, err
		}
		facts := rotation.Facts{Now: now}
		if facts.Lost, err = r.lost(ctx, s.Signer, first, now); err != nil {
			return nil, err
		}
		var d rotation.Decision
		s, d = s.Step(r.options.Policy, facts)
		changes = append(changes, d.Changes...)
		return &StoreChange{State: s, Added: added}, nil
	})
	if err != nil {
		return s, err
	}
	r.pending = false
	if gone {
		r.options.Log.Warn("the files of the CA that was plugged in are gone: a self-signed root signs", "root", pki.Fingerprint(first.Root())[:16])
	}
	if isNew && left.err != nil {
		r.options.Log.Warn("the self-signed root is not trusted any more", "reason", left.err)
	}
	r.logChanges(changes)
	return s, nil
}

// keyOf returns a root that is in force as one to store.
func keyOf(root *policy.Issuer) ([]StoredRoot, error) {
	key, err := root.KeyPEM()
	if err != nil {
		return nil, fmt.Errorf("store root key: %w", err)
	}
	return []StoredRoot{{Cert: pki.EncodeCerts(root.Root()), Key: key}}, nil
}

// lost reports whether the key of the CA below a root is not there.
func (r *Rotator) lost(ctx context.Context, root rotation.Root, first *policy.Issuer, now time.Time) (bool, error) {
	if r.issuers[root.ID] != nil || root.ID == pki.Fingerprint(first.Root()) {
		return false, nil
	}
	stored, err := r.store.Root(ctx, root)
	if err != nil {
		return false, err
	}
	l, err := stored.load(root, now)
	return err == nil && l.issuer == nil, err
}

func (r *Rotator) logChanges(changes []string) {
	for _, text := range changes {
		r.options.Log.Info("rotation of the root", "change", text)
	}
}

// initial returns the state for a CA without one. Unless its root is new, it may have signed leaves already.
func (r *Rotator) initial(first *policy.Issuer, left leftOver, now time.Time) rotation.State {
	s := rotation.State{Signer: rootOf(first.Root())}
	ttl := r.options.MaxTTL
	if r.files != nil {
		// Otherwise a root that agents do not acknowledge would wait for months after the first start.
		ttl, s.Signer.Plugged = r.options.TTL, true
		if left.root != nil && left.root.ID != s.Signer.ID {
			s.Retired = []rotation.Retired{{Root: *left.root, Until: now.Add(r.options.TTL)}}
		}
		for _, c := range r.files.Roots { // as far as is known, they are trusted already
			s.Further = append(s.Further, rotation.Next{Root: pluggedRoot(c), Added: now, Served: now, Deadline: now})
		}
	}
	if now.Sub(first.Root().NotBefore) > Backdate+time.Minute {
		s.LastLeaf = now.Add(ttl)
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
			r.tellCycle(ctx, err)
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

// tellCycle is tell after a cycle. That its context has ended is no problem.
func (r *Rotator) tellCycle(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.tell(err)
	}
}

// tell logs each reason of a problem once, and the problem's end: a server that is away gives several reasons in turn.
func (r *Rotator) tell(err error) {
	r.mu.Lock()
	before := r.problem
	if r.problem = ""; err != nil {
		r.problem = printable.Reason(err)
	}
	now := r.problem
	isNew := now != "" && !r.told[now]
	switch {
	case now == "":
		r.told = nil
	case isNew && r.told == nil:
		r.told = map[string]bool{now: true}
	case isNew:
		r.told[now] = true
	}
	r.mu.Unlock()
	switch {
	case isNew:
		r.options.Log.Error("the root cannot be rotated", "reason", now)
	case now == "" && before != "":
		r.options.Log.Info("the root can be rotated again")
	}
}

// cycle reads the state, reports what this instance distributes, lets time and reports change the state, and applies it. It
// returns whether the state has changed.
func (r *Rotator) cycle(ctx context.Context) (changed bool, err error) {
	if err := r.cycling.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer r.cycling.Release(1)
	now := time.Now()
	next, err := r.look(ctx, now)
	r.setBroken(err != nil)
	if err != nil {
		return false, err
	}
	r.logChanges(next.changes)
	if next.begun {
		r.tellBegun(next.state)
	}
	r.hasStored(next.state)
	if next.plugErr == nil {
		r.hasPlugged(next.plugged)
	}
	if err := errors.Join(next.plugErr, r.apply(ctx, next.state, now)); err != nil {
		return false, err
	}
	return next.begun || len(next.changes) > 0, nil
}

// setBroken notes whether something could be stored.
func (r *Rotator) setBroken(broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = broken
}

// look reports what this instance distributes, and lets time and reports change the state.
func (r *Rotator) look(ctx context.Context, now time.Time) (stepped, error) {
	if err := r.store.Report(ctx, r.report(now)); err != nil {
		return stepped{}, err
	}
	// Before the state: a report that is older than the state can only delay the rotation.
	reports, err := r.store.Reports(ctx, now)
	if err != nil {
		return stepped{}, err
	}
	r.mu.Lock()
	r.reports = reports
	r.mu.Unlock()
	return r.step(ctx, reports, now)
}

// stepped is a state that has been stored, and what has led to it.
type stepped struct {
	state   rotation.State
	changes []string
	begun   bool            // a rotation has
	plugged *policy.Plugged // the CA that was to be plugged in, nil for none
	plugErr error           // why it could not be
}

// step lets time and reports change the stored state, stores the ends of leaves, and plugs in the CA that is pending.
func (r *Rotator) step(ctx context.Context, reports []rotation.Report, now time.Time) (out stepped, err error) {
	var made madeRoot
	err = r.changeExisting(ctx, func(s rotation.State) (*StoreChange, error) {
		s, stored := r.storeIssued(s)
		out = stepped{plugged: r.pendingFiles()}
		var added []StoredRoot
		if out.plugged != nil {
			// The state goes on without it: time may make room for another root.
			s, out.changes, added, out.plugErr = r.plug(s, out.plugged, now)
			stored = stored || out.plugErr == nil
		}
		next, d := s.Step(r.options.Policy, rotation.Facts{Now: now, Reports: reports, SignerEnd: r.signerEnd(s.Signer)})
		if out.begun = d.Begin; d.Begin {
			var root StoredRoot
			if next, root, err = r.begin(next, d.Why, &made, now); err != nil {
				return nil, err
			}
			added = append(added, root)
		}
		out.state, out.changes = next, append(out.changes, d.Changes...)
		if !out.begun && len(out.changes) == 0 && !stored {
			return nil, nil
		}
		return &StoreChange{State: next, Added: added}, nil
	})
	return out, err
}

// changeExisting changes a state that must exist.
func (r *Rotator) changeExisting(ctx context.Context, f func(rotation.State) (*StoreChange, error)) error {
	return r.store.Change(ctx, func(old rotation.State, found bool) (*StoreChange, error) {
		if !found {
			return nil, fmt.Errorf("%s in %s: %w", RotationKey, r.store, ErrNotStored)
		}
		return f(old)
	})
}

// signerEnd is when the chain ends by which this instance signs below a root; zero if it signs below another one.
func (r *Rotator) signerEnd(root rotation.Root) time.Time {
	issuer := r.authority.State().Issuer
	if pki.Fingerprint(issuer.Root()) != root.ID {
		return time.Time{}
	}
	return issuer.Validity().NotAfter
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
	out := rotation.Report{At: now, Connected: connected, Waiting: len(waiting), Names: waiting[:min(len(waiting), maxNames)], Clear: r.clear, Serves: r.options.Serves()}
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
func (r *Rotator) begin(s rotation.State, why string, made *madeRoot, now time.Time) (rotation.State, StoredRoot, error) {
	if err := s.CanBegin(); err != nil {
		return s, StoredRoot{}, err
	}
	if made.issuer == nil {
		var err error
		if made.issuer, made.stored, err = newStoredRoot(r.options.Organization, r.options.RootKey, r.options.RootTTL, now); err != nil {
			return s, StoredRoot{}, err
		}
	}
	next, err := s.Begin(rootOf(made.issuer.Root()), why, now)
	return next, made.stored, err
}

// tellBegun logs that a rotation has begun.
func (r *Rotator) tellBegun(s rotation.State) {
	r.options.Log.Info("rotation of the root begins", "reason", s.Next.Why, "root", s.Next.ID[:16], "until", s.Next.NotAfter)
}

// Rotate begins a rotation, which Status has when it returns. The error wraps rotation.ErrInProgress if one is in progress.
func (r *Rotator) Rotate(ctx context.Context) error {
	var made madeRoot
	var next rotation.State
	err := r.changeExisting(ctx, func(s rotation.State) (_ *StoreChange, err error) {
		var added StoredRoot
		if next, added, err = r.begin(s, "requested", &made, time.Now()); err != nil {
			return nil, err
		}
		return &StoreChange{State: next, Added: []StoredRoot{added}}, nil
	})
	if err != nil {
		return fmt.Errorf("rotate the root: %w", err)
	}
	r.tellBegun(next)
	if _, err = r.cycle(ctx); err != nil { // for Status to have it
		r.tellCycle(ctx, err)
	}
	r.wakeUp()
	return nil
}

// Served reports whether an instance serves webhooks below a root, as far as is known: by the latest reports, and for this
// one at present. One that does not say is of an earlier release, and may serve below all roots that it distributes.
func (r *Rotator) Served(id string) bool {
	if r.options.Serves() == id {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(r.reports, func(i rotation.Report) bool {
		return now.Sub(i.At) <= rotation.ReportTTL && (i.Serves == id || i.Serves == "" && slices.Contains(i.Trusted, id))
	})
}

// Wake has Run report at once.
func (r *Rotator) Wake() { r.wakeUp() }

func (r *Rotator) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // Run will look anyway
	}
}

// noteIssued records that a root has signed a leaf, before the leaf is handed out. What is stored lies
// somewhat later, so that it is not written for each leaf.
func (r *Rotator) noteIssued(root *x509.Certificate, until time.Time) {
	id := pki.Fingerprint(root)
	r.mu.Lock()
	known, broken := !until.After(r.stored[id]), r.broken
	if ahead := until.Add(time.Until(until) / 8); !known && ahead.After(r.issued[id]) {
		r.issued[id] = ahead
	}
	r.mu.Unlock()
	// While nothing can be stored, nobody waits for it: Run stores it before the state changes.
	if known || broken {
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
		r.setBroken(true)
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
