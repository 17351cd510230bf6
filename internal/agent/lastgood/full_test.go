package lastgood

import (
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/wait"
)

// limitFiles lets no file of this process become larger until the function is called, as on a full disk.
func limitFiles(t *testing.T, size int64) (undo func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(size), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	undo = func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
			t.Error(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
	t.Cleanup(undo)
	return undo
}

// What could not be written is requested again when it can be, and nothing else is.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	s, stop := open(t, dir)
	e := record(t, s, true, true)
	e.ask(clusterType)
	e.send(clusterType, "1", "", "a=1", "b=1", "x=1")
	e.ask(listenerType)
	e.send(listenerType, "1", "", "l=1")
	settled(t, s, 4)
	before := s.State().Bytes
	undo := limitFiles(t, before+500)
	e.send(clusterType, "2", "", "c="+strings.Repeat("c", 40_000), "-x")
	wait.Until(t, "the problem", func() bool { return strings.Contains(s.State().Problem, "file too large") })
	e.send(clusterType, "3", "", "d=3") // it would fit, and is not written: c would be missing
	want := []string{"a=1", "b=1", "x=1", "l=1"}
	expect(t, has(t, s, true), want...)
	if st, err := os.Stat(filepath.Join(dir, fileName)); err != nil || st.Size() != before {
		t.Errorf("the file has %d bytes, before %d, %v", st.Size(), before, err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(copied, fileName), 0o600); err != nil {
		t.Fatal(err)
	}
	next, _ := open(t, copied)
	expect(t, has(t, next, true), want...)

	undo()
	<-e.r.Again()
	e.r.Close()
	r := &stream{t: t, r: s.Record(true, false), delta: true}
	defer r.r.Close()
	sent := r.r.Request(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, InitialResourceVersions: map[string]string{"a": "1", "b": "1", "c": "2", "d": "3"}}))
	var m discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(sent.Materialize(), &m); err != nil {
		t.Fatal(err)
	}
	if told := slices.Sorted(maps.Keys(m.GetInitialResourceVersions())); !slices.Equal(told, []string{"a", "b"}) {
		t.Errorf("discovery is told that Envoy has %q", told)
	}
	r.send(clusterType, "3", "", "c=2", "d=3")
	wait.Until(t, "what was missing", func() bool { st := s.State(); return st.Resources == 5 && st.Problem == "" })
	want = []string{"a=1", "b=1", "c=2", "d=3", "l=1"}
	expect(t, has(t, s, true), want...)
	stop()
	s, _ = open(t, dir)
	expect(t, has(t, s, true), want...)
}

// An Envoy that starts while the disk is full leaves the older copy, and no other file.
func TestFullDiskAtAStart(t *testing.T) {
	dir := filled(t, true)
	s, stop := open(t, dir)
	undo := limitFiles(t, 2000)
	e := record(t, s, true, true)
	e.ask(clusterType)
	e.send(clusterType, "2", "", "c="+strings.Repeat("c", 40_000))
	e.ask(listenerType)
	e.send(listenerType, "2", "", "m=1")
	wait.Until(t, "the problem", func() bool { return strings.Contains(s.State().Problem, "file too large") })
	expect(t, has(t, s, true), "a=1", "b=1", "l=1")
	undo()
	<-e.r.Again()
	stop()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v, %v", files, err)
	}
}
