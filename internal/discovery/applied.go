package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Bounds of an answer.
const (
	// maxBehind is how many proxies are listed for one object.
	maxBehind = 100
	// maxRefusedNames is how many refused resources of a type are listed.
	maxRefusedNames = 20
	// maxErrorText is the size of an error in bytes.
	maxErrorText = 600
)

// appliedAnswer is the response of /debug/applied.
type appliedAnswer struct {
	// Started is when pilot-discovery started: generations count from then.
	Started    string `json:"started"`
	Generation uint64 `json:"generation"`
	// NotServed is why no proxy is served; empty if proxies are served.
	NotServed string         `json:"not_served,omitempty"`
	Objects   []appliedEntry `json:"objects"`
	// Problems are those of the documents that were sent.
	Problems []objectEntry `json:"problems,omitempty"`
	// Disconnected are those of the proxies that the request names that are not connected.
	Disconnected []string `json:"disconnected,omitempty"`
}

// The states of an object. With a file, they are those of the version in the file.
const (
	stateInForce = "in force"
	// stateOther: another version is in force, or none.
	stateOther    = "not in force"
	stateRejected = "rejected"
	stateRemoved  = "removed"
	stateUnknown  = "unknown"
)

// appliedEntry is how far the newest change of one object has come. The numbers are of the version in
// force, or of the removal.
type appliedEntry struct {
	Kind      object.Kind `json:"kind"`
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name"`
	State     string      `json:"state"`
	// Origin is where the version in force comes from; empty if there is none.
	Origin string `json:"origin,omitempty"`
	// Generation is that of the newest change; 0 if no change is known.
	Generation uint64 `json:"generation"`
	// Proxies is how many connected proxies the change concerns, Applied how many of them have it.
	Proxies int `json:"proxies"`
	Applied int `json:"applied"`
	// Behind are the others, in order of their names: at most 100.
	Behind []behindProxy `json:"behind,omitempty"`
	// Problems are those of the newest version, or of that in the file.
	Problems []objectEntry `json:"problems,omitempty"`
}

// behindProxy is a proxy that has not applied something.
type behindProxy struct {
	Proxy string `json:"proxy"`
	// Generation is the first one that it lacks, Since when it was to have it.
	Generation uint64       `json:"generation"`
	Since      string       `json:"since"`
	Types      []behindType `json:"types,omitempty"`
	// Refused says that the proxy has refused what it lacks: waiting does not help.
	Refused bool `json:"refused,omitempty"`
}

// The states of a type that a proxy is behind in.
const (
	typeRefused  = "refused"
	typeSent     = "not acknowledged"
	typeWaiting  = "not sent yet"
	typeNotAsked = "not asked for"
)

// behindType is a type that a proxy is behind in.
type behindType struct {
	Type  string `json:"type"`
	State string `json:"state"`
	// Resources are those refused, at most 20, and Message says why.
	Resources []string `json:"resources,omitempty"`
	Message   string   `json:"message,omitempty"`
}

// behindOf describes what a connection lacks of a view.
func behindOf(c xds.Connection, p xds.Progress, view *xds.View) behindProxy {
	out := behindProxy{Proxy: c.Node.ID, Generation: p.Missing, Since: p.Since.UTC().Format(time.RFC3339)}
	for _, t := range xds.Types() {
		st, asked := c.Types[t]
		b := behindType{Type: t.String()}
		held, message := quarantinedOf(view, t)
		switch {
		case len(st.Refused) == 0 && len(held) > 0:
			b.State, b.Resources, b.Message = typeRefused, held, message
		case !asked && view.Of(t).Len() == 0 || asked && st.Synced:
			continue
		case !asked:
			b.State = typeNotAsked
		case len(st.Refused) > 0:
			b.State, b.Resources, b.Message = typeRefused, st.Refused[:min(len(st.Refused), maxRefusedNames)], st.Message
		case st.SentNonce != st.AckedNonce:
			b.State = typeSent
		default:
			b.State = typeWaiting
		}
		out.Types = append(out.Types, b)
	}
	return out
}

// quarantinedOf returns the first names of a type that are in quarantine in a view, and why the first is.
func quarantinedOf(view *xds.View, t xds.Type) (names []string, message string) {
	for _, q := range view.Quarantined {
		if q.Type != t || len(names) == maxRefusedNames {
			continue
		}
		if len(names) == 0 {
			message = q.Message
		}
		names = append(names, q.Name)
	}
	return names, message
}

// concern is whom the newest change of an object concerns, and what is part of it.
type concern struct {
	key     object.Key
	change  objectChange
	inForce *object.Object // nil if there is none
	known   bool
	classes map[mesh.Class]bool
	proxies map[string]bool // connections, of those classes or of others
	effect  effect          // only the names
}

// concernOf finds whom the newest change of an object concerns: the proxies that have a layer that it has
// changed, and those that it gave another class. Layers and proxies that are newer than the change were
// made with it; of these it concerns the ones that were made from the object. Call it through ask.
func (l *loop) concernOf(k object.Key) concern {
	change, known := l.applied.objects[k]
	out := concern{key: k, change: change, known: known, classes: map[mesh.Class]bool{}, proxies: map[string]bool{}}
	if good, ok := l.store.Get(k); ok {
		out.inForce = &good
	}
	if !known {
		return out
	}
	p := l.views
	out.effect.names = maps.Clone(change.effect.names)
	add := func(layer *publishedLayer) {
		if layer != nil {
			for c := range layer.classes {
				out.classes[c.class] = true
			}
		}
	}
	for _, layer := range change.effect.layers {
		add(p.layers.byKey[layer])
	}
	for _, id := range change.effect.proxies {
		out.proxies[id] = true
	}
	if change.removed {
		return out
	}
	if l.store.IsMeshConfig(k) {
		// Everything is made from it, and no resource says so.
		out.effect.names = nil
		for id, m := range p.proxies {
			out.proxies[id] = out.proxies[id] || m.joined >= change.generation
		}
		return out
	}
	for d := range l.model.Dependents(k) {
		switch key := d.Key.(type) {
		case compile.Key:
			layer, name := p.layers.byKey[key.Layer()], resourceName{p.layers.typeOf(key.Kind), key.Name}
			if layer == nil || !layer.since(change.generation, name, add) {
				continue
			}
			if out.effect.names != nil {
				out.effect.names[name] = true
			}
		case model.ProxyKey:
			for id, m := range p.byKey[key] {
				if m.joined >= change.generation && (out.inForce == nil || model.Decides(out.inForce, m.class)) {
					out.proxies[id], out.effect.names = true, nil
				}
			}
		}
	}
	return out
}

// since calls add with the layer, and with those derived from it that have the resource from it, which were
// made in a generation or later. It reports whether there are any.
func (l *publishedLayer) since(generation uint64, name resourceName, add func(*publishedLayer)) (any bool) {
	if l.made >= generation {
		any = true
		add(l)
	}
	for d := range l.derived {
		if d.derivation.shares(name) && d.since(generation, name, add) {
			any = true
		}
	}
	return any
}

// proxyState is how far a proxy is at one moment.
type proxyState struct {
	id       string // of the connection
	progress xds.Progress
	class    mesh.Class
	view     *xds.View
}

// standing is how far all proxies are at one moment. It is immutable.
type standing struct {
	// byClass has the proxies of a class: first those that lack something, in the order of the first
	// generation that they lack.
	byClass map[mesh.Class][]*proxyState
	byID    map[string]*proxyState
}

// standingOf finds how far the proxies are. Of a proxy that has connected again only the newest connection
// counts, since the former ones may not have ended yet.
func standingOf(views *viewsSnapshot) standing {
	out := standing{byClass: map[mesh.Class][]*proxyState{}, byID: map[string]*proxyState{}}
	newest := map[string]uint64{}
	for id := range views.proxies {
		proxy, serial := splitConnection(id)
		newest[proxy] = max(newest[proxy], serial)
	}
	for id, p := range views.proxies {
		if proxy, serial := splitConnection(id); serial == newest[proxy] {
			s := &proxyState{id: id, progress: p.progress(), class: p.class, view: p.view}
			out.byClass[p.class], out.byID[id] = append(out.byClass[p.class], s), s
		}
	}
	for _, list := range out.byClass {
		slices.SortFunc(list, func(a, b *proxyState) int {
			return cmp.Or(cmp.Compare(a.progress.Missing-1, b.progress.Missing-1), cmp.Compare(a.id, b.id)) // 0 wraps around to the end
		})
	}
	return out
}

// without returns those of the proxies that are not connected.
func (s standing) without(proxies []string) (out []string) {
	connected := map[string]bool{}
	for id := range s.byID {
		proxy, _ := splitConnection(id)
		connected[proxy] = true
	}
	for _, p := range proxies {
		if !connected[p] {
			out = append(out, p)
		}
	}
	return out
}

// splitConnection returns the proxy of a connection, and the connection's serial number.
func splitConnection(id string) (proxy string, serial uint64) {
	i := strings.LastIndexByte(id, '-')
	serial, _ = strconv.ParseUint(id[i+1:], 10, 64)
	return id[:max(i, 0)], serial
}

// behind returns the proxies among those of the concern that have not applied its generation, in order of
// their ids, and the number of all.
func (s standing) behind(c concern) (behind []*proxyState, all int) {
	for class := range c.classes {
		list := s.byClass[class]
		all += len(list)
		for _, p := range list {
			if p.progress.Applied(c.change.generation) {
				break
			}
			behind = append(behind, p)
		}
	}
	for id := range c.proxies {
		p := s.byID[id]
		if p == nil || c.classes[p.class] || !c.proxies[id] {
			continue
		}
		if all++; !p.progress.Applied(c.change.generation) {
			behind = append(behind, p)
		}
	}
	slices.SortFunc(behind, func(a, b *proxyState) int { return strings.Compare(a.id, b.id) })
	return behind, all
}

// hasChange says whether a proxy that has not applied a generation has everything of the change, because
// it has refused only what is not part of it, or has refused something of it.
func hasChange(p xds.Progress, generation uint64, of *effect, types map[xds.Type]xds.TypeStatus) (has, refused bool) {
	if !p.Answered(generation) {
		return false, false
	}
	for t, st := range types {
		for _, name := range st.Refused {
			if of.has(resourceName{t, name}) {
				return false, true
			}
		}
	}
	return true, false
}

// quarantines reports whether a part of a change is in quarantine in a view.
func quarantines(view *xds.View, c concern) bool {
	return slices.ContainsFunc(view.Quarantined, func(q xds.Quarantined) bool {
		return c.change.generation > q.After && c.effect.has(resourceName{q.Type, q.Name})
	})
}

// entry describes how far a change has come. connection returns the state of a connection, false if it has
// none.
func (s standing) entry(c concern, connection func(id string) (xds.Connection, bool)) appliedEntry {
	out := appliedEntry{Kind: c.key.Kind, Namespace: c.key.Namespace, Name: c.key.Name, State: stateUnknown, Generation: c.change.generation}
	switch {
	case c.inForce != nil:
		out.State, out.Origin = stateInForce, c.inForce.Origin.String()
	case c.known:
		out.State = stateRemoved
	}
	if !c.known {
		return out
	}
	behind, all := s.behind(c)
	out.Proxies, out.Applied = all, all-len(behind)
	for _, p := range behind {
		state, begun := connection(p.id)
		if !begun {
			state.Node.ID, _ = splitConnection(p.id) // or it has just ended, and the loop does not know yet
		}
		has, refused := hasChange(p.progress, c.change.generation, &c.effect, state.Types)
		if quarantines(p.view, c) {
			has, refused = false, true
		}
		if has {
			out.Applied++
			continue
		}
		b := behindOf(state, p.progress, p.view)
		b.Refused = refused
		out.Behind = append(out.Behind, b)
	}
	return out
}

// problemsOf returns the current problems of an object. Call it through ask.
func (l *loop) problemsOf(k object.Key) (out []object.Problem) {
	for _, p := range l.allProblems() {
		if p.Key == k {
			out = append(out, p)
		}
	}
	return out
}

// entriesOf are problems as pages show them.
func entriesOf(problems []object.Problem) (out []objectEntry) {
	for _, p := range problems {
		e := objectEntry{Origin: p.Origin.String(), Severity: p.Severity.String(), Field: p.Field, Text: p.Text}
		if p.Key.Kind != "" {
			e.Object = p.Key.String()
		}
		out = append(out, e)
	}
	return out
}

// setState completes the state of an object's entry. version is that of a file, nil if the one in force is
// asked for; problems are those of the newest version that was read.
func (e *appliedEntry) setState(version, inForce *object.Object, problems []object.Problem) {
	switch {
	case version == nil:
		if config.Rejected(problems) {
			e.State, e.Problems = stateRejected, entriesOf(problems)
		}
	case config.Rejected(config.Validate(*version)):
		e.State, e.Problems = stateRejected, entriesOf(config.Validate(*version))
	case inForce != nil && config.SameContents(inForce, version):
		e.State = stateInForce
	default:
		e.State, e.Problems = stateOther, entriesOf(problems)
	}
}

// appliedQuery is what a request to /debug/applied is about.
type appliedQuery struct {
	all      bool            // all objects in force
	key      object.Key      // the object, unless there are
	versions []object.Object // versions of objects that a file has
	problems []object.Problem
	proxies  []string // of interest if they are not connected
}

// appliedQueryOf parses a request: a GET without parameters for all objects, a GET with kind, namespace and
// name for one, or a POST with the content of a file; the two latter may name proxies.
func appliedQueryOf(w http.ResponseWriter, r *http.Request) (q appliedQuery, err error) {
	values := r.URL.Query()
	q.proxies = values["proxy"]
	if r.Method == http.MethodPost {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, yamltree.MaxBytes))
		if err != nil {
			return q, fmt.Errorf("read the file: %w (want at most %d bytes)", err, yamltree.MaxBytes)
		}
		result := decode.Documents(cmp.Or(values.Get("file"), "-"), text)
		q.versions = result.Objects
		for _, p := range result.Problems {
			if p.Severity == object.Error {
				q.problems = append(q.problems, p)
			}
		}
		return q, nil
	}
	if len(values) == 0 {
		q.all = true
		return q, nil
	}
	kind, err := object.ParseKind(values.Get("kind"))
	if err != nil {
		return q, err
	}
	q.key = object.Key{Kind: kind, Namespace: values.Get("namespace"), Name: values.Get("name")}
	if q.key.Name == "" {
		return q, errors.New("missing name: want /debug/applied?kind=KIND&namespace=NAMESPACE&name=NAME")
	}
	return q, nil
}

// concernsAtOnce is how many objects the loop is asked about at once, so that commits do not wait for all.
const concernsAtOnce = 100

// concernsOf is concernOf for many objects, on any goroutine; false once the loop has ended.
func (l *loop) concernsOf(keys []object.Key) (out []concern, ok bool) {
	for chunk := range slices.Chunk(keys, concernsAtOnce) {
		if !l.ask(func() {
			for _, k := range chunk {
				out = append(out, l.concernOf(k))
			}
		}) {
			return nil, false
		}
	}
	return out, true
}

// addApplied adds to entries how many proxies have the newest change of their objects that is in force.
func (s *Server) addApplied(entries []objectEntry, keys []object.Key) {
	concerns, ok := s.loop.concernsOf(keys)
	views, alive := s.loop.viewsSnapshot()
	if !ok || !alive {
		return
	}
	state := standingOf(views)
	for i, c := range concerns {
		if e := state.entry(c, s.xds.Connection); e.State == stateInForce {
			entries[i].Generation, entries[i].Proxies, entries[i].Applied = e.Generation, &e.Proxies, &e.Applied
		}
	}
}

// applied serves /debug/applied.
func (s *Server) applied(w http.ResponseWriter, r *http.Request) {
	q, err := appliedQueryOf(w, r)
	if err != nil {
		http.Error(w, printable.Clip(err.Error(), maxErrorText), http.StatusBadRequest)
		return
	}
	out := appliedAnswer{Started: s.started.UTC().Format(time.RFC3339Nano), Objects: []appliedEntry{}, Problems: entriesOf(q.problems)}
	var views *viewsSnapshot
	var concerns []concern
	var problems [][]object.Problem
	var keys []object.Key
	ok := s.loop.ask(func() {
		views = s.loop.views.snapshot()
		if !s.loop.gate.open.Load() {
			out.NotServed = *s.loop.gate.why.Load()
		}
		switch {
		case q.all:
			keys = slices.Collect(maps.Keys(s.loop.applied.objects))
			return
		case len(q.versions) == 0 && q.key.Name != "":
			keys = []object.Key{q.key}
		}
		for _, v := range q.versions {
			keys = append(keys, v.Key)
		}
		for _, k := range keys {
			concerns, problems = append(concerns, s.loop.concernOf(k)), append(problems, s.loop.problemsOf(k))
		}
	})
	if ok && q.all {
		concerns, ok = s.loop.concernsOf(keys)
		concerns = slices.DeleteFunc(concerns, func(c concern) bool { return c.inForce == nil })
	}
	if !ok {
		http.Error(w, "pilot-discovery is ending", http.StatusServiceUnavailable)
		return
	}
	out.Generation = views.generation
	state := standingOf(views)
	out.Disconnected = state.without(q.proxies)
	for i, c := range concerns {
		e := state.entry(c, s.xds.Connection)
		switch {
		case q.all:
			e.Behind = nil
		case len(q.versions) > 0:
			e.setState(&q.versions[i], c.inForce, problems[i])
		default:
			e.setState(nil, c.inForce, problems[i])
		}
		e.Behind = e.Behind[:min(len(e.Behind), maxBehind)]
		out.Objects = append(out.Objects, e)
	}
	slices.SortFunc(out.Objects, func(a, b appliedEntry) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	writeJSON(w, out)
}
