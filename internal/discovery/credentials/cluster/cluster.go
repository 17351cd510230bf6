// Package cluster decides which callers may have the Secrets of their namespaces in a Kubernetes cluster, and reads these.
//
// Gateways of the Gateway API refer to Secrets of other namespaces, too, which are read for callers in the Gateway's namespace. A caller may have them if its ServiceAccount may list the Secrets of its namespace, as the API server says. An answer holds for a
// minute at most and is asked for again before, while the caller is connected; without an answer the caller gets nothing. The Secrets
// of a namespace are read while a caller that may have them is connected, and a minute longer, and are kept in memory only. A [Reader]
// may be used by several goroutines.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
)

const (
	// allowedFor is how long a permission holds after it was asked for, and againAfter when it is asked for again.
	allowedFor, againAfter = time.Minute, 40 * time.Second
	// firstPause and lastPause bound the time until a caller that has no permission, or of which it is not known, is asked for again.
	firstPause, lastPause = 2 * time.Second, 30 * time.Second
	// maxReviews is how many callers are asked for at a time, and reviewTimeout how long one may take.
	maxReviews, reviewTimeout = 8, 10 * time.Second
	// idle is how long the Secrets of a namespace are read after the last caller that may have them has gone.
	idle = time.Minute
)

// Store has the Secrets that were read; store.Store is one.
type Store interface {
	Put(namespace, name string, c *credentials.Credential)
	Reject(namespace, name, why string) (kept bool)
	Names(namespace string) []string
	Forget(namespace string)
	Notify()
}

// Events are told of the Secrets of a namespace. The data is not kept.
type Events interface {
	Put(name string, data map[string][]byte)
	Remove(name string)
	// Replace is told of all Secrets.
	Replace(all map[string]map[string][]byte)
	// Failed is told why Secrets cannot be read now; of nil if they are read again.
	Failed(err error)
}

// Options configure a Reader.
type Options struct {
	// Cluster is the name of the cluster. Callers in others get nothing.
	Cluster string
	// Allowed returns whether a ServiceAccount may list the Secrets of its namespace, and why not, if that is known.
	Allowed func(ctx context.Context, namespace, serviceAccount string) (allowed bool, why string, err error)
	// Follow tells of the Secrets of a namespace until ctx ends. Its calls do not overlap, but for those of Failed.
	Follow func(ctx context.Context, namespace string, to Events) error
	Store  Store
	Log    *slog.Logger
	// Now is the clock; by default time.Now.
	Now func() time.Time
}

// account is a ServiceAccount.
type account struct{ namespace, name string }

// wish is that callers with one ServiceAccount want the Secrets of its namespace.
type wish struct {
	callers int
	known   bool // whether there was an answer
	allowed bool
	until   time.Time // when a permission ends
	why     string    // there is none
	next    time.Time // when it is asked for again
	pause   time.Duration
	asking  bool
}

// followed is a namespace whose Secrets are read.
type followed struct {
	stop   context.CancelFunc
	unused time.Time // since when no caller may have them; zero while one may
	read   bool      // whole, once
	fault  string    // why they cannot be read
}

// Reader implements store.Access. Create one with New.
type Reader struct {
	o          Options
	mu         sync.Mutex // guards what follows
	wishes     map[account]*wish
	namespaces map[string]*followed
	references map[string]map[string]bool // of Gateways' namespaces to those of Secrets
	reviews    int
	wake       chan struct{}
}

// New returns a Reader, which asks and reads nothing before Run.
func New(o Options) *Reader {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Reader{o: o, wishes: map[account]*wish{}, namespaces: map[string]*followed{}, wake: make(chan struct{}, 1)}
}

// plain are names that no others can be confused with in the name of a user, or in a path of the API.
var plain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// accountOf is the ServiceAccount of a caller; why is set if it can have no Secrets.
func (r *Reader) accountOf(who credentials.Caller) (a account, why string) {
	a = account{who.Identity.Namespace, who.Identity.ServiceAccount}
	switch {
	case who.Cluster != "" && who.Cluster != r.o.Cluster:
		return a, fmt.Sprintf("the proxy says that it runs in the cluster %q, and Secrets of the cluster %q only are served", who.Cluster, r.o.Cluster)
	case !plain.MatchString(a.namespace) || !plain.MatchString(a.name):
		return a, "the proxy's identity is not that of a ServiceAccount"
	}
	return a, ""
}

// Want implements store.Access.
func (r *Reader) Want(who credentials.Caller) (release func()) {
	a, why := r.accountOf(who)
	if why != "" {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.wishes[a]
	if w == nil {
		w = &wish{next: r.o.Now()}
		r.wishes[a] = w
		r.notify()
	}
	w.callers++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if w.callers--; w.callers == 0 {
			delete(r.wishes, a)
			r.notify()
		}
	})
}

// Read implements store.Access.
func (r *Reader) Read(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.namespaces[namespace]
	return f != nil && f.read
}

// Refer implements store.Access. The maps must not be modified afterwards.
func (r *Reader) Refer(all map[string]map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.references = all
	r.notify()
}

// notify wakes Run. Callers hold r.mu.
func (r *Reader) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// May implements store.Access.
func (r *Reader) May(who credentials.Caller, namespace string) (credentials.State, string) {
	a, why := r.accountOf(who)
	if why != "" {
		return credentials.Forbidden, why
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w, f := r.wishes[a], r.namespaces[namespace]
	switch {
	case w == nil || !w.known:
		return credentials.Pending, ""
	case !w.allowed:
		return credentials.Forbidden, w.why
	case !r.o.Now().Before(w.until):
		return credentials.Pending, "" // it is being asked for again
	case f == nil || !f.read && f.fault == "":
		return credentials.Pending, ""
	case !f.read:
		return credentials.Missing, "the Secrets of the namespace cannot be read: " + f.fault
	}
	return credentials.Found, ""
}

// Run asks and reads until ctx ends, and returns when everything that it started has ended.
func (r *Reader) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(r.step(ctx, &tasks))
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// step begins and ends what is due, and returns when to look again.
func (r *Reader) step(ctx context.Context, tasks *sync.WaitGroup) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Now()
	wait := time.Hour
	at := func(t time.Time) { wait = max(min(wait, t.Sub(now)), time.Millisecond) }
	needed := map[string]bool{}
	for a, w := range r.wishes {
		if w.known && w.allowed && now.Before(w.until) {
			needed[a.namespace] = true
			for other := range r.references[a.namespace] {
				needed[other] = true
			}
			at(w.until)
		}
		switch {
		case w.asking:
		case now.Before(w.next):
			at(w.next)
		case r.reviews < maxReviews: // else the end of one wakes us
			r.reviews++
			w.asking = true
			tasks.Go(func() { r.ask(ctx, a, w) })
		}
	}
	for namespace := range needed {
		if r.namespaces[namespace] == nil {
			life, stop := context.WithCancel(ctx)
			f := &followed{stop: stop}
			r.namespaces[namespace] = f
			tasks.Go(func() { r.follow(life, namespace, f) })
		}
	}
	for namespace, f := range r.namespaces {
		switch {
		case needed[namespace]:
			f.unused = time.Time{}
		case f.unused.IsZero():
			f.unused = now
			at(now.Add(idle))
		case now.Sub(f.unused) < idle:
			at(f.unused.Add(idle))
		default:
			f.stop()
			delete(r.namespaces, namespace)
			r.o.Store.Forget(namespace)
			r.o.Log.Info("Secrets of a namespace are read no more: no gateway that may have them is connected", "namespace", namespace)
		}
	}
	return wait
}

// ask asks whether an account may have the Secrets of its namespace.
func (r *Reader) ask(ctx context.Context, a account, w *wish) {
	began := r.o.Now()
	life, cancel := context.WithTimeout(ctx, reviewTimeout)
	allowed, why, err := r.o.Allowed(life, a.namespace, a.name)
	cancel()
	r.mu.Lock()
	changed := r.answered(a, w, began, allowed, why, err)
	r.reviews--
	r.notify()
	r.mu.Unlock()
	if changed {
		r.o.Store.Notify()
	}
}

// answered notes an answer, and returns whether it changes what the account may have. Callers hold r.mu.
func (r *Reader) answered(a account, w *wish, began time.Time, allowed bool, why string, err error) (changed bool) {
	w.asking = false
	had := w.known && w.allowed
	known, before := w.known, w.why
	now := r.o.Now()
	switch {
	case err == nil && allowed:
		// A permission holds from when the question was asked: the answer may have been true only then.
		renewed := !had || !now.Before(w.until)
		w.known, w.allowed, w.why, w.pause = true, true, "", 0
		w.until, w.next = began.Add(allowedFor), began.Add(againAfter)
		return renewed
	case err != nil && had && now.Before(w.until):
		w.next = now.Add(firstPause) // the last answer still holds
		return false
	case err != nil:
		w.why = "it is not known whether the proxy's ServiceAccount may list the Secrets of its namespace: " + err.Error()
	default:
		w.why = fmt.Sprintf("the ServiceAccount %s of the proxy may not list the Secrets of the namespace %s: want a Role with list on secrets, bound to it", a.name, a.namespace)
		if why != "" {
			w.why += " (" + why + ")"
		}
	}
	w.known, w.allowed = true, false
	w.pause = min(max(2*w.pause, firstPause), lastPause)
	w.next = now.Add(w.pause)
	if had {
		r.o.Log.Warn("gateways get no further Secrets, and keep what they have", "namespace", a.namespace, "service_account", a.name, "reason", w.why)
	}
	return had || !known || before != w.why
}

// follow reads the Secrets of a namespace until ctx ends.
func (r *Reader) follow(ctx context.Context, namespace string, f *followed) {
	e := &events{r, namespace, f}
	r.o.Log.Info("reading the Secrets of a namespace for its gateways", "namespace", namespace)
	if err := r.o.Follow(ctx, namespace, e); err != nil {
		e.Failed(err)
	}
}

// events are what happens to the Secrets of one namespace.
type events struct {
	r         *Reader
	namespace string
	f         *followed
}

// current runs do if the namespace is still read by this follower.
func (e *events) current(do func()) {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	if e.r.namespaces[e.namespace] == e.f {
		do()
	}
}

// Put implements Events.
func (e *events) Put(name string, data map[string][]byte) {
	c, err := credentials.Parse(data)
	e.current(func() { e.put(name, c, err) })
}

// put stores a Secret, or why it is not used. Callers hold r.mu.
func (e *events) put(name string, c *credentials.Credential, err error) {
	switch {
	case err == nil:
		e.r.o.Store.Put(e.namespace, name, c)
	case credentials.IsOther(err):
		e.r.o.Store.Put(e.namespace, name, nil)
		e.r.o.Store.Reject(e.namespace, name, err.Error())
	case e.r.o.Store.Reject(e.namespace, name, err.Error()):
		e.r.o.Log.Error("Secret is not applied; gateways keep the last good one", "namespace", e.namespace, "name", name, "problem", err.Error())
	}
}

// Remove implements Events.
func (e *events) Remove(name string) {
	e.current(func() { e.r.o.Store.Put(e.namespace, name, nil) })
}

// Replace implements Events.
func (e *events) Replace(all map[string]map[string][]byte) {
	type parsed struct {
		c   *credentials.Credential
		err error
	}
	read := make(map[string]parsed, len(all))
	for name, data := range all {
		c, err := credentials.Parse(data)
		read[name] = parsed{c, err}
	}
	first := false
	e.current(func() {
		for _, name := range e.r.o.Store.Names(e.namespace) {
			if _, ok := read[name]; !ok {
				e.r.o.Store.Put(e.namespace, name, nil)
			}
		}
		for name, p := range read {
			e.put(name, p.c, p.err)
		}
		first = !e.f.read
		e.f.read, e.f.fault = true, ""
	})
	if first {
		e.r.o.Store.Notify()
	}
}

// Failed implements Events.
func (e *events) Failed(err error) {
	changed := false
	e.current(func() {
		text := ""
		if err != nil {
			text = err.Error()
			e.r.o.Log.Error("cannot read the Secrets of a namespace; gateways keep what they have", "namespace", e.namespace, "error", text)
		} else if e.f.fault != "" {
			e.r.o.Log.Info("the Secrets of a namespace are read again", "namespace", e.namespace)
		}
		changed = !e.f.read && (e.f.fault == "") != (text == "")
		e.f.fault = text
	})
	if changed {
		e.r.o.Store.Notify()
	}
}
