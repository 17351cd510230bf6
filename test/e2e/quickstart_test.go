package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// block is a fenced block of a page.
type block struct{ kind, text, before string }

// fenced matches a fenced block, with the line before it.
var fenced = regexp.MustCompile("(?m)^(.*)\n\n?```([a-z]+)\n((?s:.*?))```$")

func blocks(t *testing.T, page string) []block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		out = append(out, block{before: m[1], kind: m[2], text: m[3]})
	}
	return out
}

// page follows a page of documentation.
type page struct {
	name, dir string
	// background starts what a block of commands starts and leaves running; false if it is to be run as it is.
	background func(block) bool
	// run runs a script in dir.
	run func(script string) ([]byte, error)
}

// follow does what a page says: it writes the files, runs the commands, and looks for what is printed. A command that
// begins with "!" is to fail. It returns how many blocks of commands there were.
func (p page) follow(t *testing.T) int {
	t.Helper()
	ran := 0
	all := blocks(t, p.name)
	for i, b := range all {
		switch b.kind {
		case "yaml":
			name := strings.Trim(b.before, "`:")
			if err := os.MkdirAll(filepath.Join(p.dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(p.dir, name), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "sh":
			ran++
			if p.background(b) {
				continue
			}
			want := ""
			if i+1 < len(all) && all[i+1].kind == "text" {
				want = strings.TrimSpace(all[i+1].text)
			}
			last := ""
			wait.Until(t, fmt.Sprintf("%q prints %q", b.text, want), func() bool {
				out, err := p.run("sudo() { \"$@\"; }\nset -e\n" + b.text)
				if now := fmt.Sprintf("%v: %s", err, out); now != last {
					last = now
					t.Log(now)
				}
				return err == nil && strings.Contains(string(out), want)
			})
		}
	}
	return ran
}

// work is a directory that all users can reach, until the end of the test.
func work(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pilothouse-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestTheQuickstart(t *testing.T) {
	s := &session{}
	p := page{name: "docs/quickstart.md", dir: work(t)}
	p.background = func(b block) bool {
		up := strings.HasPrefix(b.text, "sudo pilotctl up mesh")
		if up {
			s = upIn(t, filepath.Join(p.dir, "mesh"))
		}
		return up
	}
	p.run = func(script string) ([]byte, error) {
		// The debug port is another one if something else has it.
		cmd := exec.Command("bash", "-c", strings.ReplaceAll(script, "pilotctl ", pilotctlPath()+" "))
		cmd.Dir, cmd.Env = p.dir, append(os.Environ(), "PILOTCTL_DISCOVERY="+s.discovery())
		return cmd.CombinedOutput()
	}
	if n := p.follow(t); n < 8 {
		t.Errorf("%d blocks of commands were found in the page", n)
	}
}

// The commands of the page run in a network namespace, where all ports are free.
func TestTheOperationsPage(t *testing.T) {
	net, err := netmesh.New(netmesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	p := page{name: "docs/operations.md", dir: work(t)}
	if err := os.CopyFS(filepath.Join(p.dir, "mesh"), os.DirFS(filepath.Join(root, "samples/hello"))); err != nil {
		t.Fatal(err)
	}
	command := func(script string, out io.Writer) netmesh.Command {
		return netmesh.Command{
			Path: "/bin/bash", Args: []string{"-c", script}, Dir: p.dir, Stdout: out, Stderr: out,
			Env: []string{"PATH=" + filepath.Dir(programs.Agent) + ":/usr/bin:/bin", "HOME=" + p.dir},
		}
	}
	p.run = func(script string) ([]byte, error) {
		var out bytes.Buffer
		proc, err := net.Host().Start(command(script, &out))
		if err != nil {
			return nil, err
		}
		err = proc.Wait()
		return out.Bytes(), err
	}
	p.background = func(b block) bool {
		background := strings.HasPrefix(b.text, "# leave it running")
		if background {
			if _, err := net.Host().Start(command("exec "+strings.TrimPrefix(b.text, "# leave it running\n"), io.Discard)); err != nil {
				t.Fatal(err)
			}
		}
		return background
	}
	if n := p.follow(t); n < 9 {
		t.Errorf("%d blocks of commands were found in the page", n)
	}
}

func TestFromIstioPage(t *testing.T) {
	p := page{name: "docs/from-istio.md", dir: work(t), background: func(block) bool { return false }}
	text, err := os.ReadFile(filepath.Join(root, "samples/hello/routing.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "export.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.run = func(script string) ([]byte, error) {
		cmd := exec.Command("bash", "-c", script)
		cmd.Dir = p.dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(programs.Agent)+":"+os.Getenv("PATH"))
		return cmd.CombinedOutput()
	}
	if n := p.follow(t); n < 2 {
		t.Errorf("%d blocks of commands were found in the page", n)
	}
}
