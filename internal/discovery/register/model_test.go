package register

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The model: several instances that share a store, whose changes each of them hears of late, and one proxy that moves among them.

// instance is one process of the control plane.
type instance struct {
	name    string
	machine *Machine
	heard   int // how many of the store's changes
	ids     []string
	beat    int
}

type world struct {
	t         *testing.T
	now       time.Time
	random    *rand.Rand
	instances []*instance
	leader    int
	started   int // processes so far
	// changes are all that the store has seen, entry what it has.
	changes []object.Change
	entry   *object.Object
	// away is when the proxy was last connected anywhere.
	away  time.Time
	ids   int
	beats map[string]string
	trace []string
}

func (w *world) log(format string, args ...any) {
	w.trace = append(w.trace, w.now.Sub(start).String()+" "+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.trace[max(0, len(w.trace)-60):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// start begins a process in place of the one with that index, whose connections end.
func (w *world) start(i int) {
	w.started++
	x := &instance{name: fmt.Sprint("p", w.started)}
	x.machine = New(Options{Instance: x.name, Grace: grace})
	w.instances[i] = x
	w.hear(x, len(w.changes))
	x.machine.Open(w.now)
	w.log("%s starts", x.name)
}

// hear has an instance hear of the store's changes up to a number.
func (w *world) hear(x *instance, upTo int) {
	for ; x.heard < upTo; x.heard++ {
		x.machine.Apply(w.changes[x.heard], w.now)
	}
}

func (w *world) connected() bool {
	for _, x := range w.instances {
		if len(x.ids) > 0 {
			return true
		}
	}
	return false
}

// act has an instance decide, and the store perform it.
func (w *world) act(x *instance) bool {
	k := plainProxy.Key()
	d, _ := x.machine.Decide(k, w.now)
	if d.Op == None {
		return false
	}
	if d.Op == Create && w.entry != nil || d.Op != Create && (w.entry == nil || !d.Same(w.entry.Meta.Annotations)) {
		w.log("%s is too late to %s", x.name, d.Op)
		return false
	}
	next := d.Object
	switch d.Op {
	case Delete:
		next = nil
		if away := w.now.Sub(w.away); w.connected() || away < grace {
			w.fail("%s deletes the entry of a proxy that is connected: %v, and was %v ago", x.name, w.connected(), away)
		}
	case Report:
		o := *w.entry
		o.Healthy = d.Health
		next = &o
	case Create, Update, None:
	}
	w.log("%s does %s: %s", x.name, d.Op, d.Why)
	w.entry = next
	w.changes = append(w.changes, object.Change{Key: k, Object: next})
	return true
}

// signs has the instances show that they are alive, and the leader read it.
func (w *world) signs() {
	for _, x := range w.instances {
		if x.machine.Holding() > 0 {
			x.beat++
			w.beats[x.name] = fmt.Sprint(x.beat)
		}
	}
	for i, x := range w.instances {
		x.machine.Lead(i == w.leader)
		if i == w.leader {
			x.machine.Beats(maps.Clone(w.beats), w.now)
		} else {
			x.machine.Beats(nil, w.now)
		}
	}
}

// settle lets time pass with everything delivered.
func (w *world) settle(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
		if w.connected() {
			w.away = w.now
		}
		w.signs()
		for round := 0; ; round++ {
			acted := false
			for _, x := range w.instances {
				w.hear(x, len(w.changes))
				acted = w.act(x) || acted
			}
			if !acted {
				break
			}
			if round > 20 {
				w.fail("instances go on writing")
			}
		}
	}
}

// step does something by chance.
func (w *world) step() {
	x := w.instances[w.random.IntN(len(w.instances))]
	switch w.random.IntN(10) {
	case 0, 1: // the proxy moves to an instance, and its old streams end
		w.ids++
		id := fmt.Sprint(w.ids)
		x.machine.Connect(id, plainProxy, w.now.Add(time.Duration(w.random.IntN(2000)-1000)*time.Millisecond))
		for _, y := range w.instances {
			for _, old := range y.ids {
				if y == x || w.random.IntN(3) > 0 {
					y.machine.Disconnect(old)
					y.ids = nil
				}
			}
		}
		x.ids = append(x.ids, id)
		w.log("the proxy connects to %s", x.name)
		// An instance writes at once when a proxy connects. If it did not, nobody else would know of the proxy.
		w.hear(x, len(w.changes))
		w.act(x)
	case 2: // it goes
		for _, y := range w.instances {
			for _, old := range y.ids {
				y.machine.Disconnect(old)
			}
			y.ids = nil
		}
		w.log("the proxy goes")
	case 3:
		w.start(w.random.IntN(len(w.instances)))
	case 4:
		w.leader = w.random.IntN(len(w.instances)+1) - 1 // or nobody leads
	case 5:
		w.hear(x, x.heard+w.random.IntN(len(w.changes)-x.heard+1))
	case 6:
		w.signs()
	case 7:
		w.now = w.now.Add(time.Duration(w.random.IntN(4000)) * time.Millisecond)
	default:
		w.act(x)
	}
	if w.connected() {
		w.away = w.now
	}
}

func play(t *testing.T, seed uint64) {
	w := &world{t: t, now: start, away: start, random: rand.New(rand.NewPCG(seed, 1)), instances: make([]*instance, 3), beats: map[string]string{}}
	w.changes = []object.Change{{Key: plain.Key, Object: plain}}
	byHand := seed%5 == 0
	if byHand {
		w.entry = &object.Object{Key: plainProxy.Key(), Spec: &networking.WorkloadEntry{Address: "10.0.0.1"}}
		w.changes = append(w.changes, object.Change{Key: w.entry.Key, Object: w.entry})
	}
	for i := range w.instances {
		w.start(i)
	}
	for range 300 {
		w.step()
		if w.random.IntN(40) == 0 {
			w.settle(time.Duration(w.random.IntN(40)) * time.Second)
			if w.connected() && w.entry == nil {
				w.fail("the proxy is connected, and has no entry")
			}
		}
	}
	w.leader = 0
	w.settle(2*Orphaned + grace)
	switch {
	case byHand:
		if len(w.changes) != 2 {
			w.fail("an entry that was written by hand has changed: %+v", w.entry)
		}
		return
	case w.connected():
		if w.entry == nil || w.entry.Meta.Annotations[mesh.DisconnectedAt] != "" {
			w.fail("the proxy is connected, and its entry is %+v", w.entry)
		}
		holder := false
		for _, x := range w.instances {
			holder = holder || len(x.ids) > 0 && w.entry.Meta.Annotations[mesh.WorkloadController] == x.machine.controller()
		}
		if !holder {
			w.fail("the entry says that %s holds it", w.entry.Meta.Annotations[mesh.WorkloadController])
		}
	}
	for _, y := range w.instances {
		for _, old := range y.ids {
			y.machine.Disconnect(old)
		}
		y.ids = nil
	}
	w.log("the proxy goes for good")
	w.settle(2*Orphaned + 2*grace)
	if w.entry != nil {
		w.fail("the proxy has gone for long, and its entry is %+v", w.entry.Meta)
	}
}

// TestInstancesShareEntries plays many sequences of events. An entry is never deleted while its proxy is connected somewhere, or
// within the grace; in the end there is one exactly if the proxy is connected, and one written by hand is as it was.
func TestInstancesShareEntries(t *testing.T) {
	seeds := 2000
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		play(t, uint64(seed))
	}
}

// FuzzInstancesShareEntries plays other sequences.
func FuzzInstancesShareEntries(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { play(t, seed) })
}
