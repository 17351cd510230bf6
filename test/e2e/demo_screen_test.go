package e2e_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/pty"
	"github.com/pilothouse/pilothouse/test/tty"
	"github.com/pilothouse/pilothouse/test/wait"
)

// demoScreen is a demo that runs on a terminal, and what a person would see of it.
type demoScreen struct {
	*demoRun
	term *pty.Terminal
	on   *tty.Terminal
	all  []byte
}

func startDemoOnScreen(t *testing.T, columns, rows int, env []string, args ...string) *demoScreen {
	t.Helper()
	tmp, err := os.MkdirTemp("", "pilothouse-e2e-")
	if err == nil {
		err = os.Chmod(tmp, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	d := &demoScreen{demoRun: &demoRun{tmp: tmp, links: links(t)}, on: tty.New(columns, rows)}
	bin := filepath.Dir(programs.Agent)
	d.cmd = exec.Command(filepath.Join(bin, "pilotctl"), append([]string{
		"demo", "--bin", bin, "--envoy", programs.Envoy, "--configDir", filepath.Join(root, "samples", "bookshop"),
	}, args...)...)
	d.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp}, env...)
	if d.term, err = pty.Start(d.cmd, uint16(columns), uint16(rows)); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(3*wait.Bound, func() { _ = d.cmd.Process.Kill() })
	t.Cleanup(func() {
		kill.Stop()
		_ = d.cmd.Process.Kill()
		_ = d.term.Close()
		if t.Failed() {
			t.Logf("the terminal:\n%s", strings.Join(d.on.Seen(), "\n"))
		}
	})
	return d
}

// read plays the next output; false at its end.
func (d *demoScreen) read(t *testing.T) bool {
	t.Helper()
	buffer := make([]byte, 4096)
	n, err := d.term.Read(buffer)
	if errors.Is(err, io.EOF) {
		return false
	}
	if err == nil {
		d.all = append(d.all, buffer[:n]...)
		_, err = d.on.Write(buffer[:n])
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// see plays the output until a text is on the screen.
func (d *demoScreen) see(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(strings.Join(d.on.Seen(), "\n"), text) {
		if !d.read(t) {
			t.Fatalf("it ended before it showed %q", text)
		}
	}
}

func (d *demoScreen) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(d.term, text); err != nil {
		t.Fatal(err)
	}
}

// finish plays the rest and returns the exit code.
func (d *demoScreen) finish(t *testing.T) int {
	t.Helper()
	for d.read(t) {
	}
	_ = d.cmd.Wait()
	return d.cmd.ProcessState.ExitCode()
}

// The demo on a terminal of 80 columns, step by step: no row is too long, identities are short, a scenario begins when Enter is
// pressed, each check is said once, and the last table of each scenario has every proxy in sync.
func TestDemoOnATerminal(t *testing.T) {
	d := startDemoOnScreen(t, 80, 24, []string{"TERM=xterm"}, "--step")
	count := 0
	for d.read(t) {
		seen := d.on.Seen()
		if len(seen) == 0 {
			continue
		}
		if last := seen[len(seen)-1]; strings.HasPrefix(last, "Press Enter for scenario ") {
			if count++; strings.Contains(strings.Join(seen, "\n"), "Scenario "+last[len("Press Enter for scenario "):]) {
				t.Errorf("it asks %q when that has begun", last)
			}
			d.write(t, "\n")
			for strings.Contains(strings.Join(d.on.Seen(), "\n"), last) && d.read(t) { // until the question is gone
			}
		}
	}
	_ = d.cmd.Wait()
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if count < 6 {
		t.Errorf("it asked %d times", count)
	}
	seen := d.on.Seen()
	all := strings.Join(seen, "\n")
	if d.on.Wrapped > 0 || strings.Contains(all, "spiffe://") || !strings.Contains(all, " bookshop/productpage\n") {
		t.Errorf("%d rows are too long, or identities are not short", d.on.Wrapped)
	}
	if last := seen[len(seen)-1]; !strings.HasSuffix(last, " checks passed") || strings.Count(all, "checks passed") != 1 {
		t.Errorf("the last line is %q", last)
	}
	if n := strings.Count(all, "all were answered by v2"); n != 1 {
		t.Errorf("a check is said %d times", n)
	}
	for _, l := range seen {
		if strings.HasPrefix(l, "  ") && strings.Contains(l, ".bookshop") && !strings.Contains(l, "in sync") {
			t.Errorf("a last table has %q", l)
		}
	}
	if len(d.on.Styles()) == 0 {
		t.Error("no colors")
	}
	d.left(t)
}

// Without colors the table is the same; on a terminal without control sequences there are lines only. Ctrl-C ends both.
func TestDemoWithoutColors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		env   []string
		table bool
	}{
		{"NO_COLOR", []string{"TERM=xterm", "NO_COLOR=1"}, true},
		{"dumb", []string{"TERM=dumb"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := startDemoOnScreen(t, 160, 50, tt.env, "--pace", "50ms")
			d.see(t, "Scenario 2.")
			d.write(t, "\x03")
			if code := d.finish(t); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if got := strings.Contains(string(d.all), "\x1b["); got != tt.table || len(d.on.Styles()) > 0 {
				t.Errorf("control sequences: %v, want %v; styles %v", got, tt.table, d.on.Styles())
			}
			if all := strings.Join(d.on.Seen(), "\n"); !strings.Contains(all, " spiffe://cluster.local/ns/bookshop/sa/productpage\n") {
				t.Error("identities are not whole at 160 columns")
			}
			d.left(t)
		})
	}
}
