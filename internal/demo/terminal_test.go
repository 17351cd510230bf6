package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/pty"
	"github.com/pilothouse/pilothouse/test/tty"
	"github.com/pilothouse/pilothouse/test/wait"
)

// asHelper is the variable with which this program is one that is watched on a terminal, and what it does.
const asHelper = "PILOTHOUSE_TEST_SCREEN"

func TestMain(m *testing.M) {
	switch os.Getenv(asHelper) {
	case "":
		os.Exit(m.Run())
	case "table":
		showTable()
	case "steps":
		takeSteps()
	}
}

// showTable shows a table, fits it to the terminal, and ends when it is interrupted.
func showTable() {
	ctx, resized, stop := Signals(context.Background())
	defer stop()
	d := &demo{o: Options{Resized: resized, Size: Terminal(os.Stdout, os.Getenv("TERM"))}}
	d.screen = &screen{size: d.o.Size, out: os.Stdout, painter: painter{color: d.o.Size != nil}}
	d.screen.print(result{What: "a line"}.lines())
	d.screen.begin()
	d.screen.draw(someFrame())
	d.followSize(ctx)
}

// takeSteps waits for Enter twice.
func takeSteps() {
	wait, restore, err := Enter(os.Stdin)
	for i := 1; i < 3 && err == nil; i++ {
		err = wait(context.Background(), func() { fmt.Println("step", i) })
	}
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		fmt.Println("cancelled:", wait(ctx, func() {}))
		restore()
	}
	fmt.Println("end:", err)
}

// helper starts this program on a terminal.
func helper(t *testing.T, what string, columns, rows uint16, env ...string) (*exec.Cmd, *pty.Terminal) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), asHelper+"="+what), env...)
	term, err := pty.Start(cmd, columns, rows)
	if err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(wait.Bound, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		kill.Stop()
		_ = cmd.Process.Kill()
		_ = term.Close()
		_ = cmd.Wait()
	})
	return cmd, term
}

// show plays what is read until the screen has a text.
func show(t *testing.T, from io.Reader, on *tty.Terminal, text string) string {
	t.Helper()
	for buffer := make([]byte, 1); ; {
		if all := strings.Join(on.Screen(), "\n"); strings.Contains(all, text) {
			return all
		}
		if _, err := from.Read(buffer); err != nil {
			t.Fatalf("%v; the screen has no %q:\n%s", err, text, strings.Join(on.Screen(), "\n"))
		}
		if _, err := on.Write(buffer); err != nil {
			t.Fatal(err)
		}
	}
}

// A terminal of 80 columns shows namespace and account; when it is widened, the table is laid out anew, with whole identities.
func TestTableFollowsTheTerminal(t *testing.T) {
	_, term := helper(t, "table", 80, 24, "TERM=xterm")
	on := tty.New(80, 24)
	if all := show(t, term, on, "serving, not connected"); !strings.Contains(all, " bookshop/shopper") || strings.Contains(all, sa) {
		t.Errorf("at 80 columns:\n%s", all)
	}
	for _, columns := range []int{160, 60, 80} {
		on.Resize(columns, 24, true)
		if err := term.Resize(uint16(columns), 24); err != nil {
			t.Fatal(err)
		}
		want := map[int]string{160: sa + "reviews\n", 60: "not connecte…", 80: "not connected  -\n"}[columns]
		if all := show(t, term, on, want); strings.Count(all, "a line") != 1 || strings.Count(all, "CALLER") != 1 {
			t.Errorf("at %d columns:\n%s", columns, all)
		}
	}
	if on.Styles()["32"] == "" {
		t.Errorf("styles %v", on.Styles())
	}
}

// A terminal that cannot move its cursor, and what is no terminal, get lines without escape codes, and no table.
func TestPlainOutput(t *testing.T) {
	const want = "  ok: a line"
	_, term := helper(t, "table", 80, 24, "TERM=dumb")
	in := bufio.NewScanner(term)
	if !in.Scan() || in.Text() != want {
		t.Errorf("dumb: %q, want %q", in.Text(), want)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHelper+"=table", "TERM=xterm")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	in = bufio.NewScanner(out)
	if !in.Scan() || in.Text() != want {
		t.Errorf("a pipe: %q, want %q", in.Text(), want)
	}
	_ = cmd.Process.Signal(os.Interrupt) // it has no handler: it ends
	for in.Scan() {
		t.Errorf("a pipe: %q more", in.Text())
	}
	_ = cmd.Wait()
}

// Each Enter is one step; it is not shown, since it would move the table.
func TestSteps(t *testing.T) {
	cmd, term := helper(t, "steps", 80, 24)
	in, all := bufio.NewScanner(term), ""
	until := func(want string) {
		t.Helper()
		for in.Scan() {
			all += in.Text() + "\n"
			if in.Text() == want {
				return
			}
		}
		t.Fatalf("no %q in %q", want, all)
	}
	until("step 1")
	for _, next := range []string{"step 2", "cancelled: context canceled"} {
		if _, err := io.WriteString(term, "q\n"); err != nil {
			t.Fatal(err)
		}
		until(next)
	}
	until("end: <nil>")
	if strings.Contains(all, "q") {
		t.Errorf("what was typed is shown: %q", all)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStepsNeedATerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, in := range []io.Reader{null, &bytes.Buffer{}} {
		if _, _, err := Enter(in); !errors.Is(err, ErrNoTerminal) {
			t.Errorf("%v", err)
		}
	}
}

// A pause is as long as was asked for, unless the run is interrupted.
func TestPace(t *testing.T) {
	var out bytes.Buffer
	interrupted := make(chan struct{})
	d := &demo{o: Options{Pace: 20 * time.Millisecond}, screen: &screen{out: &out}, done: interrupted}
	began := time.Now()
	d.check("a check", nil)
	if took := time.Since(began); took < d.o.Pace || out.String() != "  ok: a check\n" {
		t.Errorf("after %v: %q", took, out.String())
	}
	d.o.Pace = time.Hour
	close(interrupted)
	d.pause()
	d.check("another", nil)
	if len(d.results) != 1 {
		t.Error("a check of an interrupted run counts")
	}
}
