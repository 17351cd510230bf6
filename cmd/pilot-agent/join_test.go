package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The argument of join that was meant to be a file and is none is said to be none; a text that may be secret is not printed.
func TestJoinSaysThatThereIsNoFile(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other.txt")
	if err := os.WriteFile(other, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{
		filepath.Join(dir, "token.txt"): "stat " + filepath.Join(dir, "token.txt") + ": no such file or directory: want a file with what pilotctl token join prints",
		"token":                         "stat token: no such file or directory: want a file",
		other:                           other + `: read join token: it does not begin with "phjoin1."`,
		"phjoin1.abc":                   "read join token: wrong checksum",
		"phjoin9.abc":                   "read join token: version 9, want 1",
		"eyJhbGciOiJFUzI1NiJ9.e30.AAAA": `read join token: it does not begin with "phjoin1."`,
		strings.Repeat("x", 5000):       `read join token: it does not begin with "phjoin1."`,
	} {
		code, out, stderr := agentRun(t, nil, "join", "--dry-run", arg)
		if code != 255 || !strings.Contains(stderr, want) {
			t.Errorf("%.100s: code %d, %q, %q; want %q", arg, code, out, stderr, want)
		}
		if strings.HasPrefix(arg, "eyJ") && strings.Contains(stderr, arg) {
			t.Errorf("a token is printed: %q", stderr)
		}
	}
}

// A CA that does not answer is told once for each reason, not once a second.
func TestJoinTellsAReasonOnce(t *testing.T) {
	var out strings.Builder
	r := repeats{out: &out}
	for _, reason := range []string{"connection refused", "connection refused", "no route to host", "connection refused"} {
		r.tell(errors.New(reason))
	}
	if want := "  connection refused; trying again\n  no route to host; trying again\n  connection refused; trying again\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
