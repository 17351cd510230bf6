// Package claim acquires what only one process may use: a folder, a TCP port, the path of a Unix socket.
//
// What another process uses is left alone, and the error names that process if it is
// known. A claim ends with its release or with the process, also on SIGKILL, because the
// kernel keeps it: no lock file is written. All functions are safe for concurrent use.
package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is returned if the folder's file system does not support flock.
var ErrUnsupported = errors.New("its file system does not support locks")

// retryInterval is the time between attempts to acquire what another process has.
const retryInterval = 20 * time.Millisecond

// TakenError is returned for a folder that another process has locked.
type TakenError struct {
	Path string
	// PID is the id of that process in the PID namespace of this one; 0 if it is not visible.
	PID int
}

// Error returns a message with the folder and the process.
func (e *TakenError) Error() string {
	if e.PID == 0 {
		return e.Path + " is locked by a process that is not visible from here (another container?)"
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}

// Lock is a folder that this process has locked.
type Lock struct{ dir *os.File }

// Folder locks an existing folder for this process. The folder only needs to be readable; nothing
// is written to it. If another process has locked it, Folder calls waiting, unless it is nil, and
// retries until timeout has passed. It then returns a *TakenError; if ctx ends first, the error of
// ctx; and if the file system has no locks, an error that wraps ErrUnsupported. All paths of a
// folder are the same lock. A process that locks a folder twice waits for itself.
func Folder(ctx context.Context, path string, timeout time.Duration, waiting func(error)) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for {
		h, err := tryFolder(path)
		var taken *TakenError
		if !errors.As(err, &taken) {
			return h, err
		}
		if waiting != nil {
			waiting(err)
			waiting = nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, err
			}
			return nil, ctx.Err()
		}
	}
}

func tryFolder(path string) (*Lock, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err = flock(dir); err == nil && !sameFile(path, dir) {
		err = unix.EWOULDBLOCK // it was replaced by another folder meanwhile
	}
	if err == nil {
		return &Lock{dir}, nil
	}
	defer dir.Close()
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, &TakenError{Path: path, PID: holder(dir)}
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBADF), errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("lock %s: %w: %w", path, ErrUnsupported, err)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sameFile reports whether path refers to the file.
func sameFile(path string, f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	current, err := os.Stat(path)
	return err == nil && os.SameFile(opened, current)
}

// Is reports whether path refers to the locked folder.
func (h *Lock) Is(path string) bool { return sameFile(path, h.dir) }

// Release unlocks the folder.
func (h *Lock) Release() error { return h.dir.Close() }

// holder returns the id of the process that has locked a file, 0 if it is not visible.
func holder(f *os.File) int {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	return lockedBy(string(text), fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
}

// lockedBy returns the process that has locked the file (device and inode) according to
// /proc/locks, with lines such as "1: FLOCK  ADVISORY  WRITE 123 fd:01:456 0 EOF". Processes that
// wait for the lock have "->" before FLOCK and are ignored.
func lockedBy(list, file string) int {
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
