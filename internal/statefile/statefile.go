// Package statefile keeps files in a state folder: folders of secrets that are created once, and files that are replaced atomically.
//
// A folder is created with all of its files or not at all, and a file has its old or its
// new contents, also after a crash of the machine. If several processes create the same
// folder, one succeeds and the others use its files. Folders have mode 0700, files 0600. What
// is of another user, or what others can write, is not read, and symbolic links in the folder
// are not followed. A process that is killed may leave a hidden temporary file or folder,
// which is not read.
// All functions are safe for concurrent use.
package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxPrivate limits a private file, in bytes.
const maxPrivate = 1 << 20

// CreateOnce creates the folder parent/name with the files, and parent if it does not exist. If
// the folder exists and is not empty it does nothing: callers read the files afterwards in both cases. It
// returns an error if others than the owner can write parent.
func CreateOnce(parent, name string, files map[string][]byte) error {
	final := filepath.Join(parent, name)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	if err := CheckFolder(parent); err != nil {
		return err
	}
	Sweep(parent, name)
	temp, err := lockedTemp(parent, name)
	if err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	defer temp.Close()
	defer os.RemoveAll(temp.Name()) // after a rename it does not exist
	for base, text := range files {
		if err := writeSynced(filepath.Join(temp.Name(), base), text); err != nil {
			return err
		}
	}
	if err := syncDir(temp.Name()); err != nil {
		return err
	}
	// A rename onto a folder that is not empty fails, so the first caller succeeds. os.Rename would not
	// replace an empty one.
	if err := unix.Rename(temp.Name(), final); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("create state folder %s: %w", final, err)
	}
	return syncDir(parent)
}

// lockedTemp creates the temporary folder of a CreateOnce. While the process holds its lock, Sweep does
// not remove it.
func lockedTemp(parent, name string) (*os.File, error) {
	for {
		path, err := os.MkdirTemp(parent, tempPrefix(name)) // MkdirTemp gives 0700 and appends a number
		if err != nil {
			return nil, err
		}
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // Sweep of another process removed it before it was locked
		}
		if err != nil {
			return nil, err
		}
		if err := flock(dir); errors.Is(err, unix.EWOULDBLOCK) {
			_ = dir.Close() // Sweep of another process is removing it
			continue
		}
		// Without locks on this file system, Sweep goes by age.
		if _, err := os.Stat(path); err == nil {
			return dir, nil
		}
		_ = dir.Close()
	}
}

// Sweep removes the temporary folders of the CreateOnce calls for parent/name whose process was killed.
// It leaves those of calls that run. Where the file system has no locks, it removes those that are
// older than an hour.
func Sweep(parent, name string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // whoever uses the folder reports the cause
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), tempPrefix(name))
		if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		removeAbandoned(filepath.Join(parent, e.Name()))
	}
}

// removeAbandoned removes a temporary folder that no process holds.
func removeAbandoned(path string) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	if err := flock(dir); err != nil {
		fi, statErr := dir.Stat()
		if errors.Is(err, unix.EWOULDBLOCK) || statErr != nil || time.Since(fi.ModTime()) < staleAfter {
			return
		}
	}
	_ = os.RemoveAll(path) // best effort: another process may have removed it
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ReadPrivate reads a secret of at most 1 MiB from a file in a folder of CreateOnce. It returns an error
// if anybody but the owner can access the file, since the secret may be known then, and, like ReadOwn, if
// the file, its folder or the folder's parent is of another user or can be written by others. The error
// wraps fs.ErrNotExist if there is no file.
func ReadPrivate(path string) ([]byte, error) {
	return readCreated(path, 0o077)
}

// ReadPublic is ReadPrivate for a file that is not secret: others may read it, but not write it.
func ReadPublic(path string) ([]byte, error) { return readCreated(path, 0o022) }

// readCreated reads a file in a folder of CreateOnce.
func readCreated(path string, refused fs.FileMode) ([]byte, error) {
	if err := CheckFolder(filepath.Dir(filepath.Dir(path))); err != nil {
		return nil, err
	}
	return read(path, maxPrivate, refused, unix.O_NOFOLLOW)
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write state file %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write state folder: %w", err)
	}
	err = errors.Join(d.Sync(), d.Close())
	if err != nil {
		return fmt.Errorf("write state folder %s: %w", dir, err)
	}
	return nil
}
