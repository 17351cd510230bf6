package meshup

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
	folderPrefix = "pilothouse-mesh-"
	// lockName is a file in the directory that is locked while its mesh runs.
	lockName = "lock"
)

// MakeFolder makes a work directory for a mesh; it contains the key of the CA. The returned function
// removes it. After SIGKILL the next call by the same user removes it; left are lines to print about that.
func MakeFolder() (dir string, left []string, remove func() error, err error) {
	gone, errs := removeLeft(os.TempDir())
	for _, d := range gone {
		left = append(left, "removed "+d+", which a killed mesh had left")
	}
	for _, err := range errs {
		left = append(left, fmt.Sprintf("cannot remove what a killed mesh had left: %v", err))
	}
	dir, err = os.MkdirTemp("", folderPrefix)
	if err != nil {
		return "", nil, nil, fmt.Errorf("make a directory for the mesh: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return "", nil, nil, errors.Join(fmt.Errorf("lock the directory of the mesh: %w", err), os.RemoveAll(dir))
	}
	return dir, left, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// lockFolder renames the lock file after it has locked it, so that another one never finds an unlocked one.
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

// removeLeft removes the directories of this user's meshes that no longer run. The kernel has released the
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
			continue // of another program, removed meanwhile, or of another user
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
		return false, nil // its mesh is starting, or removes it
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil // its mesh is running
		}
		return false, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return false, err
	}
	return true, nil
}
