package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials/store"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks/fetch"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// loop is the one writer: it alone changes the model and publishes views. Others send it
// batches of changes, joins, leaves and questions, and it handles whatever has arrived
// together, without a timer: an idle loop acts at once.
type loop struct {
	log *slog.Logger
	inbox
	watchdog *watchdog
	gate     gate
	kept     *keeper
	// done is closed when the loop has ended, or is not waited for any more.
	done   chan struct{}
	ending sync.Once

	graph    *incr.Graph
	model    *model.Model
	store    *config.Store
	views    *publisher
	applied  *changeLog
	timeline *timeline
	// bootstraps are those of the agents that ask for them.
	bootstraps *bootstraps
	problems   *problems
	// fields finds the lines of the fields of problems; logged is how the problems are in the log that have other lines there, by their texts.
	fields  fieldLines
	logged  map[string]string
	secrets *store.Store // nil if none are stored
	// references are the Secrets that Gateways of the Gateway API may use; referring is set if they may have changed.
	references *incr.Rule[struct{}, map[credentials.Reference]bool]
	referring  bool
	// faults are what is wrong with Secrets of references, without who names them.
	faults map[credentials.Reference]string
	// gatewayStatuses are those of the objects of the Gateway API.
	gatewayStatuses *gatewayStatuses
	counts          counts
	triggers        triggers // of the present commit
	touched         *touched // nil if no statuses are written
	allocated       *allocator
	keys            *keyring
	// onMesh is called with the mesh configuration in force, in the loop's goroutine.
	onMesh func(*meshv1.MeshConfig)
	// onProxyConfigs is the same for the ProxyConfig objects in force, which proxyConfigs collects.
	onProxyConfigs func(*inject.ProxyConfigs)
	proxyConfigs   proxyConfigs
	// onObject are called with each change of an object in force, and onOpen once proxies are served, in the same goroutine.
	onObject []func(object.Change)
	onOpen   []func()
	// opened is closed once proxies are served.
	opened chan struct{}
	apart  apart
	// workloads are for pilotctl check.
	workloads workloads
	// traces are the objects to which the versions that proxies refuse were traced. why is compile.Compiler.Why,
	// which tests count.
	traces map[refusedVersion][]object.Key
	why    func(compile.Key, int) []object.Key

	// listing lists what the mesh has, for debug pages.
	listing *incr.Rule[struct{}, listing]
	// outlook lists what proxies of a scope see, for debug pages.
	outlook *incr.Rule[mesh.ScopeID, outlook]
	// shown lists what pages show of services, as of the commit shownAt; nil if no page has been shown.
	shown    *incr.Rule[struct{}, []ui.Service]
	lastPage []ui.Service
	shownAt  uint64
	// lacks are the gaps in the configuration as of the commit lacksAt and the views lacksOf.
	lacks   gaps
	lacksAt uint64
	lacksOf *viewsSnapshot
}

// inbox is how others reach the loop.
type inbox struct {
	batches   chan object.Batch
	joins     chan joinRequest
	fetched   chan fetch.Update
	questions chan func()
	signals   *signals
}

// counts is what happened since start, for metrics; only the loop's goroutine writes it.
type counts struct {
	// updates and triggers are by their types in Istio's metrics.
	updates, triggers map[string]uint64
	commits           uint64
	// acknowledged and late are the changes whose routes have waited for policies, by how that ended.
	acknowledged, late uint64
	spent              time.Duration
}

type joinRequest struct {
	id    string
	key   model.ProxyKey
	reply chan joined
}

// joined answers a joinRequest: where the views appear, or which workload the proxy wrongly
// claims to be.
type joined struct {
	latest  *xds.LatestView
	claimed string
}

func newLoop(domain string, o compile.Options, lenience Lenience, kept *keeper, log *slog.Logger) *loop {
	g := incr.New()
	m := model.New(g, domain)
	l := &loop{
		logged: map[string]string{}, log: log, graph: g, model: m, store: config.NewStore(), kept: kept,
		watchdog: newWatchdog(settings.DefaultWatchdog, log),
		gate:     gate{lenience: lenience, remembered: len(kept.remembered(false)), since: kept.before.Written},
		views:    newPublisher(g, m, compile.New(g, m, o)), applied: newChangeLog(), timeline: &timeline{},
		inbox: inbox{
			batches: make(chan object.Batch, 16), joins: make(chan joinRequest), fetched: make(chan fetch.Update), questions: make(chan func()), signals: newSignals(),
		},
		done: make(chan struct{}), onMesh: func(*meshv1.MeshConfig) {}, onProxyConfigs: func(*inject.ProxyConfigs) {},
		counts: counts{updates: map[string]uint64{}, triggers: map[string]uint64{}}, triggers: triggers{},
	}
	l.opened = make(chan struct{})
	l.onOpen = append(l.onOpen, func() { close(l.opened) })
	l.bootstraps = newBootstraps(l.views.compiler)
	l.listing, l.why, l.shown = listingRule(g, m), l.views.compiler.Why, shownServices(g, m)
	l.outlook = outlookRule(g, m)
	l.gatewayStatuses = newGatewayStatuses(g, m)
	l.references = incr.Derive(g, model.LevelCompile, "certificate references", func(r *incr.Reader, _ struct{}) map[credentials.Reference]bool { return m.CertificateReferences(r) })
	l.views.onApplied = func(generations []uint64) { l.timeline.applied(generations, time.Now()) }
	l.views.onGone = l.timeline.gone
	l.views.onListeners = l.signals.listeners
	l.views.onRefusal, l.allocated = l.signals.refuse, newAllocator(kept.before.Allocated)
	l.keys = newKeyring(recent(kept.before.Keys, time.Now()), m.SetKeys, log)
	l.keys.mode = o.RemoteKeys
	m.FetchKeysBy(o.RemoteKeys)
	if o.AllocateAsked {
		m.AllocateOnlyForThoseThatAsk()
	}
	l.allocated.asked = o.AllocateAsked
	l.problems = newProblems(func(k object.Key) bool { _, ok := l.store.Get(k); return ok }, l.effect)
	l.gate.shut(l.gate.against(false, nil))
	l.gate.notes.Store(&notes{})
	l.store.Remember(kept.before.Objects)
	return l
}

// follow has f called with each change of an object in force, and open once proxies are served. Call it before the loop runs.
func (l *loop) follow(f func(object.Change), open func()) {
	l.onObject, l.onOpen = append(l.onObject, f), append(l.onOpen, open)
}

// Run is the loop. It returns nil when ctx ends; joins are refused from then on.
func (l *loop) Run(ctx context.Context) error {
	defer l.end()
	var idle <-chan time.Time   // when a class has been idle for too long; nil while none is
	var barred <-chan time.Time // when routes have waited for policies for long enough; nil while none do
	var barredUntil time.Time   // that time
	var keys <-chan time.Time   // when what waits for keys has waited for long enough; nil while nothing does
	for {
		if at := l.keys.until(); keys == nil && !at.IsZero() {
			keys = time.After(time.Until(at))
		}
		if at := l.views.idle.until(); idle == nil && !at.IsZero() {
			idle = time.After(time.Until(at))
		}
		if at := l.views.barredUntil(); !at.IsZero() && (barred == nil || at.Before(barredUntil)) {
			barred, barredUntil = time.After(time.Until(at)), at
		}
		select {
		case b := <-l.batches:
			l.watchdog.do("commit", func() { l.commit(b) })
		case u := <-l.fetched:
			l.watchdog.do("keys of tokens", func() { l.takeKeys(u) })
		case j := <-l.joins:
			// A connection that joins again has left before.
			l.watchdog.do("join", func() { l.takeSignals(); j.reply <- l.join(j) })
		case <-l.signals.wake:
			l.watchdog.do("refusals and leaves", l.takeSignals)
		case ask := <-l.questions:
			l.watchdog.do("question", ask)
		case <-barred:
			barred = nil
			l.watchdog.do("policies that are not acknowledged", func() { l.settleBarriers(nil) })
		case <-keys:
			keys = nil
			l.watchdog.do("keys of tokens", l.releaseKeys)
		case <-idle:
			idle = nil
			l.watchdog.do("idle classes", l.views.dropIdle)
		case <-ctx.Done():
			return nil
		}
	}
}

// ended reports whether the loop does nothing any more.
func (l *loop) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// end says that the loop does nothing any more.
func (l *loop) end() { l.ending.Do(func() { close(l.done) }) }

// takeSignals handles what streams have told of.
func (l *loop) takeSignals() {
	refused, answered, left := l.signals.take()
	if l.views.refusalsChanged(refused); len(refused) > 0 {
		l.touched.refuse()
	}
	for _, id := range left {
		l.views.leave(id)
		l.bootstraps.leave(id)
	}
	l.settleBarriers(append(answered, left...))
}

// commit applies a batch, and those that wait behind it, as one change.
func (l *loop) commit(b object.Batch) {
	start, runs, before, wasSynced := time.Now(), l.graph.Runs(), l.views.generation, l.gate.synced
	var changes problemChanges
	var accepted []acceptedChange
	for {
		accepted = l.apply(b, accepted)
		if b.Problems != nil {
			l.touched.problems(l.problems.source)
			l.touched.problems(b.Problems)
			changes.source = b.Problems
		}
		select {
		case b = <-l.batches:
			continue
		default:
		}
		break
	}
	for _, a := range accepted {
		changes.objects = append(changes.objects, a.key)
		l.touched.object(a.key)
	}
	changes.added, changes.removed = l.store.VerdictChanges()
	l.touched.problems(changes.added)
	l.touched.problems(changes.removed)
	update := l.problems.update(changes)
	if update.policies {
		l.deny()
	}
	if l.gate.synced {
		l.keys.want()
	}
	l.openGate()
	l.logProblems(update)
	if l.gate.synced {
		// Before that not everything that wants an address is known, and the result would depend on the order.
		l.allocated.update(l.model, l.touched.object)
	}
	statuses, moved := l.gatewayStatuses.ran(l.graph.Run(), l.touched != nil, func(k object.Key) bool { _, ok := l.store.Get(k); return ok })
	for _, k := range statuses {
		l.touched.object(k)
	}
	l.refer()
	if len(accepted) > 0 || len(moved) > 0 || l.gate.synced && l.views.generation == 0 {
		l.views.begin()
		l.timeline.begin(l.views.generation, start)
	}
	classes, moves := l.views.update(moved, policiesOf(accepted)...)
	l.settleBarriers(nil)
	l.bootstraps.update(moved)
	l.applied.commit(l.views.generation, accepted, moves)
	if len(l.traces) > 0 && classes > 0 {
		l.touched.refuse()
	}
	l.countTriggers(classes)
	l.counts.commits++
	l.kept.changed()
	spent := time.Since(start)
	l.counts.spent += spent
	if l.views.generation != before {
		l.timeline.end(l.editOf(accepted, moves, classes, l.graph.Runs()-runs, spent))
	}
	l.log.Debug("committed", "moved", len(moved), "classes", classes, "generation", l.views.generation, "took", spent)
	if names := edited(accepted); len(names) > 0 && wasSynced {
		l.log.Info("configuration changed", "generation", l.views.generation, "objects", strings.Join(names, ", "), "proxies", l.views.published, "ms", spent.Milliseconds())
	}
}

// policiesOf are the policies among the objects of a commit.
func policiesOf(accepted []acceptedChange) (out []object.Key) {
	for _, a := range accepted {
		if isPolicy(a.key.Kind) {
			out = append(out, a.key)
		}
	}
	return out
}

// maxNamed is how many objects a line of the log names.
const maxNamed = 5

// edited are the objects of a commit that people write, in the order of the changes; workloads come and go by themselves.
func edited(accepted []acceptedChange) (names []string) {
	more := 0
	for _, a := range accepted {
		switch {
		case a.key.Kind == object.Pod || a.key.Kind == object.EndpointSlice || a.key.Kind == object.WorkloadEntry || a.key.Kind == object.Node:
		case len(names) == maxNamed:
			more++
		case a.removed:
			names = append(names, a.key.String()+" (removed)")
		default:
			names = append(names, a.key.String())
		}
	}
	if more > 0 {
		names[maxNamed-1] += fmt.Sprintf(" and %d more", more)
	}
	return names
}

// apply validates a batch and stores what is good; it appends what it stored or removed to the changes of
// the same commit.
func (l *loop) apply(b object.Batch, changes []acceptedChange) []acceptedChange {
	accepted := l.store.Apply(l.keys.hold(l.gate.admit(b.Changes, &l.apart), time.Now()))
	var ofMesh incr.Causes
	for _, c := range accepted {
		l.countUpdate(c)
		a := acceptedChange{key: c.Key, removed: c.Object == nil, cause: causeNumber(len(changes))}
		changes = append(changes, a)
		if l.store.IsMeshConfig(c.Key) {
			ofMesh |= a.cause
		}
		l.graph.Cause(a.cause)
		l.model.Apply([]object.Change{c})
		l.allocated.apply(c)
		l.keys.apply(c)
		l.proxyConfigs.apply(c)
		l.apart.apply(c)
		l.workloads.apply(c, time.Now())
		l.applySecret(c)
		l.gatewayStatuses.apply(c.Key)
		l.referring = l.referring || refers(c.Key.Kind)
		for _, f := range l.onObject {
			f(c)
		}
	}
	if all, changed := l.proxyConfigs.take(); changed {
		l.onProxyConfigs(all)
	}
	l.graph.Cause(ofMesh)
	if m, changed := l.store.MeshConfig(); changed {
		l.model.SetMesh(m)
		l.model.SetNetworks(l.store.Networks())
		l.onMesh(m)
	}
	l.graph.Cause(0)
	if b.Synced {
		l.log.Info("configuration read", "objects", len(accepted))
		l.gate.synced = true
		l.store.Forget(func(k object.Key) bool { return k != config.MeshFileKey })
	}
	return changes
}

// refers reports whether objects of a kind decide which Secrets are referred to: Gateways and ListenerSets name them, and the others permit that.
func refers(k object.Kind) bool {
	switch k {
	case object.KubernetesGateway, object.ListenerSet, object.ReferenceGrant, object.GatewayClass, object.Namespace:
		return true
	}
	return false
}

// refer has the store of Secrets know which ones Gateways of the Gateway API may use.
func (l *loop) refer() {
	if l.referring && l.secrets != nil {
		l.secrets.Refer(l.references.Want(struct{}{}))
		l.references.Unwant(struct{}{})
	}
	l.referring = false
}

// applySecret stores a Secret for the proxies that ask for it by name; those that are not for TLS are left out. In a cluster the
// source reads none: package credentials/cluster does.
func (l *loop) applySecret(c object.Change) {
	if c.Key.Kind != object.Secret || l.secrets == nil {
		return
	}
	var credential *credentials.Credential
	if c.Object != nil {
		spec, _ := c.Object.Spec.(*object.SecretSpec)
		credential, _ = credentials.Parse(spec.Data) // package config has rejected what is wrong
	}
	l.secrets.Put(c.Key.Namespace, c.Key.Name, credential)
}

// maxPlaced bounds the problems of one commit whose fields are looked for: the files are read for it.
const maxPlaced = 100

// logProblems logs each problem once when it comes up and once when it is gone.
func (l *loop) logProblems(u problemUpdate) {
	places := l.placesInForce()
	// At the lines that the page of problems has: those of their fields.
	placed := slices.Clone(u.raised)
	l.fields.place(placed[:min(len(placed), maxPlaced)])
	for i, v := range placed {
		text := v.Error()
		if unplaced := u.raised[i].Error(); unplaced != text {
			l.logged[unplaced] = text
		}
		switch v.Severity {
		case object.Error:
			l.log.Error("configuration is not applied; "+l.meanwhile(v, places), "problem", text)
		case object.Warning:
			l.log.Warn("configuration has no effect, or not all of it", "problem", text)
		default:
			l.log.Debug("about the configuration", "problem", text)
		}
	}
	for _, text := range u.cleared {
		if as, ok := l.logged[text]; ok {
			delete(l.logged, text)
			text = as
		}
		l.log.Info("configuration problem is gone", "problem", text)
	}
	l.logRestored()
}

// Emit hands the loop a batch; it waits while the loop is far behind.
func (l *loop) Emit(b object.Batch) {
	select {
	case l.batches <- b:
	case <-l.done:
	}
}

// join adds a proxy, unless it claims to be a workload of another service account.
func (l *loop) join(j joinRequest) joined {
	if claimed := l.claimed(j.key); claimed != "" {
		return joined{claimed: claimed}
	}
	return joined{latest: l.views.join(j.id, j.key)}
}

// claimed returns which workload of another service account a proxy claims to be, empty if none.
func (l *loop) claimed(key model.ProxyKey) string {
	claimed := l.model.Claims().Want(key)
	l.model.Claims().Unwant(key)
	if claimed != "" {
		l.graph.Run() // who is refused may come again with other claims: keep nothing of them
	}
	return claimed
}

// Join makes the loop an xds.Registry.
func (l *loop) Join(ctx context.Context, n mesh.Node, who mesh.Identity, id string) (*xds.LatestView, func(), error) {
	if !l.gate.open.Load() {
		return nil, nil, status.Error(codes.Unavailable, *l.gate.why.Load()+"; try again")
	}
	j := joinRequest{id: id, key: model.KeyOf(n, who.ServiceAccount), reply: make(chan joined, 1)}
	select {
	case l.joins <- j:
	case <-l.done:
		return nil, nil, status.Error(codes.Unavailable, "the control plane is ending")
	case <-l.watchdog.stalled():
		return nil, nil, status.Error(codes.Unavailable, "the control plane makes no progress; try again")
	case <-ctx.Done():
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	leave := func() { l.signals.leave(id) }
	var answer joined
	select {
	case answer = <-j.reply:
	case <-l.done:
		return nil, nil, status.Error(codes.Unavailable, "the control plane is ending")
	case <-ctx.Done():
		leave() // the loop adds it, or has done so
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	if answer.claimed != "" {
		return nil, nil, status.Errorf(codes.PermissionDenied, "node %s claims %s, but the caller is %s", n.ID, answer.claimed, who)
	}
	return answer.latest, leave, nil
}

// ask runs f on the loop's goroutine and waits for it; false if the loop has ended or makes no progress. What f
// writes must not be used then.
func (l *loop) ask(f func()) bool {
	ran := make(chan struct{})
	select {
	case l.questions <- func() { f(); close(ran) }:
		select {
		case <-ran:
			return true
		case <-l.done:
		}
	case <-l.done:
	case <-l.watchdog.stalled():
	}
	return false
}

// allProblems is everything wrong with the configuration now, for people, with what is
// denied because of it. Call it through ask.
func (l *loop) allProblems() []config.Verdict { return l.problemsWith(l.patchEffects()) }

// problemsWith is allProblems, given what patches do.
func (l *loop) problemsWith(effects map[patchID]*patchEffect) []config.Verdict {
	return slices.Concat(l.problems.all(l.store.Verdicts()), l.keyProblems(), l.refusalProblems(), l.lateProblems(), l.proxylessProblems(), l.patchProblems(effects), l.externalProblems(), l.remoteKeyProblems())
}

// goodObjects is what is in force, for the keeper; nothing while proxies are not served: it
// may be that less is known than was saved.
func (l *loop) goodObjects() goodObjects {
	var g goodObjects
	l.ask(func() {
		if l.gate.open.Load() {
			g = goodObjects{objects: l.store.Good(), allocated: l.allocated.pairs, keys: l.keys.saved(), version: l.store.Version() + l.allocated.version + l.keys.version + 1, ok: true}
		}
	})
	return g
}
