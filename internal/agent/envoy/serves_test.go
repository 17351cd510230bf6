package envoy

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"testing"
)

// segmentOf writes a segment as an Envoy of hot restart version 11 makes one of so many bytes.
func segmentOf(t *testing.T, size int, flags uint64) *shared {
	t.Helper()
	s := &shared{dir: t.TempDir(), id: 1}
	text := make([]byte, size)
	binary.NativeEndian.PutUint64(text, uint64(size))
	binary.NativeEndian.PutUint64(text[8:], 11)
	binary.NativeEndian.PutUint64(text[size-8:], flags)
	if err := os.WriteFile(s.segment(), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhoServes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	deaf := exec.Command("sleep", "1000")
	if err := deaf.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = deaf.Process.Kill()
		_ = deaf.Wait()
	})
	own, other := os.Getpid(), deaf.Process.Pid
	tests := []struct {
		name   string
		memory *shared
		pid    int
		parent parent
		want   bool
	}{
		{"it has told its parent", segmentOf(t, knownSize, 0), own, parent{}, true},
		{"it initialises", segmentOf(t, knownSize, initialising), own, parent{}, false},
		{"it listens nowhere", segmentOf(t, knownSize, 0), other, parent{}, false},
		{"it is gone", segmentOf(t, knownSize, 0), 1 << 30, parent{}, false},
		{"another layout, its parent listens no longer", segmentOf(t, 120, 0), own, parent{other, true}, true},
		{"another layout, its parent listens", segmentOf(t, 120, 0), own, parent{own, true}, false},
		{"another layout, its parent never listened", segmentOf(t, 120, 0), own, parent{other, false}, false},
		{"another layout, its parent is gone", segmentOf(t, 120, 0), own, parent{1 << 30, true}, false},
		{"another layout, no parent", segmentOf(t, 120, 0), own, parent{}, false},
		{"no shared memory", &shared{dir: t.TempDir(), id: 1}, own, parent{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &loop{memory: tt.memory}
			if got := l.serves(&attempt{process: Process{PID: tt.pid}, parent: tt.parent}); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for admin, want := range map[string]bool{"127.0.0.1:1": true, "127.0.0.1:" + port: false} {
		r := &loop{Runner: &Runner{o: Options{Admin: admin}}, memory: segmentOf(t, 120, 0)}
		if got := r.parentOf(Process{PID: own}); got != (parent{own, want}) {
			t.Errorf("admin %s: %+v, want listened %v", admin, got, want)
		}
	}
	if v, err := segmentOf(t, 120, 0).version(); v != "11.120" || err != nil {
		t.Errorf("version %q, error %v", v, err)
	}
}
