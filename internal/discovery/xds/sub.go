package xds

import (
	"slices"
	"strconv"
	"time"
)

const (
	// holdLimit bounds every wait for the client that keeps other state back.
	holdLimit = 5 * time.Second
	// stuckAfter is how long a response may go unanswered before that is reported.
	stuckAfter = 10 * time.Second
)

// maxNames bounds the names that a stream may subscribe to, of one type.
const maxNames = 1 << 15

// Event is an input of a Sub: Now, *Request or Moved. A Sub does not keep the Request.
type Event interface{ event() }

// Now is the time. It comes before each other event and at each Wake.
type Now struct {
	T time.Time
	// Behind says that the configuration may lack something which other instances of the control plane know.
	Behind bool
}

// Moved says that View is what the client shall have from now on.
type Moved struct{ View *View }

// Request is a discovery request of either flavour.
type Request struct {
	Type Type
	// Names are, for delta, what is newly subscribed; for SotW, all names.
	Names       nameList
	Unsubscribe nameList
	// Nonce is that of the response that is answered, empty on other requests.
	Nonce string
	// Refused is set on a NACK, and Message then says why.
	Refused bool
	Message string
	// Initial are the versions that a delta client has from an earlier stream.
	Initial versionList
}

func (Now) event()      {}
func (Moved) event()    {}
func (*Request) event() {}

// Effect is what a Sub wants done: Send, Acked, Nacked, Unrefused, Applied, Stuck, Stale, Wake,
// NeedsWholeRoutes or Refuse.
type Effect interface{ effect() }

// Send is a response to be written to the stream.
type Send struct {
	Type    Type
	Upserts []*Resource
	// Removed are names; always nil in SotW.
	Removed []string
	// Absent are names that the client asked for and that nothing has, of a type whose resources have
	// aliases.
	Absent []string
	Nonce  string
	// Generation is that of the view which the response comes from.
	Generation uint64
	// from has most of Upserts.
	from TypeView
}

// Acked reports that the response with that nonce was accepted.
type Acked struct {
	Type       Type
	Nonce      string
	Generation uint64
	// Refused is how many resources of the type the client still refuses in the version
	// that it was sent, from this or earlier responses.
	Refused int
}

// Nacked reports that the response with that nonce was refused. Names are the resources
// that the message names, or nil where it names none.
type Nacked struct {
	Type    Type
	Nonce   string
	Names   []string
	Message string
	// Again is set if each of Names was refused before in the same version.
	Again bool
}

// Unrefused reports that nothing is left of a type that the client has refused: the view has other
// versions now, which may be those that the client has.
type Unrefused struct{ Type Type }

// Applied reports that the client has asked for every type that the view has resources of,
// and has accepted all that it asked for. A client that subscribes to listeners by name
// (gRPC does) asks only for the types that it needs; no others are expected.
type Applied struct{ Generation uint64 }

// Stuck reports that the response with that nonce, sent at Since, has been unanswered for
// stuckAfter. It is reported once for each response; Acked or Nacked ends it.
type Stuck struct {
	Type  Type
	Nonce string
	Since time.Time
}

// Stale reports a request that answers no outstanding response.
type Stale struct{ Type Type }

// Wake asks for a Now at or after At. It replaces an earlier Wake, and is always sooner.
type Wake struct{ At time.Time }

// Refuse asks for the stream to be ended: the client overstepped a bound.
type Refuse struct{ Reason string }

func (Send) effect()      {}
func (Acked) effect()     {}
func (Nacked) effect()    {}
func (Applied) effect()   {}
func (Unrefused) effect() {}
func (Stuck) effect()     {}
func (Stale) effect()     {}
func (Wake) effect()      {}
func (Refuse) effect()    {}

// flight is a response that waits for its answer.
type flight struct {
	seq        uint64 // among all responses of the stream
	sotw       bool
	nonce      string
	generation uint64
	list       []*Resource // in the response; nil where whole is set
	whole      TypeView    // that the response has all of, and nothing else; zero if list says what it has
	removed    []string    // names in the response
	absent     []string    // names in the response that nothing has
	gone       []*Resource
	forced     *nameSet // what was asked for anew
	// fresh are those of them that a delta client was not subscribed to before.
	fresh *nameSet
	// had and hadKept are the type's have and kept before the response.
	had     TypeView
	hadKept map[string]*Resource
	since   time.Time
	// late: it took longer than holdLimit; no removal waits for it any more.
	late bool
	// received: the client has answered a later response. slow: the answer may be late for reasons
	// that cannot be seen.
	received, slow bool
	stuck          bool // that was reported
	own            int  // bytes of it that are not shared with other streams
	// covers is the response before it if the answer to this one was also for that.
	covers *flight
}

// before is what the client had under a name, or nil. If the response brings nothing else there, what counts is what it
// had before those that were answered with it: it has not accepted them.
func (f *flight) before(name string) *Resource {
	old := f.beforeAlone(name)
	if u := f.upsert(name); f.covers != nil && u != nil && old != nil && same(u, old) {
		return f.covers.before(name)
	}
	return old
}

func (f *flight) beforeAlone(name string) *Resource {
	if f.sotw && f.forced.has(name) || f.fresh.has(name) {
		return nil // it did not subscribe to it
	}
	if r, ok := f.hadKept[name]; ok {
		return r
	}
	return f.had.Get(name)
}

// upserts are the resources in the response, in order of names.
func (f *flight) upserts() []*Resource {
	if f.whole != (TypeView{}) {
		return f.whole.list()
	}
	return f.list
}

// lists are the resources in the response.
func (f *flight) lists() resourceLists {
	if f.whole != (TypeView{}) {
		return f.whole.lists()
	}
	return resourceLists{f.list}
}

// share lets go of the list of a response that has all of a view: it is as long as the view, and of this stream alone.
func (f *flight) share(view TypeView) { f.list, f.whole = nil, view }

// upsert is the resource of that name in the response, or nil.
func (f *flight) upsert(name string) *Resource {
	if f.whole != (TypeView{}) {
		return f.whole.Get(name)
	}
	if i, ok := slices.BinarySearchFunc(f.list, name, byName); ok {
		return f.list[i]
	}
	return nil
}

// has says whether a name is in the response.
func (f *flight) has(name string) bool {
	_, removed := slices.BinarySearch(f.removed, name)
	_, absent := slices.BinarySearch(f.absent, name)
	return removed || absent || f.upsert(name) != nil
}

// changes says whether a resource of the response is new to the client, or changed.
func (f *flight) changes(r *Resource) bool {
	old := f.before(r.Name)
	return old == nil || !same(old, r) || f.forced.has(r.Name)
}

// replaced says whether the response takes the place of something that names a cluster.
func (f *flight) replaced(cluster string) bool {
	return slices.ContainsFunc(f.gone, func(r *Resource) bool { return r.refersTo(cluster) }) ||
		slices.ContainsFunc(f.upserts(), func(r *Resource) bool {
			old := f.before(r.Name)
			return old != nil && !same(old, r) && old.refersTo(cluster)
		})
}

// typeState is the state of one type on one stream.
type typeState struct {
	asked    bool
	wildcard bool
	// named: a SotW client that once gave names; from then on no names means nothing.
	named bool
	// due: an answer is to be sent even if it is empty.
	due   bool
	names *nameSet
	// listed are the names in the last request of a SotW client.
	listed listID
	// have is what the client was sent. Of a type whose resources are named it may hold
	// more than the client subscribed to; only the names count then.
	have TypeView
	// own says that have is what the client claimed in its first request, which is not
	// shared with other streams; ownSize is its size in bytes.
	own     bool
	ownSize int
	// kept are the exceptions to have: what the client has instead under a name, nil for nothing,
	// because it refused what it was sent, or was not sent it yet.
	kept map[string]*Resource
	// left are what the view has removed and a SotW client may still use, by name: nothing tells it that a
	// named resource is gone. One stays here until the client accepts another version or gives up the name.
	left   map[string]*Resource
	forced *nameSet // answered again whatever have says
	// fresh are those of them that a delta client has not, whatever have says: it was not subscribed.
	fresh  *nameSet
	flight *flight // the last response, until it is answered
	// unanswered are those before it that are not answered either.
	unanswered []*flight
	nonce      string // the last one sent
	// refused are the resources that were NACKed, by name. They are not sent again until their
	// content changes, or it is time to try again.
	refused map[string]rejection
	// accepted is the generation of the newest response that was accepted.
	accepted uint64
	// closed are the listeners that a client is to have in place of those that it refuses, by name.
	closed map[string]closedListener
	target closedView
	// bisection looks for what was refused in a response without a word which; nil if there is none.
	bisection *bisection
	memo      computed
}

// computed is a difference with what it was computed from.
type computed struct {
	old, cur TypeView
	delta    *Delta
}

// Sub decides what one stream is sent, for all types together. It is a machine without a
// clock, and not for concurrent use.
type Sub struct {
	delta bool
	// single: the stream is of one type only; what depends on others is not known.
	single bool
	shared sharer
	now    time.Time
	behind bool // the last Now said so
	cur    *View
	states [numTypes]typeState
	// warming are the clusters that were sent and are not known to be in use.
	warming warmingClusters
	waits   map[waitKey]waitState
	// unasked: the client acknowledged clusters and let a wait for their assignments pass
	// without asking for them. It is not waited for until it asks.
	unasked bool
	// unknown is set while there is something that the client claims and that no view has had; nil for nearly every client.
	unknown *unknownClaims
	// expected is until when a client that comes from an earlier stream is expected to ask
	// for the types that it has not asked for yet; zero of a client that starts.
	expected time.Time
	holds    [numTypes]hold // of removals
	next     time.Time      // when the stream must be woken at the latest; zero for never
	seq      uint64
	applied  uint64 // generation
	// pending are the types of which something was to be sent or answered after the last Step with a view, and begins says
	// whether the client was still to ask for some: what is reported of the client rests on these.
	pending [numTypes]bool
	begins  bool
	woken   time.Time
	hosts   separateHosts
	out     []Effect
}

// NewSub starts a stream, of the delta protocol or of state-of-the-world. It shares what it computes
// with the other streams of the cache; nil is for none.
func NewSub(delta bool, cache *stepCache) *Sub {
	if cache == nil {
		return &Sub{delta: delta, shared: unshared{}}
	}
	return &Sub{delta: delta, shared: cache}
}

// NewSubOf is NewSub for a stream of one type: nothing waits for requests, answers or assignments of
// other types, since they come on other streams.
func NewSubOf(t Type, delta bool, cache *stepCache) *Sub {
	if t >= numTypes {
		panic("xds: a stream of one type of " + t.String())
	}
	s := NewSub(delta, cache)
	s.single = true
	return s
}

// Step handles an event and returns what is to be done about it, in order. The slice is
// valid until the next Step.
func (s *Sub) Step(ev Event) []Effect {
	s.out = s.out[:0]
	switch ev := ev.(type) {
	case Now:
		s.now, s.behind = ev.T, ev.Behind
		if s.woken.IsZero() || s.now.Before(s.woken) {
			return nil // nothing that was waited for has come to its end
		}
	case Moved:
		s.cur = ev.View
		s.learn()
		s.forgetRefused()
	case *Request:
		s.request(*ev)
	}
	if s.cur != nil && s.claimsWholeRoutes() {
		s.cur = nil
		s.emit(NeedsWholeRoutes{})
	}
	if s.cur != nil {
		s.routesClaimed()
		s.flush()
	}
	return s.out
}

// Subscribed is how many resources of a type the client is subscribed to.
func (s *Sub) Subscribed(t Type) int {
	c := &s.states[t]
	if c.wildcard {
		return c.have.Len()
	}
	return c.names.len()
}

// request handles a request of either flavour.
func (s *Sub) request(r Request) {
	c := &s.states[r.Type]
	before := c.names.len()
	if s.delta {
		s.deltaRequest(c, r)
	} else {
		s.sotwRequest(c, r)
	}
	if r.Type == EDS && (c.names.len() > before || c.wildcard) {
		s.unasked = false
	}
	if c.names.len() > maxNames || c.forced.len() > 2*maxNames {
		s.emit(Refuse{Reason: "more than " + strconv.Itoa(maxNames) + " " + r.Type.String() + " names subscribed: want at most that many"})
	}
}

func (s *Sub) emit(e Effect) { s.out = append(s.out, e) }

// has says whether the client subscribes to a name.
func (c *typeState) has(name string) bool { return c.wildcard || c.names.has(name) }

// force has names answered whatever the client has, and what it refused of them sent again.
func (c *typeState) force(names *nameSet) {
	c.forced = c.forced.with(names, nil)
	c.forgive(names)
}

// unforce undoes force.
func (c *typeState) unforce(names *nameSet) {
	c.forced, c.fresh = c.forced.with(nil, names), c.fresh.with(nil, names)
	c.forgive(names)
}

// forgive forgets that the client refused any of the names.
func (c *typeState) forgive(names *nameSet) {
	for n := range c.refused {
		if names.has(n) {
			delete(c.refused, n)
		}
	}
}
