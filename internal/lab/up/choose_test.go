package up

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/podplan"
)

func TestWhatAContainerRuns(t *testing.T) {
	ch := chooser{
		user: "alice",
		exec: map[string][]string{"said": {"serve", "-x"}, "named/side": {"serve"}, "lost": {"gone"}},
		find: func(name string) (string, error) {
			if name == "serve" {
				return "/usr/bin/serve", nil
			}
			return "", errors.New("not found")
		},
	}
	for _, tc := range []struct {
		workload  string
		container podplan.Container
		line, why string
	}{
		{"own", podplan.Container{Command: []string{"serve", "-a"}, Args: []string{"b"}}, "/usr/bin/serve -a b", ""},
		{"said", podplan.Container{Command: []string{"other"}, Args: []string{"b"}}, "/usr/bin/serve -x", ""},
		{"named", podplan.Container{Name: "side", Image: "i"}, "/usr/bin/serve", ""},
		{"named", podplan.Container{Name: "main", Image: "i"}, "", "no command; image i"},
		{"foreign", podplan.Container{Command: []string{"/app/run"}}, "", "this machine has no /app/run that alice may run"},
		{"lost", podplan.Container{}, "", "this machine has no gone that alice may run, which --exec names"},
		{"sample", podplan.Container{Image: SampleImage, Args: []string{"-http=:1"}}, "", "the sample application"},
	} {
		got := ch.choose(podplan.Pod{Workload: tc.workload}, tc.container)
		if got.line() != tc.line || got.why != tc.why {
			t.Errorf("%s: %q (%s), want %q (%s)", tc.workload, got.line(), got.why, tc.line, tc.why)
		}
	}
	plan := &podplan.Plan{Pods: []podplan.Pod{{Workload: "said"}, {Workload: "named", Containers: []podplan.Container{{Name: "side"}}}}}
	if got := ch.unknown(plan); !slices.Equal(got, []string{"lost"}) {
		t.Errorf("unknown workloads: %v", got)
	}
}

func TestStandInsListenOnDeclaredPorts(t *testing.T) {
	c := podplan.Container{Name: "c", Ports: []podplan.Port{{Number: 8080, HTTP: true}, {Number: 5432}, {Number: 53, UDP: true}}, Env: []string{"A=b"}}
	p := podplan.Pod{Name: "web-1", Namespace: "shop", Workload: "web"}
	got := choice{container: c}.program(p, User{UID: 7, GID: 8, Path: "/bin"}, "/standin", "/dir")
	if want := "sample-app -log -service=web -version= -pod=web-1 -http=:8080 -tcp=:5432"; got.Path != "/standin" || strings.Join(got.Args, " ") != want {
		t.Errorf("%s %v, want %s", got.Path, got.Args, want)
	}
	if got.UID != 7 || got.GID != 8 || !slices.Equal(got.Ports, []uint16{8080, 5432}) || !slices.Contains(got.Env, "A=b") {
		t.Errorf("%+v", got)
	}
	// Those of the sample application are in its arguments.
	sample := choice{container: podplan.Container{Name: "c", Ports: []podplan.Port{{Number: 1}}}, args: []string{"-http=:9080,127.0.0.1:9081", "--tcp=:5432", "-calls=http://x:7/", "-http=x"}}
	if got := sample.program(p, User{}, "/standin", ""); !slices.Equal(got.Ports, []uint16{9080, 9081, 5432}) {
		t.Errorf("ports of the sample application: %v", got.Ports)
	}
	c.WorkingDir = "sub"
	if got := (choice{container: c, path: "/usr/bin/serve"}).program(p, User{}, "", "/dir"); got.Dir != "/dir/sub" {
		t.Errorf("working directory %s", got.Dir)
	}
}

func TestParseExec(t *testing.T) {
	key, command, err := ParseExec("web/main=python3 -m http.server")
	if err != nil || key != "web/main" || len(command) != 3 {
		t.Errorf("%q %v %v", key, command, err)
	}
	for _, bad := range []string{"", "web", "web=", "=x"} {
		if _, _, err := ParseExec(bad); err == nil || !strings.Contains(err.Error(), "want WORKLOAD=COMMAND") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestRecordsOfEndedMeshesAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	r, err := newRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.file.WriteString(`{"Dir":"/x"}`); err != nil {
		t.Fatal(err)
	}
	if got, err := Running(dir); err != nil || len(got) != 1 || got[0].Dir != "/x" {
		t.Errorf("while it runs: %v, %v", got, err)
	}
	if err := r.file.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := Running(dir); err != nil || len(got) != 0 {
		t.Errorf("after a kill: %v, %v", got, err)
	}
	if got, err := Running(dir + "/none"); err != nil || got != nil {
		t.Errorf("without a directory: %v, %v", got, err)
	}
}

// The record of a process that was killed is removed by the next one, whatever has its number; that of one that runs stays.
func TestRecordsOfKilledMeshesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "1.json"), filepath.Join(dir, strconv.Itoa(os.Getpid())+".json"), filepath.Join(dir, "other")} { // both processes run
		if err := os.WriteFile(path, []byte(`{"Dir":"/stale"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running, err := lockedFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = running.Close() }()
	r, err := newRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.remove() }()
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	slices.Sort(left)
	want := []string{filepath.Base(running.Name()), filepath.Base(r.file.Name()), "other"}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("%v is left, want %v", left, want)
	}
}
