package meshup

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBookshopLayout(t *testing.T) {
	l, err := readLayout("../../../samples/bookshop")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]PodSpec{}
	for _, p := range l.pods {
		byName[p.Name] = p
	}
	v2, legacy := byName["reviews-v2-1"], byName["legacy-1"]
	if v2.Key() != "reviews-v2-1.bookshop" || v2.ServiceAccount != "reviews" || !v2.Sidecar() || v2.app() != "reviews" || v2.Labels["version"] != "v2" {
		t.Errorf("reviews-v2-1: %+v", v2)
	}
	if got := v2.ports("-http"); len(got) != 1 || got[0] != "9080" {
		t.Errorf("ports of reviews-v2-1: %v", got)
	}
	if legacy.Sidecar() {
		t.Error("legacy-1 has a sidecar")
	}
	// With a sidecar the virtual address, without one the Pod's.
	if got := l.hosts(v2); got["ratings"] != netip.MustParseAddr("10.96.10.3") || got["db.bookshop.svc.cluster.local"] != netip.MustParseAddr("10.96.10.4") {
		t.Errorf("names of reviews-v2-1: %v", got)
	}
	if got := l.hosts(legacy); got["ratings.bookshop.svc"] != byName["ratings-1"].IP {
		t.Errorf("names of legacy-1: %v", got)
	}
}

func TestLayoutErrorsNameFileAndObject(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"bad address": {"kind: Pod\nmetadata: {name: a, namespace: b}\nstatus: {podIP: x}", "mesh.yaml:3: Pod b/a: status.podIP"},
		"bad yaml":    {"kind: [", "mesh.yaml"},
		"no pods":     {"kind: Service\nmetadata: {name: a}", "no Pods in"},
		"bad service": {"kind: Service\nmetadata: {name: a, namespace: b}\nspec: {clusterIP: x}", "Service b/a: spec.clusterIP"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "mesh.yaml"), []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readLayout(dir); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want it to hold %q", name, err, tc.want)
		}
	}
	if _, err := readLayout(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no *.yaml") {
		t.Errorf("empty folder: %v", err)
	}
}

func TestAwait(t *testing.T) {
	n := 0
	if err := Await(t.Context(), time.Minute, "n is 3", func(context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil || n != 3 {
		t.Errorf("after %d looks: %v", n, err)
	}
	gone := errors.New("gone")
	if err := Await(t.Context(), time.Minute, "it is", func(context.Context) error { return Final(gone) }); !errors.Is(err, gone) || err.Error() != "wait until it is: gone" {
		t.Errorf("final error: %v", err)
	}
	if err := Await(t.Context(), time.Millisecond, "it is", func(context.Context) error { return gone }); !errors.Is(err, gone) || !strings.Contains(err.Error(), "not after 1ms") {
		t.Errorf("time up: %v", err)
	}
}

func TestProgramsAreExecutableByEveryUser(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "bin")
	for _, name := range []string{"pilot-agent", "pilot-discovery", "app", "envoy"} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := In(src, filepath.Join(src, "nothing")); err == nil || !strings.Contains(err.Error(), "make tools") {
		t.Errorf("without Envoy: %v", err)
	}
	p, err := In(src, filepath.Join(src, "envoy"))
	if err != nil {
		t.Fatal(err)
	}
	p, err = p.placed(dst)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{p.Agent: "pilot-agent", p.Envoy: "envoy"} {
		text, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(text) != want || info.Mode().Perm() != 0o755 {
			t.Errorf("%s holds %q, mode %v, error %v", path, text, info.Mode(), err)
		}
	}
}

func TestWorse(t *testing.T) {
	before := map[string]int64{"a: connect_fail": 2}
	if err := CompareErrorStats(before, map[string]int64{"a: connect_fail": 2}); err != nil {
		t.Errorf("nothing moved: %v", err)
	}
	err := CompareErrorStats(before, map[string]int64{"a: connect_fail": 3, "b: warming_clusters": 1})
	if want := "a: connect_fail went from 2 to 3\nb: warming_clusters is 1"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Programs of Jobs run once: they begin when all others that start with them have.
func TestProgramsOfJobsBeginLast(t *testing.T) {
	job := func() *Pod { return &Pod{Spec: PodSpec{Programs: []Program{{Once: true}}}} }
	isOpen := func(p *Pod) bool {
		select {
		case <-p.others:
			return true
		default:
			return false
		}
	}
	web, api, report := &Pod{Spec: PodSpec{Programs: []Program{{}}}}, &Pod{}, job()
	started := lastOnce([]*Pod{report, web, api})
	for _, p := range []*Pod{web, api} {
		if p.others != nil || isOpen(report) {
			t.Errorf("before %+v has started: it waits %v, the Job may begin %v", p.Spec, p.others != nil, isOpen(report))
		}
		started(p)
	}
	if started(report); !isOpen(report) {
		t.Error("the Job waits, though all others have started")
	}
	if alone := job(); lastOnce([]*Pod{alone}) == nil || !isOpen(alone) {
		t.Error("a Job waits for nobody")
	}
}
