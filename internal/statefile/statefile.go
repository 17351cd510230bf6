// Package statefile keeps files in a state folder: secrets made once, whole, by the first of several processes, and files that are replaced whole.
//
// The contract: a folder of files appears at once with all of them in it or not at all,
// also when the machine stops half-way; of several processes that make the same folder
// one wins and the others leave its files as they are. Folders have mode 0700, files
// 0600. Secrets are read only while nobody else can read them. What a broken attempt
// leaves behind is a hidden folder or file that nothing reads.
package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxPrivate bounds a private file, in bytes.
const maxPrivate = 1 << 20

// CreateOnce makes the folder parent/name with these files in it, and parent where it is
// missing. Where the folder exists already it does nothing, so the caller reads the files
// afterwards in any case.
func CreateOnce(parent, name string, files map[string][]byte) error {
	final := filepath.Join(parent, name)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	temp, err := os.MkdirTemp(parent, "."+name+"-") // MkdirTemp gives 0700
	if err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	defer os.RemoveAll(temp) // after the rename there is nothing there
	for base, text := range files {
		if err := writeSynced(filepath.Join(temp, base), text); err != nil {
			return err
		}
	}
	if err := syncDir(temp); err != nil {
		return err
	}
	// A rename onto a folder that holds anything fails, which is what makes the first win.
	if err := os.Rename(temp, final); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("make state folder: %w", err)
	}
	return syncDir(parent)
}

// ReadPrivate reads a file that only its owner may read. A file that others may read is
// refused: what it holds must be taken to be known, and the error says what to do.
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
		return nil, fmt.Errorf("read private file %s: mode %04o lets others at it; if nobody had it, chmod 600 it, else remove its folder to make another", path, mode)
	}
	if st.Size() > maxPrivate {
		return nil, fmt.Errorf("read private file %s: %d bytes, at most %d are taken", path, st.Size(), maxPrivate)
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
