// Package fakeenvoy is a scripted Envoy for tests: it is live late, crashes, hangs, rejects its bootstrap, or ignores signals.
//
// It is the test binary itself, run under another name: a package that wants it calls
// Main at the start of its TestMain, gets the program's path from Install, and passes it a
// script from Write in place of a bootstrap (-c). It has the part of the admin interface that the
// agent uses, records what happens to it, and has a few commands on its admin port
// (/fake/exit, /fake/stats, /fake/hang). The tests of this package run the same scenarios with it and with a
// real Envoy, so that the two behave alike.
package fakeenvoy

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// program is the name under which the test binary is an Envoy.
const program = "fake-envoy"

// Script is the behaviour of one fake Envoy. With only an admin address it is live at once and ends on
// SIGTERM.
type Script struct {
	// Admin is the address of its admin interface.
	Admin string
	// Listen is the address of a listener that answers every request with 200 and its process id; "" for none.
	Listen string
	// LiveAfter is the duration of its initialisation.
	LiveAfter time.Duration
	// FailFirst makes the first so many starts end at once with ExitCode; below 0 all of them.
	FailFirst int
	// ExitCode is the code of those.
	ExitCode int
	// IgnoreTerm ignores SIGTERM.
	IgnoreTerm bool
	// NoAdmin never opens the admin interface.
	NoAdmin bool
	// Invalid is the error of validation; "" accepts the bootstrap.
	Invalid string
	// Lines are printed to the standard output at the start.
	Lines []string
	// Stats are in the answer of /stats, in addition to those that every live Envoy has.
	Stats map[string]uint64
	// Child starts a child of its own that would outlive it.
	Child bool
}

// Main is Envoy, and does not return, where the program was started under the name that
// Install gave it. Otherwise it does nothing.
func Main() {
	if filepath.Base(os.Args[0]) == program {
		os.Exit(serve(os.Args[1:]))
	}
}

// Install returns the path of a program that is the fake Envoy.
func Install(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), program)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Write writes a script into a new folder and returns its path.
func Write(t testing.TB, s Script) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.json")
	Rewrite(t, path, s)
	return path
}

// Rewrite replaces a script; the next start has it.
func Rewrite(t testing.TB, path string, s Script) {
	t.Helper()
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Record returns what has happened to the Envoys of a script so far, a line each: "start
// ARGS…", "POST /path?query", "signal terminated", "exit CODE", "child PID".
func Record(t testing.TB, script string) []string {
	t.Helper()
	text, err := os.ReadFile(script + ".record")
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// FreeAddress returns an address (host:port) of the loopback interface without a listener.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(wait.FreePort(t)))
}
