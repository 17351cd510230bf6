package discovery

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// loop is the one writer: it alone changes the model and publishes views. Others send it
// batches of changes, joins, leaves and questions, and it takes whatever has piled up
// together, without a timer: an idle loop acts at once.
type loop struct {
	log *slog.Logger
	inbox
	gate gate
	kept *keeper
	done chan struct{}

	graph  *incr.Graph
	model  *model.Model
	store  *config.Store
	views  *publisher
	source []object.Problem           // what the source reports now
	told   map[string]object.Severity // the problems that the log has told and that still stand
	counts counts
}

// inbox is how others reach the loop.
type inbox struct {
	batches   chan object.Batch
	joins     chan joinRequest
	leaves    chan string
	questions chan func()
}

// counts is what happened since start, for metrics; only the loop's goroutine writes it.
type counts struct {
	events  map[object.Kind]uint64
	commits uint64
	spent   time.Duration
}

type joinRequest struct {
	id    string
	key   model.ProxyKey
	reply chan *xds.Cell
}

func newLoop(domain string, o compile.Options, lenience Lenience, kept *keeper, log *slog.Logger) *loop {
	g := incr.New()
	m := model.New(g, domain)
	l := &loop{
		log: log, graph: g, model: m, store: config.NewStore(), kept: kept,
		gate:  gate{lenience: lenience, remembered: len(kept.remembered(false)), since: kept.before.Written},
		views: newPublisher(g, m, compile.New(g, m, o)),
		inbox: inbox{
			batches: make(chan object.Batch, 16), joins: make(chan joinRequest), leaves: make(chan string), questions: make(chan func()),
		},
		done:   make(chan struct{}),
		counts: counts{events: map[object.Kind]uint64{}},
	}
	l.gate.shut(l.gate.against(false, nil))
	l.gate.notes.Store(&notes{})
	l.store.Remember(kept.before.Objects)
	return l
}

// Run is the loop. It returns nil when ctx ends; joins are refused from then on.
func (l *loop) Run(ctx context.Context) error {
	defer close(l.done)
	for {
		select {
		case b := <-l.batches:
			l.take(b)
		case j := <-l.joins:
			j.reply <- l.views.join(j.id, j.key)
		case id := <-l.leaves:
			l.views.leave(id)
		case ask := <-l.questions:
			ask()
		case <-ctx.Done():
			return nil
		}
	}
}

// take applies a batch, and those that wait behind it, as one commit.
func (l *loop) take(b object.Batch) {
	start := time.Now()
	for {
		l.absorb(b)
		select {
		case b = <-l.batches:
			continue
		default:
		}
		break
	}
	found := l.found()
	l.deny(found)
	l.decide(found)
	l.tell(found)
	moved := l.graph.Run()
	classes := l.views.update(moved)
	l.counts.commits++
	l.kept.changed()
	spent := time.Since(start)
	l.counts.spent += spent
	l.log.Debug("committed", "moved", len(moved), "classes", classes, "generation", l.views.generation, "took", spent)
}

// absorb validates a batch and stores what is good.
func (l *loop) absorb(b object.Batch) {
	accepted := l.store.Apply(l.gate.admit(b.Changes))
	for _, c := range accepted {
		l.counts.events[c.Key.Kind]++
	}
	l.model.Apply(accepted)
	if m, changed := l.store.MeshConfig(); changed {
		l.model.SetMesh(m)
	}
	if b.Problems != nil {
		l.source = b.Problems
	}
	if b.Synced {
		l.log.Info("configuration read", "objects", len(accepted))
		l.gate.synced = true
		l.store.Forget(func(k object.Key) bool { return k != meshFileKey })
	}
}

// tell logs each problem once when it comes up, and when none is left of it.
func (l *loop) tell(found []config.Verdict) {
	now, held := map[string]object.Severity{}, l.held()
	for _, v := range l.explained(found) {
		text := v.Error()
		now[text] = v.Severity
		if _, told := l.told[text]; told {
			continue
		}
		switch v.Severity {
		case object.Error:
			l.log.Error("configuration is not taken; "+l.meanwhile(v, held), "problem", text)
		case object.Warning:
			l.log.Warn("configuration has no effect, or not all of it", "problem", text)
		default:
			l.log.Debug("configuration is left out", "reason", text)
		}
	}
	for text, severity := range l.told {
		if _, stands := now[text]; !stands && severity != object.Info {
			l.log.Info("configuration problem is gone", "problem", text)
		}
	}
	l.told = now
	l.tellRestored()
}

// Emit hands the loop a batch; it waits while the loop is far behind.
func (l *loop) Emit(b object.Batch) {
	select {
	case l.batches <- b:
	case <-l.done:
	}
}

// Join makes the loop an xds.Registry.
func (l *loop) Join(ctx context.Context, n mesh.Node, id string) (*xds.Cell, func(), error) {
	if !l.gate.open.Load() {
		return nil, nil, status.Error(codes.Unavailable, *l.gate.why.Load()+"; try again")
	}
	j := joinRequest{id: id, key: model.KeyOf(n), reply: make(chan *xds.Cell, 1)}
	select {
	case l.joins <- j:
	case <-l.done:
		return nil, nil, status.Error(codes.Unavailable, "the control plane is ending")
	case <-ctx.Done():
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	leave := func() {
		select {
		case l.leaves <- id:
		case <-l.done:
		}
	}
	return <-j.reply, leave, nil
}

// ask runs f on the loop's goroutine and waits for it; false once the loop has ended.
func (l *loop) ask(f func()) bool {
	ran := make(chan struct{})
	select {
	case l.questions <- func() { f(); close(ran) }:
		<-ran
		return true
	case <-l.done:
		return false
	}
}

// problems is everything wrong with the configuration now, for people, with what is
// denied because of it. Call it through ask.
func (l *loop) problems() []config.Verdict { return l.explained(l.found()) }

// explained says of each broken policy, once, what it brings about.
func (l *loop) explained(found []config.Verdict) []config.Verdict {
	told := map[object.Policy]bool{}
	for i, v := range found {
		if v.Severity == object.Error && v.Policy.Broken && !told[v.Policy] && !l.knows(v.Policy.Key) {
			told[v.Policy] = true
			found[i].Text += l.effect(v)
		}
	}
	return found
}

// found is everything that the source and the rules have found wrong.
func (l *loop) found() []config.Verdict {
	return append(slices.Clone(l.source), l.store.Verdicts()...)
}

// snapshot is what is in force, for the keeper; nothing while proxies are not served: it
// may be that less is known than was saved.
func (l *loop) snapshot() snapshot {
	var s snapshot
	l.ask(func() {
		if l.gate.open.Load() {
			s = snapshot{objects: l.store.Good(), version: l.store.Version() + 1, ok: true}
		}
	})
	return s
}
