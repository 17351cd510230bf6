package sds

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// Connections stay when the socket is opened again. One in its place that a user serves who may have the secrets is left alone.
func TestRestore(t *testing.T) {
	logs := &wait.Output{}
	source := &value{s: secretA}
	c := config(filepath.Join(t.TempDir(), "socket"), source)
	c.Log = slog.New(slog.NewTextHandler(logs, nil))
	c.Users = Users{UIDs: []uint32{uint32(os.Getuid())}}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Restore(ctx); err != nil {
			t.Errorf("after the end: %v", err)
		}
	}()
	first := open(t, c.Socket, LeafName)
	first.next()
	restore := func() {
		t.Helper()
		if err := s.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restore()
	if got := logs.String(); strings.Contains(got, "socket") {
		t.Errorf("nothing happened: %s", got)
	}
	if err := os.Remove(c.Socket); err != nil {
		t.Fatal(err)
	}
	restore()
	second := open(t, c.Socket, LeafName)
	second.next()
	source.set(secretB)
	first.next()
	second.next()

	if err := os.Remove(c.Socket); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	restore()
	if got := logs.String(); !strings.Contains(got, "another server has taken the place") {
		t.Errorf("the other server is not told of: %s", got)
	}
	if conn, err := net.Dial("unix", c.Socket); err != nil {
		t.Errorf("the other server's socket: %v", err)
	} else {
		conn.Close()
	}
	other.Close()
	restore()
	open(t, c.Socket, LeafName).next()
	// What cannot be removed is an error.
	if err := os.Remove(c.Socket); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.Socket, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(t.Context()); err == nil || !strings.Contains(err.Error(), "open the secrets' socket again") {
		t.Errorf("a folder in its place: %v", err)
	}
	if err := os.RemoveAll(c.Socket); err != nil {
		t.Fatal(err)
	}
}
