// Package register decides which WorkloadEntries are written, updated and deleted for proxies that register themselves.
//
// A proxy that names a WorkloadGroup gets a WorkloadEntry made from it. The Machine is told what happens — proxies that connect to
// this instance of the control plane, leave it and report their health, the objects in force, which instances are alive — and
// Decide says what is to be written to an entry now, and when to ask again. It promises: an entry that was not registered
// is never written; an entry whose proxy is connected to another instance that is alive is not either; an entry is deleted only
// after its proxy was found to have gone and has not come back anywhere for the grace; what is decided on an old version of an entry is
// refused by who writes it, so that a late decision does no harm. Decide changes nothing, and the sequence of calls alone
// decides. A Machine is not safe for concurrent use. [agent V7, V8] [control-plane 1.3.10, 1.9.19]
package register

import (
	"maps"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Orphaned is how long an instance may show no sign of life until it is taken for gone, and how long entries of an earlier process
// wait for their proxies. Proxies whose control plane was away ask for it again within this time.
const Orphaned = 30 * time.Second

// controllerPrefix begins the names of instances in annotations. Those of other control planes are never taken for gone.
const controllerPrefix = "pilothouse/"

// Options configure a Machine.
type Options struct {
	// Instance is the name of this instance of the control plane, unique among those that write the same entries. Where one writes
	// alone, it is the same after a restart.
	Instance string
	// Grace is how long an entry stays when its proxy has gone.
	Grace time.Duration
	// NoHealth writes no health, and has entries be endpoints without it.
	NoHealth bool
}

// Machine decides for one instance of the control plane. Create one with New.
type Machine struct {
	o           Options
	groups      map[object.Key]*object.Object
	entries     map[object.Key]*entry
	connections map[string]*connection
	// held are the connections of each entry, in the order in which they were opened.
	held map[object.Key][]*connection
	// seen are the entries of which this process has held a connection.
	seen map[object.Key]bool
	// opened is when this instance began to serve proxies; zero before.
	opened  time.Time
	leading bool
	beats   beats
}

// entry is a WorkloadEntry in force.
type entry struct {
	*object.Object
	// gone is when DisconnectedAt was first seen to be what it is, and held the same for WorkloadController and ConnectedAt.
	gone, held time.Time
}

type connection struct {
	id     string
	proxy  Proxy
	at     time.Time
	health *object.Health // as it was reported last
}

// New returns a machine that knows nothing.
func New(o Options) *Machine {
	return &Machine{
		o: o, groups: map[object.Key]*object.Object{}, entries: map[object.Key]*entry{}, connections: map[string]*connection{},
		held: map[object.Key][]*connection{}, seen: map[object.Key]bool{}, beats: beats{seen: map[string]beat{}},
	}
}

// controller is the name of this instance in annotations.
func (m *Machine) controller() string { return controllerPrefix + m.o.Instance }

// Apply tells of an object in force, or that it is not any more, and returns the entries about which Decide may say something
// else. Kinds other than WorkloadGroup and WorkloadEntry, and objects of remote clusters, have no effect.
func (m *Machine) Apply(c object.Change, now time.Time) []object.Key {
	switch {
	case c.Key.Cluster != "":
	case c.Key.Kind == object.WorkloadGroup:
		if c.Object == nil {
			delete(m.groups, c.Key)
		} else {
			m.groups[c.Key] = c.Object
		}
		return m.keysOf(c.Key)
	case c.Key.Kind == object.WorkloadEntry:
		if c.Object == nil {
			delete(m.entries, c.Key)
		} else {
			m.entries[c.Key] = entryOf(c.Object, m.entries[c.Key], now)
		}
		if m.held[c.Key] != nil || c.Object != nil && isRegistered(c.Object) {
			return []object.Key{c.Key}
		}
	}
	return nil
}

// entryOf returns an entry of which another version may be known.
func entryOf(o *object.Object, before *entry, now time.Time) *entry {
	e := &entry{Object: o, gone: now, held: now}
	if before == nil {
		return e
	}
	same := func(name string) bool { return before.Meta.Annotations[name] == o.Meta.Annotations[name] }
	if same(mesh.DisconnectedAt) {
		e.gone = before.gone
	}
	if same(mesh.WorkloadController) && same(mesh.ConnectedAt) {
		e.held = before.held
	}
	return e
}

// keysOf returns the entries that proxies of a group hold here.
func (m *Machine) keysOf(group object.Key) (keys []object.Key) {
	for k, list := range m.held {
		if k.Namespace == group.Namespace && list[len(list)-1].proxy.Group == group.Name {
			keys = append(keys, k)
		}
	}
	return keys
}

// Open says that proxies are served from now on. Before, no entry is said to be without its proxy.
func (m *Machine) Open(now time.Time) []object.Key {
	if m.opened.IsZero() {
		m.opened = now
	}
	return m.Registered()
}

// Registered returns all registered entries.
func (m *Machine) Registered() (keys []object.Key) {
	for k, e := range m.entries {
		if isRegistered(e.Object) {
			keys = append(keys, k)
		}
	}
	return keys
}

// Lead says whether this instance cleans up what others have left behind.
func (m *Machine) Lead(leading bool) []object.Key {
	if m.leading == leading {
		return nil
	}
	m.leading = leading
	return m.Registered()
}

// Holding is how many proxies that register themselves are connected to this instance.
func (m *Machine) Holding() int { return len(m.connections) }

// Connect tells of a connection of a proxy that Admit has admitted. The id is unique. It returns the entry.
func (m *Machine) Connect(id string, p Proxy, now time.Time) object.Key {
	c := &connection{id: id, proxy: p, at: now}
	m.connections[id] = c
	k := p.Key()
	m.held[k] = append(m.held[k], c)
	m.seen[k] = true
	return k
}

// Disconnect tells that a connection has ended. It returns its entry, false if Connect was not called with the id.
func (m *Machine) Disconnect(id string) (object.Key, bool) {
	c := m.connections[id]
	if c == nil {
		return object.Key{}, false
	}
	delete(m.connections, id)
	k := c.proxy.Key()
	m.held[k] = slices.DeleteFunc(m.held[k], func(x *connection) bool { return x == c })
	if len(m.held[k]) == 0 {
		delete(m.held, k)
	}
	return k, true
}

// Report tells what a proxy has reported of its application. It returns the entry, false if the connection has none.
func (m *Machine) Report(id string, healthy bool, message string) (object.Key, bool) {
	c := m.connections[id]
	if c == nil {
		return object.Key{}, false
	}
	c.health = object.HealthOf(healthy, message)
	return c.proxy.Key(), true
}

// LacksProbe reports whether the group of a proxy has a probe that the proxy does not run.
func (m *Machine) LacksProbe(p Proxy) bool {
	group := m.groups[p.groupKey()]
	if group == nil || p.Reports {
		return false
	}
	spec, ok := group.Spec.(*networking.WorkloadGroup)
	return ok && spec.GetProbe() != nil
}

// Op is what is done to an entry.
type Op uint8

// The operations. Report changes the health of an entry, and nothing else of it.
const (
	None Op = iota
	Create
	Update
	Report
	Delete
)

// String returns the name of the operation in the log.
func (o Op) String() string {
	return [...]string{None: "none", Create: "create", Update: "update", Report: "report", Delete: "delete"}[o]
}

// Write is what is to be written to an entry.
type Write struct {
	Op  Op
	Key object.Key
	// Object is what Create and Update write: labels, annotations and spec. Owner is the WorkloadGroup, for Create.
	Object, Owner *object.Object
	// Base is the version on which Update, Report and Delete were decided. They must do nothing if the entry is not Same any more.
	Base *object.Object
	// Health is what Report writes.
	Health *object.Health
	// Why says for the log what has led to it.
	Why string
}

// Same reports whether an entry with these annotations is still held as the version on which a write was decided, so that the
// write is not too late.
func (w *Write) Same(annotations map[string]string) bool {
	for _, name := range []string{mesh.AutoRegistrationGroup, mesh.WorkloadController, mesh.ConnectedAt, mesh.DisconnectedAt} {
		if w.Base == nil || w.Base.Meta.Annotations[name] != annotations[name] {
			return false
		}
	}
	return true
}

// Decide returns what is to be written to an entry, and when to ask again at the latest if nothing happens; a zero time is never.
func (m *Machine) Decide(k object.Key, now time.Time) (w Write, next time.Time) {
	e, held := m.entries[k], m.held[k]
	switch {
	case len(held) > 0:
		w = m.connected(e, held[len(held)-1], now)
	case e != nil && isRegistered(e.Object) && !m.opened.IsZero():
		w, next = m.disconnected(k, e, now)
	}
	if w.Op != None {
		w.Key = k
		if e != nil {
			w.Base = e.Object
		}
	}
	return w, next
}

// connected decides about an entry whose proxy is connected here.
func (m *Machine) connected(e *entry, c *connection, now time.Time) Write {
	group := m.groups[c.proxy.groupKey()]
	if group == nil || accountOf(group) != c.proxy.Account {
		if e != nil && isRegistered(e.Object) && e.Meta.Annotations[mesh.WorkloadController] == m.controller() {
			return Write{Op: Delete, Why: "its WorkloadGroup does not exist any more, or is for another service account"}
		}
		return Write{}
	}
	want := m.wanted(group, c)
	switch {
	case e == nil:
		return Write{Op: Create, Object: want, Owner: group, Why: "a proxy has connected"}
	case !isRegistered(e.Object):
		return Write{} // somebody has written it by hand
	case m.isElsewhere(e, c.at, now):
		return Write{}
	case !sameEntry(e.Object, want):
		return Write{Op: Update, Object: want, Why: "a proxy has connected, or its WorkloadGroup has changed"}
	case !m.o.NoHealth && c.proxy.Reports && c.health != nil && (e.Healthy == nil || *e.Healthy != *c.health):
		return Write{Op: Report, Health: c.health, Why: "a proxy has reported its health"}
	}
	return Write{}
}

// isElsewhere reports whether the proxy of an entry has connected to another instance since it connected here. The clocks of
// instances may differ: once the other one says that the proxy has gone, or has itself ended, it is here.
func (m *Machine) isElsewhere(e *entry, since, now time.Time) bool {
	a := e.Meta.Annotations
	if a[mesh.WorkloadController] == m.controller() || a[mesh.DisconnectedAt] != "" {
		return false
	}
	if ended, known := m.endOf(e); known && !now.Before(ended) {
		return false
	}
	at, err := time.Parse(time.RFC3339Nano, a[mesh.ConnectedAt])
	return err == nil && (at.After(since) || at.Equal(since) && a[mesh.WorkloadController] > m.controller())
}

// disconnected decides about a registered entry whose proxy is not connected here.
func (m *Machine) disconnected(k object.Key, e *entry, now time.Time) (Write, time.Time) {
	controller := e.Meta.Annotations[mesh.WorkloadController]
	own, cleans := controller == m.controller(), m.leading && isOurs(e.Object)
	if e.Meta.Annotations[mesh.DisconnectedAt] != "" {
		if !own && !cleans {
			return Write{}, time.Time{}
		}
		if at := e.gone.Add(m.o.Grace); now.Before(at) {
			return Write{}, at
		}
		return Write{Op: Delete, Why: "its proxy has gone and has not come back"}, time.Time{}
	}
	at, why := now, "its proxy has disconnected"
	switch {
	case own && m.seen[k]:
	case own:
		at, why = m.opened.Add(Orphaned), "its proxy has not connected since the control plane was restarted"
	case cleans:
		var known bool
		if at, known = m.endOf(e); !known {
			return Write{}, time.Time{}
		}
		why = "the instance of the control plane to which its proxy was connected has ended, and the proxy has not connected to another one"
	default:
		return Write{}, time.Time{}
	}
	if now.Before(at) {
		return Write{}, at
	}
	o := *e.Object
	o.Meta.Annotations = maps.Clone(o.Meta.Annotations)
	o.Meta.Annotations[mesh.DisconnectedAt] = now.UTC().Format(time.RFC3339Nano)
	return Write{Op: Update, Object: &o, Why: why}, time.Time{}
}

// controllerOf returns the name of the instance that holds an entry, or has held it last.
func controllerOf(e *object.Object) string {
	return strings.TrimPrefix(e.Meta.Annotations[mesh.WorkloadController], controllerPrefix)
}

// endOf returns when the instance that holds an entry is taken for gone unless it shows that it is alive; false if that is
// not known. An instance may take some time until it shows that it is alive for the first time.
func (m *Machine) endOf(e *entry) (time.Time, bool) {
	at, known := m.beats.goneAt(controllerOf(e.Object))
	if held := e.held.Add(Orphaned); held.After(at) {
		at = held
	}
	return at, known && isOurs(e.Object)
}

// isOurs reports whether an entry was written by an instance of this control plane, and not by that of another project.
func isOurs(e *object.Object) bool {
	return strings.HasPrefix(e.Meta.Annotations[mesh.WorkloadController], controllerPrefix)
}

// isRegistered reports whether an entry was made for a proxy.
func isRegistered(e *object.Object) bool { return e.Meta.Annotations[mesh.AutoRegistrationGroup] != "" }

// accountOf returns the service account of the proxies of a group.
func accountOf(group *object.Object) string {
	if spec, ok := group.Spec.(*networking.WorkloadGroup); ok && spec.GetTemplate().GetServiceAccount() != "" {
		return spec.GetTemplate().GetServiceAccount()
	}
	return "default"
}
