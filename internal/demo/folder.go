package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	folderPrefix = "pilothouse-demo-"
	// lockName is a file in the folder that is locked as long as its demo runs.
	lockName = "lock"
)

// makeFolder makes a folder for the mesh, which holds the key of its CA. The returned function
// removes it. Who is killed with -9 can't do that: the next demo of the same user does, and left are
// sentences about it.
func makeFolder() (dir string, left []string, remove func() error, err error) {
	gone, errs := removeLeft(os.TempDir())
	for _, d := range gone {
		left = append(left, "removed "+d+", which a demo left that was killed")
	}
	for _, err := range errs {
		left = append(left, fmt.Sprintf("what a demo left that was killed can't be removed: %v", err))
	}
	dir, err = os.MkdirTemp("", folderPrefix)
	if err != nil {
		return "", nil, nil, fmt.Errorf("make a folder for the mesh: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return "", nil, nil, errors.Join(fmt.Errorf("lock the mesh's folder: %w", err), os.RemoveAll(dir))
	}
	return dir, left, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// lockFolder gives the lock its name only when it is held: a demo that begins just now never finds
// one that is free.
func lockFolder(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName+".new"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = os.Rename(lock.Name(), filepath.Join(dir, lockName))
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// removeLeft removes the folders of this user's demos that run no more. The kernel gives up the
// locks of those that were killed.
func removeLeft(temp string) (removed []string, errs []error) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return nil, []error{err}
	}
	for _, e := range entries {
		dir := filepath.Join(temp, e.Name())
		info, err := e.Info()
		if !strings.HasPrefix(e.Name(), folderPrefix) || err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue // another program's, gone meanwhile, or somebody else's
		}
		switch gone, err := removeUnlocked(dir); {
		case err != nil:
			errs = append(errs, err)
		case gone:
			removed = append(removed, dir)
		}
	}
	return removed, errs
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
