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

// abandoned is the age at which what a broken attempt to replace a file left behind is
// removed; a live attempt takes seconds.
const abandoned = time.Hour

// Replace gives a file new contents: also when the machine stops half-way it holds the
// old or the new ones, whole. The folder is made with mode 0700 where it is missing; the
// file has mode 0600. Of several processes that replace one file at a time the last wins.
func Replace(path string, text []byte) (err error) {
	dir, base := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	sweep(dir, tempPrefix(base))
	temp, err := os.CreateTemp(dir, tempPrefix(base)+"*") // CreateTemp gives 0600
	if err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name()) // the error that counts is the first one
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

// sweep removes what attempts that were killed have left.
func sweep(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the write that follows tells why
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() && time.Since(fi.ModTime()) > abandoned {
			_ = os.Remove(filepath.Join(dir, e.Name())) // another process may have been faster
		}
	}
}

// ReadOwn reads a whole file of at most most bytes that nobody but its owner may write;
// others may have put into any other what they liked. A file that is not there is
// fs.ErrNotExist.
func ReadOwn(path string, most int64) ([]byte, error) {
	// Looked at before it is opened: to open a named pipe would wait for a writer.
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read state file: %w", err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("read state file %s: not a regular file", path)
	case st.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("read state file %s: mode %04o lets others write it, so nobody knows who wrote it", path, st.Mode().Perm())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("read state file %s: more than %d bytes", path, most)
	}
	return text, nil
}

// SetAside renames a file that cannot be used, so that it is neither read nor written
// over, and returns its new path. One file is kept so: a later one takes its place.
func SetAside(path string) (string, error) {
	aside := path + ".unusable"
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("set state file aside: %w", err)
	}
	return aside, nil
}
