package statefile

import (
	"errors"
	"fmt"
	"io"
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
// disk. It creates the file's folder if that does not exist. If several processes replace a file
// concurrently, the last one wins.
func Replace(path string, text []byte) (err error) {
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
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
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

// ReadOwn reads a file of at most limit bytes. It returns an error if others than its owner can
// write it, because its contents cannot be trusted then, and one that wraps fs.ErrNotExist if it
// does not exist.
func ReadOwn(path string, limit int64) ([]byte, error) {
	// Stat comes before Open, because opening a named pipe blocks until it has a writer.
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read state file: %w", err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("read state file %s: not a regular file", path)
	case st.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("read state file %s: mode %04o lets others write it, want 0600", path, st.Mode().Perm())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("read state file %s: more than %d bytes", path, limit)
	}
	return text, nil
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
