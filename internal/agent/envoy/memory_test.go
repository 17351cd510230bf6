package envoy

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

func reserved(t *testing.T, dir string) *shared {
	t.Helper()
	s, err := reserve(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// segment writes what Envoy would; flags is the word with the flag.
func segment(t *testing.T, s *shared, size int, flags uint64) {
	t.Helper()
	text := make([]byte, size)
	if size >= flagsAt+8 {
		binary.NativeEndian.PutUint64(text[flagsAt:], flags)
	}
	if err := os.WriteFile(s.segment(), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestABaseIDIsTakenOnce(t *testing.T) {
	dir := t.TempDir()
	s := reserved(t, dir)
	again := &shared{dir: dir, id: s.id}
	if err := again.take(); err == nil {
		t.Error("taken twice in one folder")
	}
	// Another folder in the same network namespace: Envoy's sockets would meet.
	elsewhere := &shared{dir: t.TempDir(), id: s.id}
	if err := elsewhere.take(); err == nil {
		t.Error("taken twice in one network namespace")
	}
	if _, err := os.Stat(elsewhere.lockPath()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed try left its lock: %v", err)
	}
}

func TestSegmentOfAnotherUserIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	s := &shared{dir: dir, id: 4711}
	segment(t, s, knownSize, 0)
	if err := s.take(); err == nil {
		t.Error("took a base id whose segment is there")
	}
	if _, err := os.Stat(s.segment()); err != nil {
		t.Error(err)
	}
	reserved(t, dir)
	if _, err := os.Stat(s.segment()); err != nil {
		t.Errorf("a sweep took it: %v", err)
	}
}

func TestMemoryOfAKilledAgentIsRemoved(t *testing.T) {
	dir := t.TempDir()
	alive := reserved(t, dir)
	segment(t, alive, knownSize, 0)
	dead := &shared{dir: dir, id: 4712}
	segment(t, dead, knownSize, 0)
	if err := os.WriteFile(dead.lockPath(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reserved(t, dir)
	for _, path := range []string{dead.segment(), dead.lockPath()} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left (%v)", path, err)
		}
	}
	if _, err := os.Stat(alive.segment()); err != nil {
		t.Errorf("the segment of one that lives: %v", err)
	}
}

func TestTheFlagIsClearedAlone(t *testing.T) {
	s := reserved(t, t.TempDir())
	segment(t, s, knownSize, 7)
	if err := s.clearFlag(knownLayout); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.segment())
	if err != nil || binary.NativeEndian.Uint64(text[flagsAt:]) != 6 {
		t.Errorf("got % x, error %v", text, err)
	}
}

func TestUnknownSharedMemoryIsNotTouched(t *testing.T) {
	s := reserved(t, t.TempDir())
	segment(t, s, knownSize, 1)
	if err := s.clearFlag("11.105"); err == nil || !strings.Contains(err.Error(), "11.105") {
		t.Errorf("another version: %v", err)
	}
	segment(t, s, 112, 1)
	if err := s.clearFlag(knownLayout); err == nil || !strings.Contains(err.Error(), "104 bytes") {
		t.Errorf("another size: %v", err)
	}
	if text, err := os.ReadFile(s.segment()); err != nil || text[flagsAt] != 1 {
		t.Errorf("it was written to: %v", err)
	}
}

func TestConnectionsWithoutAdmin(t *testing.T) {
	rows := []tcpSocket{
		{15006, tcpListen, "1"}, {15001, tcpListen, "2"}, {15006, tcpEstablished, "3"}, {15006, tcpEstablished, "4"},
		{15001, tcpEstablished, "5"}, {40000, tcpEstablished, "6"}, {15006, tcpEstablished, "somebody's"}, {8080, tcpListen, "somebody's too"},
	}
	owned := map[string]bool{"1": true, "2": true, "3": true, "4": true, "5": true, "6": true}
	if n := countRows(rows, owned, []int{15006}, nil); n != 2 {
		t.Errorf("inbound: %d", n)
	}
	if n := countRows(rows, owned, nil, []int{15006}); n != 1 {
		t.Errorf("all but those: %d", n)
	}
}
