package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// demoRun is pilotctl demo as a process, with a folder for temporary files of its own.
type demoRun struct {
	cmd   *exec.Cmd
	tmp   string
	out   io.Closer // the end that it is read from
	lines *bufio.Scanner
	links []string
}

func startDemo(t *testing.T, args ...string) *demoRun {
	t.Helper()
	tmp, err := os.MkdirTemp("", "pilothouse-e2e-")
	if err == nil {
		err = os.Chmod(tmp, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	d := &demoRun{tmp: tmp, links: links(t)}
	d.start(t, args...)
	return d
}

func (d *demoRun) start(t *testing.T, args ...string) {
	t.Helper()
	bin := filepath.Dir(programs.Agent)
	d.cmd = exec.Command(filepath.Join(bin, "pilotctl"), append([]string{
		"demo", "--bin", bin, "--envoy", programs.Envoy, "--configDir", filepath.Join(root, "samples", "bookshop"),
	}, args...)...)
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp)
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.out, d.lines = out, bufio.NewScanner(out)
}

// links are the network interfaces of this machine.
func links(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// until reads the demo's output up to a line that holds text.
func (d *demoRun) until(t *testing.T, text string) {
	t.Helper()
	for d.lines.Scan() {
		if strings.ContainsRune(d.lines.Text(), 0x1b) {
			t.Errorf("a control sequence in a pipe: %q", d.lines.Text())
		}
		if strings.Contains(d.lines.Text(), text) {
			return
		}
	}
	t.Fatalf("the demo ended before it said %q: %v", text, d.lines.Err())
}

// end reads the rest and returns the exit code, -1 after a signal.
func (d *demoRun) end(t *testing.T) int {
	t.Helper()
	for d.lines.Scan() {
	}
	err := d.cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return d.cmd.ProcessState.ExitCode()
}

// processes lists those that run a program of the demo's folder or were told of it.
func (d *demoRun) processes() []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		exe, _ := os.Readlink(dir + "/exe")
		text, _ := os.ReadFile(dir + "/cmdline")
		if strings.HasPrefix(exe, d.tmp) || strings.Contains(string(text), d.tmp) {
			found = append(found, dir+" "+exe)
		}
	}
	return found
}

func (d *demoRun) left(t *testing.T) {
	t.Helper()
	if p := d.processes(); len(p) > 0 {
		t.Errorf("processes left behind: %v", p)
	}
	if now := links(t); !slices.Equal(now, d.links) {
		t.Errorf("network interfaces were %v, are %v", d.links, now)
	}
	files, err := os.ReadDir(d.tmp)
	if err != nil || len(files) > 0 {
		t.Errorf("files left behind: %v, %v", files, err)
	}
}

func TestDemoCleansUpWhenInterrupted(t *testing.T) {
	d := startDemo(t)
	d.until(t, "Scenario 3.")
	if n := len(d.processes()); n < 19 {
		t.Errorf("only %d processes while it runs: what is looked for below is not there to be found", n)
	}
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := d.end(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	d.left(t)
}

// After SIGKILL the kernel ends the demo's processes and namespaces. Only its folder remains, until the
// next demo begins.
func TestKilledDemoLeavesNothingRunning(t *testing.T) {
	d := startDemo(t)
	d.until(t, "Scenario 2.")
	if err := d.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := d.end(t); code != -1 {
		t.Errorf("exit code %d", code)
	}
	if err := meshup.Await(t.Context(), time.Minute, "its processes have ended", func(context.Context) error {
		if p := d.processes(); len(p) > 0 {
			return fmt.Errorf("left behind: %v", p)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if now := links(t); !slices.Equal(now, d.links) {
		t.Errorf("network interfaces were %v, are %v", d.links, now)
	}
	next := &demoRun{tmp: d.tmp, links: d.links}
	next.start(t)
	next.until(t, "which a killed mesh had left")
	if err := next.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	next.end(t)
	next.left(t)
}

// tryKept runs each command, and opens each page, that --keep prints.
func (d *demoRun) tryKept(t *testing.T) {
	t.Helper()
	d.until(t, "The mesh keeps running until Ctrl-C. Its configuration is in ")
	kinds := map[string]int{}
	for kinds["page"] < 2 && d.lines.Scan() { // that of pilot-discovery, and the first of an Envoy
		words := strings.Fields(d.lines.Text())
		if len(words) == 0 {
			continue
		}
		switch {
		case words[0] == "pilotctl":
			out, err := exec.Command(filepath.Join(filepath.Dir(programs.Agent), "pilotctl"), words[1:]...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "productpage") {
				t.Errorf("%q: %v\n%s", d.lines.Text(), err, out)
			}
			kinds["pilotctl"]++
		case words[0] == "curl" && len(words) > 3:
			res, err := http.Post(words[3], "text/plain", strings.NewReader(words[2]))
			if err != nil {
				t.Fatalf("%q: %v", d.lines.Text(), err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("%q: %s", d.lines.Text(), res.Status)
			}
			kinds["curl"]++
		case strings.HasPrefix(words[0], "http://"):
			fetch(t, words[0])
			kinds["page"]++
		}
	}
	if kinds["pilotctl"] < 2 || kinds["curl"] != 1 || kinds["page"] < 2 {
		t.Errorf("commands and pages that were tried: %v", kinds)
	}
}

// TestDemoReportsFailedChecks has a sample whose canary is routed to v1.
func TestDemoReportsFailedChecks(t *testing.T) {
	config := t.TempDir()
	if err := os.CopyFS(config, os.DirFS(filepath.Join(root, "samples", "bookshop"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(config, "40-routing.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), "subset: v2", "subset: v1", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := startDemo(t, "--configDir", config, "--keep")
	d.until(t, "FAILED: all were answered by v2")
	d.until(t, "checks passed")
	d.tryKept(t)
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := d.end(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	d.left(t)
}
