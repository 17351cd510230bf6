package claim_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/claim"
)

func hold(t *testing.T, path string) *claim.Lock {
	t.Helper()
	h, err := claim.Folder(t.Context(), path, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o500); err != nil { // nothing is written
		t.Fatal(err)
	}
	h := hold(t, dir)
	if !h.Is(link) || h.Is(filepath.Dir(dir)) {
		t.Error("Is is wrong for another path of the folder, or for its parent")
	}
	calls := 0
	_, err := claim.Folder(t.Context(), link, time.Millisecond, func(error) { calls++ })
	var taken *claim.TakenError
	if !errors.As(err, &taken) || taken.PID != os.Getpid() || taken.Path != link || calls != 1 {
		t.Errorf("got %v after %d calls of waiting, want a TakenError with this process after one", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = claim.Folder(ctx, dir, time.Hour, func(error) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	// A waiting call returns when the folder is released.
	next, err := claim.Folder(t.Context(), dir, time.Hour, func(error) {
		if err := h.Release(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Release(); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left behind: %v, error %v", files, err)
	}
}

func TestFolderThatDoesNotExist(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, file + "-that-is-missing"} {
		if _, err := claim.Folder(t.Context(), path, time.Hour, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "socket")
	first, err := claim.Socket(path, claim.AnyUser)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim.Socket(path, claim.AnyUser); err == nil || !strings.Contains(err.Error(), path+": in use by another process") {
		t.Errorf("a live socket: %v", err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the live socket: %v", err)
	}
	c.Close()
	if err := os.Rename(path, path+"-kept"); err != nil { // as if its process had been killed
		t.Fatal(err)
	}
	first.Close()
	if err := os.Rename(path+"-kept", path); err != nil {
		t.Fatal(err)
	}
	second, err := claim.Socket(path, claim.AnyUser)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	defer second.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("mode %v, error %v", st.Mode(), err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := claim.Socket(file, claim.AnyUser); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file: %v", err)
	}
	if _, err := claim.Socket("/"+strings.Repeat("x", 107), claim.AnyUser); err == nil || !strings.Contains(err.Error(), "path of 108 bytes") {
		t.Errorf("a long path: %v", err)
	}
}

func TestPortWaits(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := busy.Addr().String()
	if _, err := claim.Port(t.Context(), address, 0); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a busy port: %v", err)
	}
	got := make(chan error)
	go func() {
		l, err := claim.Port(t.Context(), address, time.Minute)
		if err == nil {
			err = l.Close()
		}
		got <- err
	}()
	busy.Close()
	if err := <-got; err != nil {
		t.Error(err)
	}
}
