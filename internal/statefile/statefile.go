// Package statefile keeps files in a state folder: folders of secrets that are created once, and files that are replaced atomically.
//
// A folder is created with all of its files or not at all, and a file has its old or its
// new contents, also after a crash of the machine. If several processes create the same
// folder, one succeeds and the others use its files. Folders have mode 0700, files 0600. A
// process that is killed may leave a hidden temporary file or folder, which is not read.
// All functions are safe for concurrent use.
package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxPrivate limits a private file, in bytes.
const maxPrivate = 1 << 20

// CreateOnce creates the folder parent/name with the files, and parent if it does not exist. If
// the folder exists it does nothing: callers read the files afterwards in both cases.
func CreateOnce(parent, name string, files map[string][]byte) error {
	final := filepath.Join(parent, name)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	temp, err := os.MkdirTemp(parent, "."+name+"-") // MkdirTemp gives 0700
	if err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	defer os.RemoveAll(temp) // after a rename it does not exist
	for base, text := range files {
		if err := writeSynced(filepath.Join(temp, base), text); err != nil {
			return err
		}
	}
	if err := syncDir(temp); err != nil {
		return err
	}
	// A rename onto a folder that is not empty fails, so the first caller succeeds.
	if err := os.Rename(temp, final); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("create state folder: %w", err)
	}
	return syncDir(parent)
}

// ReadPrivate reads a secret of at most 1 MiB. It returns an error if anybody but the owner can
// access the file, since the secret may be known then, and an error that wraps fs.ErrNotExist if
// there is no file.
func ReadPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read private file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read private file: %w", err)
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("read private file %s: mode %04o gives others access, want 0600: if nobody has read it, chmod 600 it, else remove its folder to create a new one", path, mode)
	}
	if st.Size() > maxPrivate {
		return nil, fmt.Errorf("read private file %s: %d bytes, want at most %d", path, st.Size(), maxPrivate)
	}
	text := make([]byte, st.Size())
	if _, err := f.ReadAt(text, 0); err != nil {
		return nil, fmt.Errorf("read private file: %w", err)
	}
	return text, nil
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
