package registrar_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/register"
	"github.com/pilothouse/pilothouse/internal/discovery/registrar"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/wait"
)

var (
	group = &object.Object{
		Key:  object.Key{Kind: object.WorkloadGroup, Namespace: "shop", Name: "vms"},
		Spec: &networking.WorkloadGroup{Template: &networking.WorkloadEntry{ServiceAccount: "billing"}, Probe: &networking.ReadinessProbe{}},
	}
	who      = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "billing"}
	entryKey = object.Key{Kind: object.WorkloadEntry, Namespace: "shop", Name: "vms-10.0.0.1"}
)

func node(probe bool) mesh.Node {
	n := mesh.Node{NodeID: mesh.NodeID{Role: mesh.Sidecar, IP: netip.MustParseAddr("10.0.0.1"), ID: "vm.shop"}}
	n.Metadata.AutoRegisterGroup, n.Metadata.ReadinessProbe = "vms", probe
	return n
}

// world runs a registrar with a folder, whose objects come back to it as they do from the loop.
type world struct {
	*registrar.Registrar
	folder *registrar.Folder
	log    *lockedLog

	mu      sync.Mutex
	objects map[object.Key]*object.Object
}

type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// open begins a process with a state folder; stop ends it.
func open(t *testing.T, dir string, grace time.Duration) (w *world, stop func()) {
	t.Helper()
	w = &world{log: &lockedLog{}, objects: map[object.Key]*object.Object{}}
	log := slog.New(slog.NewTextHandler(w.log, nil))
	var err error
	if w.folder, err = registrar.OpenFolder(dir, log); err != nil {
		t.Fatal(err)
	}
	w.Registrar = registrar.New(registrar.Options{Machine: register.Options{Instance: "one", Grace: grace}, Store: w.folder, Log: log})
	w.Apply(object.Change{Key: group.Key, Object: group})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run.Group(ctx, run.Task{Name: "registrar", Run: w.Run}, run.Task{Name: "folder", Run: func(ctx context.Context) error {
			return w.folder.Run(ctx, func(b object.Batch) {
				for _, c := range b.Changes {
					w.Apply(c)
					w.mu.Lock()
					w.objects[c.Key] = c.Object
					w.mu.Unlock()
				}
			})
		}})
	}()
	w.Open()
	return w, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// entry returns the entry in force, nil for none.
func (w *world) entry() *object.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[entryKey]
}

func (w *world) await(t *testing.T, what string, cond func(e *object.Object) bool) {
	t.Helper()
	wait.Until(t, what, func() bool { return cond(w.entry()) })
}

func exists(e *object.Object) bool { return e != nil && e.Meta.Annotations[mesh.DisconnectedAt] == "" }

func TestEntriesAreKeptInTheStateFolder(t *testing.T) {
	dir := t.TempDir()
	w, stop := open(t, dir, time.Millisecond)
	if err := w.Connect("1", node(true), who); err != nil {
		t.Fatal(err)
	}
	w.await(t, "the entry", exists)
	if !w.Report("1", false, "no database") || w.Report("2", true, "") {
		t.Error("whose reports are taken")
	}
	w.await(t, "the health", func(e *object.Object) bool {
		return e.Healthy != nil && *e.Healthy == object.Health{Message: "no database"}
	})
	before := w.entry()
	stop() // with the proxy connected: nothing is said about it
	w, stop = open(t, dir, time.Millisecond)
	w.await(t, "the entry after a restart", exists)
	if now := w.entry(); !object.SameSpec(now, before) || !maps.Equal(now.Meta.Annotations, before.Meta.Annotations) || now.Meta.Generation != 1 || !now.Meta.Created.Equal(before.Meta.Created) {
		t.Errorf("it was %+v and is %+v", before, now)
	}
	if err := w.Connect("1", node(true), who); err != nil {
		t.Fatal(err)
	}
	w.await(t, "the next connection", func(e *object.Object) bool {
		return e.Meta.Annotations[mesh.ConnectedAt] != before.Meta.Annotations[mesh.ConnectedAt]
	})
	if e := w.entry(); e.Healthy == nil || e.Healthy.Is {
		t.Errorf("the health was forgotten: %+v", e.Healthy)
	}
	w.Disconnect("1")
	w.await(t, "the end of the entry", func(e *object.Object) bool { return e == nil })
	wait.Until(t, "the counters", func() bool { c := w.Counts(); return c.Deleted == 1 && c.Disconnected == 1 && c.Updated >= 2 })
	stop()
	w, stop = open(t, dir, time.Millisecond)
	defer stop()
	if e := w.entry(); e != nil {
		t.Errorf("it has come back: %+v", e)
	}
}

func TestRefusedProxiesAreToldAndCounted(t *testing.T) {
	w, stop := open(t, t.TempDir(), time.Second)
	defer stop()
	other := who
	other.ServiceAccount = "web"
	err := w.Connect("1", node(false), other)
	var refusal *register.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != register.OtherAccount {
		t.Errorf("got %v", err)
	}
	if c := w.Counts(); c.Refused[register.OtherAccount] != 1 || c.Errors != 1 || c.Registered != 0 {
		t.Errorf("counted is %+v", c)
	}
	if text := w.log.String(); !strings.Contains(text, `may not register itself`) || !strings.Contains(text, `is for service account \"billing\"`) {
		t.Errorf("log:\n%s", text)
	}
	if err := w.Connect("2", node(false), who); err != nil {
		t.Fatal(err)
	}
	if text := w.log.String(); !strings.Contains(text, "has no readinessProbe") {
		t.Errorf("nothing says that the group's probe is not used:\n%s", text)
	}
}

func TestFileThatCannotBeReadIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "registered-workloads")
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, stop := open(t, dir, time.Second)
	defer stop()
	if text := w.log.String(); !strings.Contains(text, "set aside") {
		t.Errorf("log:\n%s", text)
	}
	if err := w.Connect("1", node(false), who); err != nil {
		t.Fatal(err)
	}
	w.await(t, "the entry", exists)
	wait.Until(t, "the file", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "vms-10.0.0.1")
	})
}

// TestLateDecisionsAreRefused has the store compare what was decided on with what there is.
func TestLateDecisionsAreRefused(t *testing.T) {
	f, err := registrar.OpenFolder(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	version := func(controller string) *object.Object {
		return &object.Object{Key: entryKey, Spec: &networking.WorkloadEntry{}, Meta: object.Meta{Annotations: map[string]string{mesh.AutoRegistrationGroup: "vms", mesh.WorkloadController: controller}}}
	}
	one, two := version("one"), version("two")
	for _, c := range []struct {
		what string
		w    register.Write
		want error
	}{
		{"what does not exist is updated", register.Write{Op: register.Update, Object: two, Base: one}, registrar.ErrChanged},
		{"what does not exist is deleted", register.Write{Op: register.Delete, Base: one}, nil},
		{"created", register.Write{Op: register.Create, Object: one}, nil},
		{"created again", register.Write{Op: register.Create, Object: one}, registrar.ErrChanged},
		{"updated", register.Write{Op: register.Update, Object: two, Base: one}, nil},
		{"late report", register.Write{Op: register.Report, Health: &object.Health{}, Base: one}, registrar.ErrChanged},
		{"late deletion", register.Write{Op: register.Delete, Base: one}, registrar.ErrChanged},
		{"deleted", register.Write{Op: register.Delete, Base: two}, nil},
	} {
		c.w.Key = entryKey
		if err := f.Write(t.Context(), c.w); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}
