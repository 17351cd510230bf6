package jwks

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// When keys are fetched.
const (
	// DefaultInterval is the age at which keys are fetched again, as with Istio.
	DefaultInterval = 20 * time.Minute
	// retryFirst and retryMost bound the pause after a fetch that failed.
	retryFirst = time.Second
	retryMost  = time.Minute
)

// How many fetches run at a time.
const (
	atOnce = 16
	// failingAtOnce bounds those of sources that have failed last, so that they do not hold up others.
	failingAtOnce = 8
	// ofHost bounds those of one host.
	ofHost = 2
)

// State is what is known of a source.
type State struct {
	// Keys is the last good key set, as pki.PublicKeySet returns it; empty if none is known. Number is how many keys it has.
	Keys   string
	Number int
	// Fetched is when a fetch last succeeded, Tried when one last ended, in this process; zero before the first.
	Fetched, Tried time.Time
	// Err is why the last fetch failed, empty if it succeeded; Failing is since when none has succeeded.
	Err     string
	Failing time.Time
}

// Plan decides when which source is fetched. It is not safe for concurrent use.
type Plan struct {
	interval time.Duration
	sources  map[Source]*planned
}

// planned is a source that is wanted, or one that is not any more and is being fetched.
type planned struct {
	state    State
	timeout  time.Duration
	next     time.Time
	failures int
	running  bool
	wanted   bool
}

// Fetch is a fetch to be made.
type Fetch struct {
	Source  Source
	Timeout time.Duration
}

// NewPlan returns a plan that fetches keys again after an interval, which must be positive. known are the states of sources that were
// fetched by an earlier process; they are kept until Want is called.
func NewPlan(interval time.Duration, known map[Source]State) *Plan {
	p := &Plan{interval: interval, sources: map[Source]*planned{}}
	for s, st := range known {
		p.sources[s] = &planned{state: st}
	}
	return p
}

// Want says which sources are needed, with the time that a fetch of each may take. New ones are fetched at once, others are forgotten.
func (p *Plan) Want(sources map[Source]time.Duration, now time.Time) {
	for s, one := range p.sources {
		if one.wanted = sources[s] > 0; !one.wanted && !one.running {
			delete(p.sources, s)
		}
	}
	for s, timeout := range sources {
		one := p.sources[s]
		if one == nil {
			one = &planned{next: now}
			p.sources[s] = one
		}
		if one.timeout, one.wanted = timeout, true; one.next.IsZero() {
			one.next = now // known from an earlier process
		}
	}
}

// Due returns the fetches that are to be started now: those first that were never tried, then those that have waited longest.
func (p *Plan) Due(now time.Time) []Fetch {
	var due []Source
	running, failing, hosts := 0, 0, map[string]int{}
	count := func(s Source, one *planned) {
		running++
		hosts[host(s)]++
		if one.failures > 0 {
			failing++
		}
	}
	for s, one := range p.sources {
		switch {
		case one.running:
			count(s, one)
		case one.wanted && !now.Before(one.next):
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b Source) int {
		x, y := p.sources[a], p.sources[b]
		return cmp.Or(min(x.failures, 1)-min(y.failures, 1), x.next.Compare(y.next), strings.Compare(a.Key(), b.Key()))
	})
	var out []Fetch
	for _, s := range due {
		one := p.sources[s]
		if running == atOnce || hosts[host(s)] == ofHost || one.failures > 0 && failing == failingAtOnce {
			continue
		}
		one.running = true
		count(s, one)
		out = append(out, Fetch{Source: s, Timeout: one.timeout})
	}
	return out
}

// host is the host that a source's first request goes to.
func host(s Source) string {
	u, err := ParseURL(s.First())
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// Next is when the next fetch is due; zero if none is before Done or Want is called.
func (p *Plan) Next() (next time.Time) {
	for _, one := range p.sources {
		if one.wanted && !one.running && (next.IsZero() || one.next.Before(next)) {
			next = one.next
		}
	}
	return next
}

// Done says how a fetch ended: with a key set as pki.PublicKeySet returns it, or with an error. jitter, from 0 to 1, shortens the pause until
// the next one, so that replicas that started together do not ask together. It returns what is known of the source now; false if the source
// is not wanted any more.
func (p *Plan) Done(s Source, keys string, number int, failed string, now time.Time, jitter float64) (State, bool) {
	one := p.sources[s]
	if one == nil {
		return State{}, false
	}
	one.running = false
	if !one.wanted {
		delete(p.sources, s)
		return State{}, false
	}
	pause := p.interval
	if one.state.Tried = now; failed == "" {
		one.failures = 0
		one.state = State{Keys: keys, Number: number, Fetched: now, Tried: now}
	} else {
		pause = min(retryFirst<<min(one.failures, 10), retryMost, p.interval)
		one.failures++
		if one.state.Err = failed; one.state.Failing.IsZero() {
			one.state.Failing = now
		}
	}
	// A failed source is tried again after at least half of the pause, a good one after at least nine tenths.
	share := 0.1
	if failed != "" {
		share = 0.5
	}
	one.next = now.Add(pause - time.Duration(jitter*share*float64(pause)))
	return one.state, true
}
