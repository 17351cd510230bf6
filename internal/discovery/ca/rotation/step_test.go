package rotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

const year = 365 * 24 * time.Hour

func root(id string, from, to time.Duration) Root {
	return Root{ID: id, NotBefore: t0.Add(from), NotAfter: t0.Add(to)}
}

var (
	oldRoot = root("old", -year, 9*year)
	newRoot = root("new", 0, 10*year)
	tenth   = Policy{Share: 0.1}
)

// distributing is a state in which the new root is distributed by all since t0.
func distributing() State {
	return State{Signer: oldRoot, LastLeaf: t0.Add(24 * time.Hour), Next: &Next{Root: newRoot, Added: t0, Served: t0, Deadline: t0.Add(24 * time.Hour)}}
}

// says is a report of an instance that distributes both roots.
func says(instance string, at time.Duration, waiting int, clear time.Duration) Report {
	r := Report{Instance: instance, At: t0.Add(at), Trusted: []string{"old", "new"}, Connected: 3, Waiting: waiting}
	if waiting == 0 {
		r.Clear = t0.Add(clear)
	}
	return r
}

func only(r Report, ids ...string) Report {
	r.Trusted = ids
	return r
}

func TestStep(t *testing.T) {
	s, min, h := time.Second, time.Minute, time.Hour
	served := func(at, deadline time.Duration) func(*State) {
		return func(st *State) { st.Next.Served, st.Next.Deadline = t0.Add(at), t0.Add(deadline) }
	}
	fresh := distributing()
	fresh.Next = &Next{Root: newRoot, Added: t0}
	overlap := State{Signer: newRoot, Retired: []Retired{{oldRoot, t0.Add(24 * h)}}}
	ends := func(st State, at time.Duration) State {
		st.Signer.NotAfter = t0.Add(at)
		return st
	}
	for _, tt := range []struct {
		name    string
		from    State
		now     time.Duration
		reports []Report
		phase   Phase
		signer  string
		trusted string
		change  func(*State) // what differs from the state before, besides what the columns say
		next    time.Duration
	}{
		{"nothing is due", State{Signer: oldRoot}, 0, nil, Stable, "old", "old", nil, 8 * year},

		{"distributed by the only instance", fresh, 5 * s, []Report{says("a", 5*s, 1, 0)}, Distributing, "old", "old new", served(5*s, 24*h), 24 * h},
		{"no report yet", fresh, 5 * s, nil, Distributing, "old", "old new", nil, 9*year - min},
		{"one of two instances does not distribute it", fresh, 5 * s, []Report{says("a", 5*s, 0, 4*s), only(says("b", 4*s, 0, 4*s), "old")}, Distributing, "old", "old new", nil, 9*year - min},
		{"an instance has ended that did not", fresh, 5*s + ReportTTL, []Report{says("a", 5*s+ReportTTL, 1, 0), only(says("b", 4*s, 0, 4*s), "old")}, Distributing, "old", "old new", served(50*s, 24*h), 24 * h},
		{"no leaf is outstanding", State{Signer: oldRoot, Next: &Next{Root: newRoot, Added: t0}}, 5 * s, []Report{says("a", 5*s, 1, 0)}, Stable, "new", "new", nil, 9 * year},

		{"a proxy has not acknowledged", distributing(), 23 * h, []Report{says("a", 23*h, 1, 0)}, Distributing, "old", "old new", nil, 24 * h},
		{"all have for less than Hold", distributing(), 89 * s, []Report{says("a", 89*s, 0, 30*s)}, Distributing, "old", "old new", nil, 90 * s},
		{"all have for Hold", distributing(), 90 * s, []Report{says("a", 90*s, 0, 30*s)}, Overlap, "new", "new old", nil, 24 * h},
		{"the last of two instances counts", distributing(), 90 * s, []Report{says("a", 90*s, 0, 30*s), says("b", 80*s, 0, 40*s)}, Distributing, "old", "old new", nil, 100 * s},
		{"the other instance's proxies have not", distributing(), 90 * s, []Report{says("a", 90*s, 0, 0), says("b", 80*s, 2, 0)}, Distributing, "old", "old new", nil, 24 * h},
		{"an instance joins that does not distribute it", distributing(), 90 * s, []Report{says("a", 90*s, 0, 0), only(says("b", 80*s, 0, 80*s), "old")}, Distributing, "old", "old new", nil, 140 * s},
		{"acknowledged before all instances distribute it", State{Signer: oldRoot, LastLeaf: t0.Add(24 * h), Next: &Next{Root: newRoot, Served: t0.Add(80 * s), Deadline: t0.Add(24 * h)}}, 100 * s, []Report{says("a", 100*s, 0, 0)}, Distributing, "old", "old new", nil, 140 * s},
		{"one leaf lifetime has passed", distributing(), 24 * h, []Report{says("a", 24*h, 1, 0)}, Stable, "new", "new", nil, 9 * year},
		{"a lifetime has passed, a later leaf is valid", func() State { s := distributing(); s.LastLeaf = t0.Add(30 * h); return s }(), 24 * h, []Report{says("a", 24*h, 1, 0)}, Overlap, "new", "new old", nil, 30 * h},
		{"a lifetime has passed, an instance lags", distributing(), 24 * h, []Report{says("a", 24*h, 1, 0), only(says("b", 24*h, 0, 0), "old")}, Distributing, "old", "old new", nil, 9*year - min},
		{"the new root is not valid yet", func() State { s := distributing(); s.Next.NotBefore = t0.Add(48 * h); return s }(), 24 * h, []Report{says("a", 24*h, 0, 0)}, Distributing, "old", "old new", nil, 48 * h},
		{"the old root ends", ends(distributing(), h), h - min, []Report{says("a", h-min, 9, 0)}, Overlap, "new", "new old", nil, h},
		{"the old root has ended while nobody looked", ends(distributing(), h), 2 * h, nil, Stable, "new", "new", nil, 9 * year},

		{"the last leaf is valid", overlap, 24*h - s, nil, Overlap, "new", "new old", nil, 24 * h},
		{"the last leaf has ended", overlap, 24 * h, nil, Stable, "new", "new", nil, 9 * year},
	} {
		st, d := tt.from.Step(tenth, Facts{Now: t0.Add(tt.now), Reports: tt.reports})
		var ids []string
		for _, r := range st.Trusted() {
			ids = append(ids, r.ID)
		}
		if st.Phase() != tt.phase || st.Signer.ID != tt.signer || strings.Join(ids, " ") != tt.trusted {
			t.Errorf("%s: %s, %s signs, %q trusted; want %s, %s, %q (%q)", tt.name, st.Phase(), st.Signer.ID, ids, tt.phase, tt.signer, tt.trusted, d.Changes)
		}
		if got := d.Next.Sub(t0); got != tt.next {
			t.Errorf("%s: next look after %s, want %s", tt.name, got, tt.next)
		}
		if d.Begin {
			t.Errorf("%s: begins a rotation: %s", tt.name, d.Why)
		}
		if tt.phase == Distributing && st.Next != nil {
			want := tt.from
			if tt.change != nil {
				next := *want.Next
				want.Next = &next
				tt.change(&want)
			}
			if st.Retired = nil; !reflect.DeepEqual(st, want) {
				t.Errorf("%s: %+v %+v, want %+v %+v", tt.name, st, *st.Next, want, *want.Next)
			}
		}
		// What is stored and read again means the same.
		text, err := json.Marshal(st)
		var back State
		if err = errors.Join(err, json.Unmarshal(text, &back)); err != nil {
			t.Fatal(err)
		}
		if a, b := fmt.Sprintf("%+v", st), fmt.Sprintf("%+v", back); st.Next == nil && a != b {
			t.Errorf("%s: stored %s, read %s", tt.name, a, b)
		}
	}
}

func TestDue(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy Policy
		root   Root
		want   time.Duration
	}{
		{"a fifth is left", Policy{Share: 0.2}, root("r", 0, 10*year), 8 * year},
		{"with jitter", Policy{Share: 0.2, Jitter: time.Hour}, root("r", 0, 10*year), 8*year + time.Hour},
		{"jitter is bounded", Policy{Share: 0.5, Jitter: year}, root("r", 0, 10*time.Hour), 5*time.Hour + 30*time.Minute},
		{"room for leaves", Policy{Share: 0.2, Margin: 72 * time.Hour}, root("r", 0, 240*time.Hour), 168 * time.Hour},
		{"not in the first half", Policy{Share: 0.2, Margin: 72 * time.Hour}, root("r", 0, 100*time.Hour), 50 * time.Hour},
	} {
		if got := tt.policy.Due(tt.root).Sub(t0); got != tt.want {
			t.Errorf("%s: due after %s, want %s", tt.name, got, tt.want)
		}
	}
	due := State{Signer: root("old", -9*year, year)}
	if _, d := due.Step(tenth, Facts{Now: t0}); !d.Begin || !strings.Contains(d.Why, "root old ends at 2027-11-22T08:00:00Z") {
		t.Errorf("nine of ten years have passed: %+v", d)
	}
	if _, d := due.Step(tenth, Facts{Now: t0.Add(-time.Second)}); d.Begin || !d.Next.Equal(t0) {
		t.Errorf("a second before: %+v", d)
	}
	busy, err := due.Begin(newRoot, "a test", t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, d := busy.Step(tenth, Facts{Now: t0}); d.Begin {
		t.Error("a second rotation begins during the first")
	}
}

func TestBegin(t *testing.T) {
	s := State{Signer: oldRoot}
	next, err := s.Begin(newRoot, "a test", t0)
	if err != nil || s.Next != nil || next.Next.ID != "new" || next.Phase() != Distributing {
		t.Fatalf("%+v, %v", next, err)
	}
	if _, err := next.Begin(root("third", 0, year), "", t0); !errors.Is(err, ErrInProgress) {
		t.Errorf("during a rotation: %v", err)
	}
	if _, err := s.Begin(oldRoot, "", t0); err == nil || !strings.Contains(err.Error(), "want a new one") {
		t.Errorf("the same root: %v", err)
	}
	for i := range MaxTrusted - 1 {
		s.Retired = append(s.Retired, Retired{root(fmt.Sprint(i), 0, year), t0.Add(time.Hour)})
	}
	if _, err := s.Begin(newRoot, "", t0); err == nil || !strings.Contains(err.Error(), "8 roots are trusted, the maximum: want the oldest to end first, at 2026-11-22T09:00:00Z") {
		t.Errorf("too many roots: %v", err)
	}
}

func TestSigned(t *testing.T) {
	s := State{Signer: newRoot, LastLeaf: t0, Retired: []Retired{{oldRoot, t0}}}
	later := t0.Add(time.Hour)
	if got, changed, err := s.Signed("new", t0); changed || err != nil || !got.LastLeaf.Equal(t0) {
		t.Errorf("an earlier end: %+v %v %v", got, changed, err)
	}
	if got, changed, err := s.Signed("new", later); !changed || err != nil || !got.LastLeaf.Equal(later) {
		t.Errorf("a later end: %+v %v %v", got, changed, err)
	}
	if got, changed, err := s.Signed("old", later); !changed || err != nil || !got.Retired[0].Until.Equal(later) || !s.Retired[0].Until.Equal(t0) {
		t.Errorf("an instance that has not seen the change: %+v %v %v", got, changed, err)
	}
	if _, _, err := s.Signed("older", later); err == nil {
		t.Error("a root that is not trusted signs")
	}
}

func TestServing(t *testing.T) {
	s := State{Signer: newRoot, Retired: []Retired{{oldRoot, t0.Add(time.Hour)}}}
	until := t0.Add(time.Hour)
	can := func(string) time.Time { return until }
	if got := s.Serving(t0, can); got.ID != "old" {
		t.Errorf("%s issues the serving certificate, want the oldest", got.ID)
	}
	until = t0.Add(time.Second)
	if got := s.Serving(t0, can); got.ID != "new" {
		t.Errorf("%s issues the serving certificate, although it ends", got.ID)
	}
	until = time.Time{}
	if got := s.Serving(t0, can); got.ID != "new" {
		t.Errorf("%s issues the serving certificate, although nobody has its key", got.ID)
	}
}

// TestEveryVerifierTrustsEveryLeaf plays meshes with two instances, agents with and without PCDS that
// disconnect, restart and renew at random times, and checks after each event that each agent trusts the
// leaf of each other one. Agents renew at half of the lifetime, and lose no leaf.
func TestEveryVerifierTrustsEveryLeaf(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for run := range 40 {
		m := newModel(rand.New(rand.NewPCG(seed, uint64(run)))) // #nosec G404 -- a test
		for range 2500 {
			m.event()
			if err := m.check(); err != nil {
				t.Fatalf("run %d: %v\n%s", run, err, strings.Join(m.log, "\n"))
			}
		}
		if m.rotations == 0 || m.plugs == 0 {
			t.Fatalf("run %d: no rotation has ended\n%s", run, strings.Join(m.log, "\n"))
		}
	}
}

// model is a mesh: the stored state, instances with what they have read of it, and agents.
type model struct {
	rnd       *rand.Rand
	now       time.Time
	state     State
	instances [2]struct {
		seen   State
		clear  time.Time
		report Report
		left   map[int]bool // left without an acknowledgement
	}
	agents    [5]agent
	roots     int
	rotations int
	plugs     int
	log       []string
}

type agent struct {
	instance  int // -1: disconnected
	pcds      bool
	leafBy    string
	leafEnd   time.Time
	renew     time.Time
	trusts    map[string]bool
	acked     map[string]bool // what its instance distributed when it acknowledged
	reconnect time.Time
}

const leafLife = 6 * time.Minute

func newModel(rnd *rand.Rand) *model {
	m := &model{rnd: rnd, now: t0, state: State{Signer: root("r0", -time.Hour, time.Hour)}}
	for i := range m.instances {
		m.instances[i].seen, m.instances[i].clear, m.instances[i].left = m.state, m.now, map[int]bool{}
	}
	for i := range m.instances {
		m.instances[i].report = m.report(i)
	}
	for i := range m.agents {
		m.agents[i] = agent{instance: i % 2, pcds: i > 0 || rnd.IntN(2) == 0}
		m.sign(&m.agents[i], i%2)
	}
	return m
}

func (m *model) note(format string, args ...any) {
	m.log = append(m.log, m.now.Sub(t0).String()+" "+fmt.Sprintf(format, args...))
}

func set(roots []Root) map[string]bool {
	out := map[string]bool{}
	for _, r := range roots {
		out[r.ID] = true
	}
	return out
}

// sign issues a leaf as instance i.
func (m *model) sign(a *agent, i int) {
	seen := m.instances[i].seen
	a.leafBy, a.leafEnd = seen.Signer.ID, m.now.Add(leafLife)
	if a.leafEnd.After(seen.Signer.NotAfter) {
		a.leafEnd = seen.Signer.NotAfter
	}
	a.renew = m.now.Add(time.Duration(m.rnd.Int64N(int64(a.leafEnd.Sub(m.now) / 2))))
	var err error
	if m.state, _, err = m.state.Signed(a.leafBy, a.leafEnd); err != nil {
		panic(err)
	}
	a.trusts = set(seen.Trusted())
}

// step lets an instance read the state and act on it, as each does every few seconds.
func (m *model) step(i int) {
	in := &m.instances[i]
	if !reflect.DeepEqual(set(in.seen.Trusted()), set(m.state.Trusted())) {
		in.clear, in.left = time.Time{}, map[int]bool{}
	}
	in.seen = m.state
	m.pushed(i)
	in.report = m.report(i)
	reports := []Report{m.instances[0].report, m.instances[1].report}
	var d Decision
	was := len(m.state.Retired)
	m.state, d = m.state.Step(Policy{Share: 0.2, Margin: 20 * time.Minute}, Facts{Now: m.now, Reports: reports})
	if d.Begin {
		m.roots++
		var err error
		if m.state, err = m.state.Begin(root(fmt.Sprintf("r%d", m.roots), m.now.Sub(t0), m.now.Sub(t0)+time.Hour), d.Why, m.now); err != nil {
			panic(err)
		}
		m.note("begin %s", m.state.Next.ID)
	}
	for _, c := range d.Changes {
		m.note("%s", c)
	}
	if len(m.state.Retired) < was {
		m.rotations++
	}
	if !reflect.DeepEqual(set(in.seen.Trusted()), set(m.state.Trusted())) {
		in.clear, in.left = time.Time{}, map[int]bool{}
	}
	in.seen = m.state
}

// pushed gives the agents of an instance with PCDS what it distributes; most acknowledge.
func (m *model) pushed(i int) {
	for n := range m.agents {
		if a := &m.agents[n]; a.instance == i && a.pcds && m.rnd.IntN(3) > 0 {
			a.acked = set(m.instances[i].seen.Trusted())
			for id := range a.acked {
				a.trusts[id] = true
			}
			for id := range a.trusts {
				a.trusts[id] = a.acked[id]
			}
		}
	}
}

func (m *model) report(i int) Report {
	in := &m.instances[i]
	r := Report{Instance: fmt.Sprint(i), At: m.now}
	want := set(in.seen.Trusted())
	for id := range want {
		r.Trusted = append(r.Trusted, id)
	}
	for n, a := range m.agents {
		acked := reflect.DeepEqual(a.acked, want)
		switch {
		case a.instance == i && acked:
			delete(in.left, n)
		case a.instance == i || in.left[n]:
			r.Waiting++
		}
	}
	switch {
	case r.Waiting > 0:
		in.clear = time.Time{}
	case in.clear.IsZero():
		in.clear = m.now
	}
	r.Clear = in.clear
	return r
}

func (m *model) event() {
	m.now = m.now.Add(time.Duration(m.rnd.Int64N(int64(10 * time.Second))))
	m.due()
	for i := range m.instances {
		if m.rnd.IntN(2) == 0 || m.now.Sub(m.instances[i].report.At) > ReportTTL/2 {
			m.step(i)
		}
	}
	if m.rnd.IntN(150) == 0 || m.state.Signer.Plugged && m.state.Next == nil && m.state.Signer.NotAfter.Sub(m.now) < 25*time.Minute {
		m.plug()
	}
	n := m.rnd.IntN(len(m.agents))
	if a := &m.agents[n]; m.rnd.IntN(5) == 0 && a.instance >= 0 {
		if in := &m.instances[a.instance]; !reflect.DeepEqual(a.acked, set(in.seen.Trusted())) {
			in.left[n] = true
		}
		a.instance, a.acked = -1, nil
		a.reconnect = m.now.Add(time.Duration(m.rnd.Int64N(int64(Hold / 4))))
	}
}

// plug replaces the files of the CA: by those of a new CA, or of one that has signed or is trusted already. The files have any
// of the trusted roots, or none.
func (m *model) plug() {
	life := time.Hour
	m.roots++
	next := root(fmt.Sprintf("r%d", m.roots), m.now.Sub(t0), m.now.Sub(t0)+life)
	if trusted := m.state.Trusted(); m.rnd.IntN(2) == 0 {
		next = trusted[m.rnd.IntN(len(trusted))]
	}
	if next.NotAfter.Sub(m.now) < 20*time.Minute {
		return
	}
	next.Plugged = m.rnd.IntN(2) == 0 // one that is not ends by itself
	var further []Root
	for _, r := range m.state.Trusted() {
		if m.rnd.IntN(2) == 0 {
			further = append(further, r)
		}
	}
	state, changes, err := m.state.Plug(next, further, m.now)
	if err != nil {
		m.note("plug in %s: %v", next.ID, err)
		return
	}
	m.state = state
	m.plugs++
	m.note("plug in %s, %d further: %q", next.ID, len(further), changes)
}

// due renews and reconnects what is due.
func (m *model) due() {
	for n := range m.agents {
		a := &m.agents[n]
		if a.instance < 0 && !m.now.Before(a.reconnect) {
			a.instance = m.rnd.IntN(2)
		}
		if !m.now.Before(a.renew) {
			m.sign(a, max(a.instance, 0))
		}
	}
}

func (m *model) check() error {
	for i, a := range m.agents {
		for j, b := range m.agents {
			if m.now.Before(b.leafEnd) && !a.trusts[b.leafBy] {
				return fmt.Errorf("agent %d (pcds %v) trusts %v and not the leaf of agent %d by %s, which ends at %s", i, a.pcds, a.trusts, j, b.leafBy, b.leafEnd.Sub(t0))
			}
		}
	}
	return nil
}
