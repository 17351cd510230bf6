package pty

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A shell on a terminal sees its size, what is typed, the signal for another size, and Ctrl-C.
func TestProgramHasATerminal(t *testing.T) {
	cmd := exec.Command("bash", "-c", `test -t 0 && test -t 1 && stty size; read line; echo "read $line"; trap 'stty size' WINCH; trap 'echo interrupted; exit 7' INT; echo ready; while :; do read -t 0.1 || :; done`)
	term, err := Start(cmd, 80, 24)
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	kill := time.AfterFunc(wait.Bound, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	in := bufio.NewScanner(term)
	until := func(want string) {
		t.Helper()
		for in.Scan() {
			if in.Text() == want {
				return
			}
		}
		t.Fatalf("no line %q: %v", want, in.Err())
	}
	until("24 80")
	if _, err := io.WriteString(term, "hello\n"); err != nil {
		t.Fatal(err)
	}
	until("read hello")
	until("ready")
	if err := term.Resize(160, 50); err != nil {
		t.Fatal(err)
	}
	until("50 160")
	if _, err := io.WriteString(term, "\x03"); err != nil {
		t.Fatal(err)
	}
	until("^Cinterrupted")
	for in.Scan() {
	}
	if in.Err() != nil {
		t.Errorf("at the end: %v", in.Err())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ended with %v, want exit code 7", err)
	}
}

func TestProgramThatDoesNotExist(t *testing.T) {
	if _, err := Start(exec.Command("/does/not/exist"), 80, 24); err == nil {
		t.Error("no error")
	}
}
