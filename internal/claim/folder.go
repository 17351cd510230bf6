// Package claim takes what only one process may have: a folder, a TCP port, the path of a Unix socket.
//
// The contract: what another process has is left as it is, and the error says who has it
// where the kernel tells. What a process has taken it has until it gives it back or ends in
// whatever way: the kernel keeps the account, and no file remembers who was there.
package claim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that a folder's file system knows no locks.
var ErrUnsupported = errors.New("its file system knows no locks")

// lookEvery is how often a folder that another process has is tried again.
const lookEvery = 20 * time.Millisecond

// TakenError says that another process has a folder.
type TakenError struct {
	Path string
	// PID is that process, as seen from this process's PID namespace; 0 where it cannot be seen.
	PID int
}

// Error names the folder and the process.
func (e *TakenError) Error() string {
	if e.PID == 0 {
		return e.Path + " is another process's, which cannot be seen from here (another container?)"
	}
	return fmt.Sprintf("%s is that of process %d", e.Path, e.PID)
}

// Held is a folder that this process has.
type Held struct{ dir *os.File }

// Folder takes a folder that exists, for this process alone; it only needs to be readable, and nothing is written into it.
// Where another process has it, it is waited for, at most for within, and waiting, unless nil, is called
// first. The error then is a *TakenError, that of ctx where that ended, or wraps ErrUnsupported. The same folder by another name
// is the same folder; a process that takes it twice excludes itself.
func Folder(ctx context.Context, path string, within time.Duration, waiting func(error)) (*Held, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(lookEvery)
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

func tryFolder(path string) (*Held, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err = flock(dir); err == nil && !leads(path, dir) {
		err = unix.EWOULDBLOCK // another folder has taken its place meanwhile
	}
	if err == nil {
		return &Held{dir}, nil
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

// leads says that a path leads to the file.
func leads(path string, f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(opened, there)
}

// Is says whether a path leads to the folder.
func (h *Held) Is(path string) bool { return leads(path, h.dir) }

// Release gives the folder back.
func (h *Held) Release() error { return h.dir.Close() }

// holder is the process that has locked a file, 0 if it cannot be seen.
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

// lockedBy finds the holder of a file, device and inode, in the kernel's list: "1: FLOCK  ADVISORY  WRITE 123 fd:01:456 0 EOF". Who only
// waits for it stands behind an arrow.
func lockedBy(list, file string) int {
	for line := range strings.Lines(list) {
		w := strings.Fields(line)
		if len(w) < 6 || w[1] != "FLOCK" || w[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(w[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}

// there says whether anything is at a path.
func there(path string) (fs.FileInfo, bool, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return st, err == nil, err
}
