package secret

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// current is the symbolic link that is replaced when the output changes.
const current = "..data"

// Output writes the current secret to a folder, for programs that read files. [agent S14]
type Output struct {
	// Dir is the folder of key.pem, cert-chain.pem and root-cert.pem. It is created if missing.
	Dir string
	// Mode is the files' mode.
	Mode fs.FileMode
	// Source is a Keeper or Files.
	Source interface {
		Current() (*pki.Secret, <-chan struct{})
	}
	Log *slog.Logger
}

// Run writes the current secret and each successor until ctx ends, then returns nil. A folder
// that cannot be written is logged and not an error: Envoy does not depend on it.
func (o Output) Run(ctx context.Context) error {
	for {
		s, next := o.Source.Current()
		if s != nil {
			if err := o.write(s); err != nil {
				o.Log.Warn("certificates not written", "reason", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

// write replaces the three files atomically: they are symbolic links through one link, which is
// replaced by a rename, so a reader finds a key and a chain that match.
func (o Output) write(s *pki.Secret) error {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	dir, err := os.MkdirTemp(o.Dir, "..certs-")
	if err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	files := map[string][]byte{"key.pem": s.Key, "cert-chain.pem": s.Chain, "root-cert.pem": s.Roots}
	for name, text := range files {
		if err := writeFile(filepath.Join(dir, name), text, o.Mode); err != nil {
			os.RemoveAll(dir)
			return err
		}
	}
	// Users who may read the files must be able to traverse their folder.
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	old, _ := os.Readlink(filepath.Join(o.Dir, current))
	if err := o.link(current, filepath.Base(dir)); err != nil {
		return err
	}
	for name := range files {
		if err := o.link(name, filepath.Join(current, name)); err != nil {
			return err
		}
	}
	if old != "" && old == filepath.Base(old) {
		return os.RemoveAll(filepath.Join(o.Dir, old))
	}
	return nil
}

// link makes name in the output folder a symbolic link to target, atomically.
func (o Output) link(name, target string) error {
	path := filepath.Join(o.Dir, name)
	if was, err := os.Readlink(path); err == nil && was == target {
		return nil
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write certificates: %w", err)
	}
	if err := os.Symlink(target, temp); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	return nil
}

func writeFile(path string, text []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path, text, mode); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil { // independent of the umask
		return fmt.Errorf("write certificates: %w", err)
	}
	return nil
}
