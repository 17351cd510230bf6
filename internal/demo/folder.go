package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	folderPrefix = "pilothouse-demo-"
	// lockName is a file in the folder that is locked as long as its demo runs.
	lockName = "lock"
)

// makeFolder makes a folder for the mesh, which holds the key of its CA. The returned function
// removes it. Who is killed with -9 can't do that: the next demo of the same user does, and gets
// those folders told.
func makeFolder() (dir string, left []string, remove func() error, err error) {
	left, err = removeLeft(os.TempDir())
	if err != nil {
		return "", nil, nil, fmt.Errorf("remove what a demo left that was killed: %w", err)
	}
	dir, err = os.MkdirTemp("", folderPrefix)
	if err != nil {
		return "", nil, nil, fmt.Errorf("make a folder for the mesh: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		return "", nil, nil, errors.Join(fmt.Errorf("lock the mesh's folder: %w", err), os.RemoveAll(dir))
	}
	return dir, left, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// removeLeft removes the folders of this user's demos that run no more. The kernel gives up the
// locks of those that were killed.
func removeLeft(temp string) (removed []string, err error) {
	dirs, err := filepath.Glob(filepath.Join(temp, folderPrefix+"*"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue // gone meanwhile, or somebody else's
		}
		gone, err := removeUnlocked(dir)
		if gone {
			removed = append(removed, dir)
		}
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

func removeUnlocked(dir string) (bool, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // one that begins just now, or is removed
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil // it runs
		}
		return false, fmt.Errorf("look at %s: %w", lock.Name(), err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return false, err
	}
	return true, nil
}
