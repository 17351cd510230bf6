package kubetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Names of the directories of clusters below the system's temporary one. A directory has the second prefix
// from when it is locked.
const newPrefix, lockedPrefix = "kubetest-new-", "kubetest-run-"

// maxSocketPath is the longest path of a Unix socket, in bytes, without the zero at its end.
const maxSocketPath = 107

// newDirectory makes a directory for one cluster, locked until the file that it returns is closed or this
// process ends. It removes those of processes that were killed.
func newDirectory() (string, *os.File, error) {
	removeAbandoned()
	fresh, err := os.MkdirTemp("", newPrefix)
	if err != nil {
		return "", nil, err
	}
	lock, err := os.Open(fresh)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	dir := filepath.Join(filepath.Dir(fresh), lockedPrefix+strings.TrimPrefix(filepath.Base(fresh), newPrefix))
	if err == nil {
		err = os.Rename(fresh, dir)
	}
	if err != nil {
		_ = os.Remove(fresh)
		return "", nil, fmt.Errorf("make a directory for the cluster: %w", err)
	}
	if path := filepath.Join(dir, "etcd.sock"); len(path) > maxSocketPath {
		_ = os.Remove(dir)
		return "", nil, fmt.Errorf("the path of a Unix socket, %s, has %d bytes, at most %d: set TMPDIR to a shorter path", path, len(path), maxSocketPath)
	}
	return dir, lock, nil
}

// removeAbandoned removes the directories that no process holds any more. What other users own stays.
func removeAbandoned() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), lockedPrefix+"*"))
	for _, dir := range dirs {
		f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}
