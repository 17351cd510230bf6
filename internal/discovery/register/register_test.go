package register

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// start is when tests begin.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const grace = 10 * time.Second

func groupOf(spec *networking.WorkloadGroup) *object.Object {
	return &object.Object{Key: object.Key{Kind: object.WorkloadGroup, Namespace: "shop", Name: "vms"}, Spec: spec}
}

// plain is a group for service account "billing".
var plain = groupOf(&networking.WorkloadGroup{Template: &networking.WorkloadEntry{ServiceAccount: "billing"}})

var plainProxy = Proxy{Namespace: "shop", Account: "billing", Group: "vms", Address: netip.MustParseAddr("10.0.0.1")}

func machineWith(o Options, objects ...*object.Object) *Machine {
	if o.Grace == 0 {
		o.Grace = grace
	}
	if o.Instance == "" {
		o.Instance = "one"
	}
	m := New(o)
	for _, x := range objects {
		m.Apply(object.Change{Key: x.Key, Object: x}, start)
	}
	m.Open(start)
	return m
}

// after performs a decision on the machine itself, as if it came back at once.
func after(t *testing.T, m *Machine, k object.Key, now time.Time) Write {
	t.Helper()
	w, _ := m.Decide(k, now)
	c := object.Change{Key: w.Key, Object: w.Object}
	switch w.Op {
	case None:
		return w
	case Report:
		o := *w.Base
		o.Healthy = w.Health
		c.Object = &o
	case Update:
		o := *w.Object
		o.Healthy = w.Base.Healthy
		c.Object = &o
	case Delete:
		c.Object = nil
	case Create:
	}
	if w.Key != k {
		t.Fatalf("a decision about %s writes %s", k, w.Key)
	}
	m.Apply(c, now)
	return w
}

func TestEntryOfAGroup(t *testing.T) {
	group := groupOf(&networking.WorkloadGroup{
		Metadata: &networking.WorkloadGroup_ObjectMeta{
			Labels:      map[string]string{"a": "metadata", "b": "metadata"},
			Annotations: map[string]string{"note": "x", mesh.WorkloadController: "forged", mesh.HealthChecksEnabled: "true"},
		},
		Template: &networking.WorkloadEntry{
			Address: "192.0.2.1", ServiceAccount: "billing", Weight: 7, Network: "net-t", Locality: "r/z", Ports: map[string]uint32{"http": 8080},
			Labels: map[string]string{"a": "template", "b": "template", "c": "template"},
		},
		Probe: &networking.ReadinessProbe{},
	})
	p := plainProxy
	p.Labels = map[string]string{"a": "node", "istio-locality": "r.z"}
	m := machineWith(Options{}, group)
	k := m.Connect("1", p, start)
	w := after(t, m, k, start)
	want := &object.Object{Key: object.Key{Kind: object.WorkloadEntry, Namespace: "shop", Name: "vms-10.0.0.1"}}
	labels := map[string]string{"a": "node", "b": "metadata", "c": "template"}
	want.Meta.Labels = labels
	want.Meta.Annotations = map[string]string{
		"note": "x", mesh.AutoRegistrationGroup: "vms", mesh.WorkloadController: "pilothouse/one", mesh.ConnectedAt: "2026-01-02T03:04:05Z",
	}
	spec := &networking.WorkloadEntry{
		Address: "10.0.0.1", ServiceAccount: "billing", Weight: 7, Network: "net-t", Locality: "r/z", Ports: map[string]uint32{"http": 8080}, Labels: labels,
	}
	if w.Op != Create || w.Owner != group || w.Object.Key != want.Key || !reflect.DeepEqual(w.Object.Meta, want.Meta) || !proto.Equal(w.Object.Spec.(proto.Message), spec) {
		t.Fatalf("%s %+v\nwant %+v %v", w.Op, w.Object, want, spec)
	}
	if w, _ := m.Decide(k, start); w.Op != None {
		t.Errorf("then %s", w.Op)
	}
	if !m.LacksProbe(p) {
		t.Error("nobody is told that the proxy does not run the group's probe")
	}
	p.Network, p.Locality, p.Reports = "Net_1", mesh.Locality{Region: "r2"}, true
	if m.LacksProbe(p) {
		t.Error("a proxy with a probe is said to have none")
	}
	k = m.Connect("2", p, start)
	w = after(t, m, k, start)
	if e := w.Object.Spec.(*networking.WorkloadEntry); k.Name != "vms-10.0.0.1-net-1" || e.Network != "Net_1" || e.Locality != "r2" || w.Object.Meta.Annotations[mesh.HealthChecksEnabled] != "true" {
		t.Errorf("%s: %v %v", k, e, w.Object.Meta.Annotations)
	}
	// A changed group changes the entries of connected proxies.
	changed := proto.Clone(group.Spec.(proto.Message)).(*networking.WorkloadGroup)
	changed.Template.Weight = 9
	if keys := m.Apply(object.Change{Key: group.Key, Object: groupOf(changed)}, start); len(keys) != 2 {
		t.Fatalf("a changed group concerns %v", keys)
	}
	if w = after(t, m, k, start); w.Op != Update || w.Object.Spec.(*networking.WorkloadEntry).Weight != 9 {
		t.Errorf("%s %v", w.Op, w.Object)
	}
	// One that is gone takes them with it, and they come back with it.
	m.Apply(object.Change{Key: group.Key}, start)
	if w = after(t, m, k, start); w.Op != Delete {
		t.Errorf("%s after the group", w.Op)
	}
	m.Apply(object.Change{Key: group.Key, Object: group}, start)
	if w = after(t, m, k, start); w.Op != Create {
		t.Errorf("%s with the group", w.Op)
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("g", 260)
	for _, c := range []struct{ group, address, network, want string }{
		{"vms", "10.0.0.1", "", "vms-10.0.0.1"},
		{"vms", "10.0.0.1", "net", "vms-10.0.0.1-net"},
		{"vms", "2001:db8::1", "", "vms-2001-db8--1"},
		{"vms", "::1", "A b/", "vms---1-a-b"},
		{long, "10.0.0.1", "", strings.Repeat("g", 253-9) + "-10.0.0.1"},
		{"a." + strings.Repeat("-", 252), "10.0.0.1", "", "10.0.0.1"},
	} {
		p := Proxy{Namespace: "n", Group: c.group, Address: netip.MustParseAddr(c.address), Network: c.network}
		if k := p.Key(); k.Name != c.want || k.Namespace != "n" || k.Kind != object.WorkloadEntry {
			t.Errorf("%v: %s, want %s", c, k, c.want)
		}
	}
}

func TestWhoMayRegister(t *testing.T) {
	who := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "billing"}
	node := mesh.Node{NodeID: mesh.NodeID{IP: plainProxy.Address}}
	node.Metadata.AutoRegisterGroup = "vms"
	for _, c := range []struct {
		name  string
		who   mesh.Identity
		alter func(*mesh.Node)
		group *object.Object
		want  Reason
	}{
		{"the group's account", who, nil, plain, ""},
		{"no identity", mesh.Identity{}, nil, plain, NotAuthenticated},
		{"no address", who, func(n *mesh.Node) { n.IP = netip.Addr{} }, plain, NoAddress},
		{"another group", who, func(n *mesh.Node) { n.Metadata.AutoRegisterGroup = "other" }, plain, NoGroup},
		{"another namespace", mesh.Identity{Namespace: "bank", ServiceAccount: "billing"}, nil, plain, NoGroup},
		{"another account", mesh.Identity{Namespace: "shop", ServiceAccount: "default"}, nil, plain, OtherAccount},
		{"a group without account", who, nil, groupOf(&networking.WorkloadGroup{Template: &networking.WorkloadEntry{}}), OtherAccount},
		{"the account that such a group is for", mesh.Identity{Namespace: "shop", ServiceAccount: "default"}, nil, groupOf(&networking.WorkloadGroup{}), ""},
		{"a label that no object may have", who, func(n *mesh.Node) { n.Metadata.Labels = map[string]string{"a": "b c"} }, plain, InvalidEntry},
	} {
		n := node
		if c.alter != nil {
			c.alter(&n)
		}
		m := machineWith(Options{}, c.group)
		p, err := ProxyOf(n, c.who)
		if err == nil {
			_, err = m.Admit(p, start)
		}
		var got Reason
		if refusal := (&Refusal{}); errors.As(err, &refusal) {
			got = refusal.Reason
		}
		if got != c.want || (err != nil) != (c.want != "") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// entryWith is a registered entry of plainProxy with these annotations besides the group's.
func entryWith(pairs ...string) *object.Object {
	m := machineWith(Options{}, plain)
	e := m.wanted(plain, &connection{proxy: plainProxy, at: start})
	for i := 0; i < len(pairs); i += 2 {
		if e.Meta.Annotations[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(e.Meta.Annotations, pairs[i])
		}
	}
	return e
}

func at(d time.Duration) string { return start.Add(d).Format(time.RFC3339Nano) }

func TestEntriesOfProxiesThatAreNotHere(t *testing.T) {
	const controller, connected, gone = mesh.WorkloadController, mesh.ConnectedAt, mesh.DisconnectedAt
	for _, c := range []struct {
		name    string
		entry   *object.Object
		leading bool
		beats   map[string]string // read at the start; nil for not
		// what is decided at the start, and a long time after it
		now, later Op
		next       time.Duration // when to ask again, at the start; 0 for never
	}{
		{name: "of an earlier process", entry: entryWith(), now: None, next: Orphaned, later: Update},
		{name: "its proxy has gone", entry: entryWith(gone, at(-time.Hour)), now: None, next: grace, later: Delete},
		{name: "of another instance", entry: entryWith(controller, "pilothouse/two"), now: None, later: None},
		{name: "of another instance, whose proxy has gone", entry: entryWith(controller, "pilothouse/two", gone, at(0)), now: None, later: None},
		{name: "of another instance, for a leader that knows nothing", leading: true, entry: entryWith(controller, "pilothouse/two"), now: None, later: None},
		{name: "of an instance that has ended, for the leader", leading: true, beats: map[string]string{}, entry: entryWith(controller, "pilothouse/two"), now: None, next: Orphaned, later: Update},
		{name: "of an instance whose proxy has gone, for the leader", leading: true, entry: entryWith(controller, "pilothouse/two", gone, at(0)), now: None, next: grace, later: Delete},
		{name: "of another control plane", leading: true, beats: map[string]string{}, entry: entryWith(controller, "istiod-5"), now: None, later: None},
		{name: "of another control plane, whose proxy has gone", leading: true, beats: map[string]string{}, entry: entryWith(controller, "istiod-5", gone, at(-time.Hour)), now: None, later: None},
		{name: "written by hand", leading: true, beats: map[string]string{}, entry: entryWith(mesh.AutoRegistrationGroup, "", gone, at(-time.Hour)), now: None, later: None},
	} {
		m := machineWith(Options{}, plain, c.entry)
		m.Lead(c.leading)
		m.Beats(c.beats, start)
		w, next := m.Decide(c.entry.Key, start)
		wait := time.Duration(0)
		if !next.IsZero() {
			wait = next.Sub(start)
		}
		later, _ := m.Decide(c.entry.Key, start.Add(time.Hour))
		if w.Op != c.now || wait != c.next || later.Op != c.later {
			t.Errorf("%s: %s, again after %v, later %s; want %s, %v and %s", c.name, w.Op, wait, later.Op, c.now, c.next, c.later)
		}
		if later.Op == Update && (later.Object.Meta.Annotations[gone] == "" || later.Object.Meta.Annotations[connected] == "") {
			t.Errorf("%s: written is %v", c.name, later.Object.Meta.Annotations)
		}
	}
}

func TestLifeOfAnEntry(t *testing.T) {
	m := machineWith(Options{}, plain)
	k := m.Connect("1", plainProxy, start)
	now := start
	step := func(what string, want Op) Write {
		t.Helper()
		w := after(t, m, k, now)
		if w.Op != want {
			t.Fatalf("%s: %s, want %s", what, w.Op, want)
		}
		return w
	}
	step("connected", Create)
	step("nothing else", None)
	m.Disconnect("1")
	step("disconnected", Update)
	now = now.Add(grace - 1)
	step("within the grace", None)
	m.Connect("2", plainProxy, now)
	if w := step("connected again", Update); w.Object.Meta.Annotations[mesh.DisconnectedAt] != "" {
		t.Fatalf("written is %v", w.Object.Meta.Annotations)
	}
	now = now.Add(time.Hour)
	step("it stays", None)
	// A new connection may come before the old one has ended.
	m.Connect("3", plainProxy, now)
	step("a second connection", Update)
	m.Disconnect("2")
	step("the first has ended", None)
	m.Disconnect("3")
	step("the last has ended", Update)
	if _, ok := m.Disconnect("3"); ok {
		t.Error("it ends twice")
	}
	now = now.Add(grace)
	step("after the grace", Delete)
	step("nothing is left", None)
	if m.Holding() != 0 || len(m.Registered()) != 0 {
		t.Errorf("%d connections, entries %v", m.Holding(), m.Registered())
	}
}

func TestHealth(t *testing.T) {
	p := plainProxy
	p.Reports = true
	m := machineWith(Options{}, plain)
	k := m.Connect("1", p, start)
	if w := after(t, m, k, start); w.Op != Create {
		t.Fatal(w.Op)
	}
	if w := after(t, m, k, start); w.Op != None {
		t.Fatalf("without a report: %s", w.Op)
	}
	for _, c := range []struct {
		healthy bool
		message string
		want    Op
		text    string
	}{
		{true, "", Report, ""}, {true, "ignored", None, ""}, {false, "no database", Report, "no database"}, {false, "no database", None, ""},
		{false, "bad \xff" + strings.Repeat("ü", 400), Report, "bad \uFFFD" + strings.Repeat("ü", 252)}, {false, "bad \xff" + strings.Repeat("ü", 400), None, ""}, {true, "", Report, ""},
	} {
		if got, ok := m.Report("1", c.healthy, c.message); !ok || got != k {
			t.Fatalf("the report is of %s, %v", got, ok)
		}
		w := after(t, m, k, start)
		if w.Op != c.want || w.Op == Report && (w.Health.Is != c.healthy || w.Health.Message != c.text) {
			t.Errorf("%v %.20q: %s %+v", c.healthy, c.message, w.Op, w.Health)
		}
	}
	// What the next instance is not told yet stays as it was.
	m.Disconnect("1")
	m.Connect("2", p, start.Add(time.Second))
	if w := after(t, m, k, start); w.Op != Update {
		t.Fatal(w.Op)
	}
	if w := after(t, m, k, start); w.Op != None || !m.entries[k].Healthy.Is {
		t.Errorf("%s, %+v", w.Op, m.entries[k].Healthy)
	}
	if _, ok := m.Report("1", false, ""); ok {
		t.Error("a report of a connection that has ended counts")
	}
	off := machineWith(Options{NoHealth: true}, plain)
	off.Connect("1", p, start)
	if w := after(t, off, k, start); w.Object.Meta.Annotations[mesh.HealthChecksEnabled] != "" {
		t.Errorf("without health checks: %v", w.Object.Meta.Annotations)
	}
	off.Report("1", false, "x")
	if w := after(t, off, k, start); w.Op != None {
		t.Errorf("without health checks: %s", w.Op)
	}
}

func TestEntriesWrittenByHandStay(t *testing.T) {
	m := machineWith(Options{}, plain, &object.Object{Key: plainProxy.Key(), Spec: &networking.WorkloadEntry{Address: "10.0.0.1"}})
	conflict, err := m.Admit(plainProxy, start)
	if !conflict || err != nil {
		t.Errorf("conflict %v, %v", conflict, err)
	}
	k := m.Connect("1", plainProxy, start)
	m.Report("1", true, "")
	for _, d := range []time.Duration{0, time.Hour} {
		if w, _ := m.Decide(k, start.Add(d)); w.Op != None {
			t.Errorf("connected: %s", w.Op)
		}
	}
	m.Disconnect("1")
	if w, _ := m.Decide(k, start.Add(time.Hour)); w.Op != None {
		t.Errorf("disconnected: %s", w.Op)
	}
}

// TestNothingIsGoneBeforeProxiesAreServed has the time of entries of an earlier process begin when their proxies can come back.
func TestNothingIsGoneBeforeProxiesAreServed(t *testing.T) {
	e := entryWith()
	m := New(Options{Instance: "one", Grace: grace})
	m.Apply(object.Change{Key: e.Key, Object: e}, start)
	now := start.Add(time.Hour)
	if w, next := m.Decide(e.Key, now); w.Op != None || !next.IsZero() {
		t.Errorf("%s, again at %v", w.Op, next)
	}
	m.Open(now)
	if w, next := m.Decide(e.Key, now); w.Op != None || !next.Equal(now.Add(Orphaned)) {
		t.Errorf("%s, again at %v", w.Op, next)
	}
}

func TestDeadInstancesAreForgotten(t *testing.T) {
	m := machineWith(Options{}, plain, entryWith(mesh.WorkloadController, "pilothouse/two"))
	m.Lead(true)
	now := start
	for i := range 5 {
		now = start.Add(time.Duration(i) * Orphaned / 4)
		m.Beats(map[string]string{"two": "x", "three": "x", "four": "x" + strings.Repeat("x", i)}, now)
	}
	if got := m.Dead(now); !reflect.DeepEqual(got, []string{"three"}) {
		t.Errorf("dead are %v: two still has an entry, and four is alive", got)
	}
	m.Forget("three")
	if got := m.Dead(now); len(got) != 0 {
		t.Errorf("dead are %v", got)
	}
	m.Beats(nil, now)
	if got := m.Dead(now.Add(time.Hour)); len(got) != 0 {
		t.Errorf("dead are %v while nothing can be read", got)
	}
}
