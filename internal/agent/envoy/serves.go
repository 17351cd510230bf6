package envoy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// unseenAfter is how old an Envoy is when it is checked in other ways because its admin interface does not answer. Until
// then it is merely starting.
const unseenAfter = time.Second

// serves says whether an Envoy accepts connections, without asking its admin interface: it
// listens, and it has told its parent to stop listening. It tells the parent and clears the initialising flag in one
// go. Where the shared memory has a layout that is not known, the parent's own sockets tell.
func (l *loop) serves(a *attempt) bool {
	// In this order: Envoy sets the flag before it listens anywhere.
	if own, err := listensOn(a.process.PID); err != nil || len(own) == 0 {
		return false
	}
	if initialises, err := l.memory.initialises(); err == nil {
		return !initialises
	}
	if !a.parent.listened {
		return false
	}
	left, err := listensOn(a.parent.pid)
	return err == nil && len(left) == 0
}

// parent is what an attempt takes over from, as it was when it began.
type parent struct {
	pid      int
	listened bool // on more than its admin interface
}

// parentOf describes an Envoy that is about to be replaced, where the shared memory does not tell.
func (l *loop) parentOf(p Process) parent {
	if _, err := l.memory.initialises(); err == nil {
		return parent{pid: p.PID}
	}
	ports, _ := listensOn(p.PID) // what cannot be looked at says nothing
	_, admin, _ := net.SplitHostPort(l.o.Admin)
	for port := range ports {
		if strconv.Itoa(port) != admin {
			return parent{p.PID, true}
		}
	}
	return parent{p.PID, false}
}

// checkServes checks whether an Envoy serves whose admin interface does not answer, and reports it if it does.
func (l *loop) checkServes(a *attempt) bool {
	if !l.serves(a) {
		return false
	}
	l.reportLive(a, cmp.Or(a.what.Workers, runtime.NumCPU()), false)
	return true
}

// giveUp ends an Envoy that is not known to be live, unless it serves.
func (l *loop) giveUp(e supervise.KillUnlessLive) {
	a := l.attempts[e.Epoch]
	switch {
	case a == nil:
		return
	case a.proc == nil:
		l.kill(supervise.Kill{Epoch: e.Epoch, Signal: supervise.SIGKILL})
		return
	}
	// It is stopped: otherwise it could take over between the check and the kill.
	_ = a.proc.signal(supervise.Signal(syscall.SIGSTOP)) // one that has ended needs no stop
	if !l.serves(a) {
		l.kill(supervise.Kill{Epoch: e.Epoch, Signal: supervise.SIGKILL})
		return
	}
	if err := a.proc.signal(supervise.Signal(syscall.SIGCONT)); err != nil {
		l.o.Log.Error("let Envoy go on", "epoch", e.Epoch, "error", err)
	}
	// Not from this goroutine: it is the one that takes reports.
	l.helpers.Go(func() { l.checkServes(a) })
}

// versionThatRuns is the hot restart version of the Envoy that runs: what it said itself, else what the shared
// memory says; "" if neither does.
func (l *loop) versionThatRuns(said string) string {
	if said != "" {
		return said
	}
	said, _ = l.memory.version()
	return said
}

// initialises reads the initialising flag.
func (s *shared) initialises() (bool, error) {
	if v, err := s.version(); err != nil || v != knownLayout {
		return false, fmt.Errorf("read the initialising flag: the layout of hot restart version %q is not known, only that of %s", v, knownLayout)
	}
	flags, err := s.word(flagsAt)
	return flags&initialising != 0, err
}

// version is the hot restart version of the Envoys that use the segment, which begins with its size and their version.
func (s *shared) version() (string, error) {
	size, err := s.word(0)
	if err != nil {
		return "", err
	}
	if st, err := os.Lstat(s.segment()); err != nil || uint64(st.Size()) != size {
		return "", fmt.Errorf("read the hot restart version: %s does not say its size", s.segment())
	}
	version, err := s.word(8)
	return fmt.Sprintf("%d.%d", version, size), err
}

func (s *shared) word(at int64) (uint64, error) {
	f, err := os.OpenFile(s.segment(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, fmt.Errorf("read Envoy's shared memory: %w", err)
	}
	defer f.Close()
	var word [8]byte
	if _, err := f.ReadAt(word[:], at); err != nil {
		return 0, fmt.Errorf("read Envoy's shared memory: %w", err)
	}
	return binary.NativeEndian.Uint64(word[:]), nil
}
