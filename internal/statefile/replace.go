package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// staleAfter is the age at which the temporary file of a killed Replace is removed. A Replace that
// runs takes seconds.
const staleAfter = time.Hour

// Replace replaces the contents of a file atomically, also if the machine crashes, and syncs it to
// disk. It creates the file's folder if that does not exist. The file has mode 0600. A symbolic link at
// the path is replaced, not followed. If several processes replace a file concurrently, the last one wins.
func Replace(path string, text []byte) error { return replace(path, text, 0o600) }

// ReplacePublic is Replace for a file that everybody may read, with mode 0644.
func ReplacePublic(path string, text []byte) error { return replace(path, text, 0o644) }

func replace(path string, text []byte, mode os.FileMode) (err error) {
	dir, base := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	sweep(dir, tempPrefix(base))
	temp, err := os.CreateTemp(dir, tempPrefix(base)+"*") // CreateTemp gives 0600
	if err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name()) // best effort: the first error is returned
		}
	}()
	_, err = temp.Write(text)
	if err = errors.Join(err, temp.Chmod(mode), temp.Sync(), temp.Close()); err != nil {
		return fmt.Errorf("write state file %s: %w", path, err)
	}
	if err = os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	return syncDir(dir)
}

func tempPrefix(base string) string { return "." + base + "-" }

// sweep removes the temporary files of Replace calls that were killed.
func sweep(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // creating the temporary file reports the cause
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() && time.Since(fi.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(dir, e.Name())) // best effort: another process may have removed it
		}
	}
}

// SetAside renames a file that cannot be used by adding ".unusable", replacing an earlier one, and
// returns the new path. It is not an error if the file does not exist.
func SetAside(path string) (string, error) {
	aside := path + ".unusable"
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("set state file aside: %w", err)
	}
	return aside, nil
}
