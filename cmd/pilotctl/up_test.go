package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/up"
)

func TestCommandsKeepTheirCommas(t *testing.T) {
	got := joinedCommands([]string{"web=serve -l a", "b", "db/main=run"})
	if want := []string{"web=serve -l a,b", "db/main=run"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestParsePublish(t *testing.T) {
	for text, want := range map[string]up.Publish{
		"web:80": {Pod: "web", Port: 80}, "8081:web.shop:80": {Local: 8081, Pod: "web.shop", Port: 80},
	} {
		if got, err := parsePublish(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "web", "web:0", "x:web:80", ":80", "1:2:3:4"} {
		if _, err := parsePublish(bad); err == nil || !strings.Contains(err.Error(), "want POD:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Programs never run as root: without sudo they run as nobody.
func TestProgramsDoNotRunAsRoot(t *testing.T) {
	for _, f := range []upFlags{{}, {sudoUID: "0", sudoGID: "0"}} {
		if u, err := f.user(); err != nil || u.UID == 0 || u.GID == 0 || u.Name != "nobody" {
			t.Errorf("%+v: %+v, %v", f, u, err)
		}
	}
	if _, err := (upFlags{sudoUID: "65534", sudoGID: "0"}).user(); err == nil || !strings.Contains(err.Error(), "want one that is not root") {
		t.Errorf("the group root: %v", err)
	}
}

func TestUpNeedsADirectory(t *testing.T) {
	if _, err := (upFlags{}).options("/nowhere/at/all"); err == nil || !strings.Contains(err.Error(), "want a directory") {
		t.Errorf("got %v", err)
	}
}

func TestCommandsAreProposedAsTheyWereCalled(t *testing.T) {
	for _, tt := range []struct {
		name         string
		sudo         bool
		self, asRoot string
	}{
		{"bin/pilotctl", true, "bin/pilotctl", "sudo bin/pilotctl"},
		{"pilotctl", false, "pilotctl", "pilotctl"},
		{"/my tools/pilotctl", true, "pilotctl", "sudo pilotctl"},
	} {
		if self, asRoot := called(tt.name, tt.sudo); self != tt.self || asRoot != tt.asRoot {
			t.Errorf("%+v: %q, %q", tt, self, asRoot)
		}
	}
}

func TestNoMeshRuns(t *testing.T) {
	if _, _, err := runningPod(t.TempDir(), "", "web"); err == nil || !strings.Contains(err.Error(), "pilotctl up DIR") {
		t.Errorf("got %v", err)
	}
	if _, err := logFiles(t.TempDir(), "", nil, ""); err == nil || !strings.Contains(err.Error(), "pilotctl up DIR") {
		t.Errorf("got %v", err)
	}
}

// A command runs in no mesh rather than in another one than is meant.
func TestTheMeshIsClear(t *testing.T) {
	dir := t.TempDir()
	for i, mesh := range []up.Mesh{
		{PID: 1, Dir: "/a", Pods: []up.Pod{{Namespace: "shop", Name: "web-1", Workload: "web"}, {Namespace: "shop", Name: "db-1", Workload: "db", Containers: []string{"db"}, Proxied: true}}},
		{PID: 2, Dir: "/b", Pods: []up.Pod{{Namespace: "shop", Name: "web-1", Workload: "web"}, {Namespace: "shop", Name: "web-2", Workload: "web"}}},
	} {
		text, err := json.Marshal(mesh)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d.json", i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if _, err := f.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ directory, name, want string }{
		{"", "db", "/a db-1"},
		{"", "web-2", "/b web-2"},
		{"", "web-1", `find Pod "web-1": several meshes that run have it: want --mesh with one of /a, /b`},
		{"", "web", `find Pod "web": several meshes that run have it: want --mesh with one of /a, /b`},
		{"/b", "web", "/b web-1"},
		{"/c", "web", "--mesh /c: no mesh of it runs: want one of /a, /b"},
	} {
		m, p, err := runningPod(dir, tt.directory, tt.name)
		got := m.Dir + " " + p.Name
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q %q: got %s, want %s", tt.directory, tt.name, got, tt.want)
		}
	}
	// The shell offers the Pods of all of them, or of one, and the containers of a Pod.
	for _, tt := range []struct{ directory, prefix, want string }{{"", "", "db-1.shop web-1.shop web-2.shop"}, {"/b", "", "web-1.shop web-2.shop"}, {"", "d", "db-1.shop"}, {"/c", "", ""}} {
		if got, _ := completePods(dir, tt.directory, tt.prefix); strings.Join(got, " ") != tt.want {
			t.Errorf("%q: %q are offered for %q, want %s", tt.directory, got, tt.prefix, tt.want)
		}
	}
	if got, _ := completeContainers(dir, "", []string{"db"}, ""); !slices.Equal(got, []string{"db", "proxy"}) {
		t.Errorf("the containers of db are %q", got)
	}
	if got, _ := completeContainers(dir, "", nil, ""); len(got) > 0 {
		t.Errorf("without a Pod %q are offered", got)
	}
}
