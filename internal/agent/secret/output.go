package secret

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// current is the symbolic link that is replaced when the output changes.
	current = "..data"
	// generation begins the names of the folders that current links to.
	generation = "..certs-"
	// outputRetry is how long a failed write is waited for: the disk may have room again.
	outputRetry = 10 * time.Second
)

// Output writes the current secret to a folder, for programs that read files. [agent S14]
//
// The three files are symbolic links through one link to a folder, which a rename replaces. A program that
// must have a key and a chain that match resolves that link once and reads both files there: the folder is
// removed with the second replacement after it. Nothing is synced to disk: after a crash of the machine, the next agent writes the files
// before Envoy starts.
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

	first chan struct{}
	once  sync.Once
}

// NewOutput makes an Output. Run writes the files.
func NewOutput(dir string, mode fs.FileMode, source interface {
	Current() (*pki.Secret, <-chan struct{})
}, log *slog.Logger) *Output {
	return &Output{Dir: dir, Mode: mode, Source: source, Log: log, first: make(chan struct{})}
}

// Tried returns a channel that is closed after the first attempt to write a secret.
func (o *Output) Tried() <-chan struct{} { return o.first }

// Run writes the current secret and each successor until ctx ends, then returns nil. A folder
// that cannot be written is logged and tried again; it is not an error: Envoy does not depend on it.
func (o *Output) Run(ctx context.Context) error {
	logged := ""
	for {
		s, next := o.Source.Current()
		var again <-chan time.Time
		if s != nil {
			err := o.write(s)
			o.once.Do(func() { close(o.first) })
			if err != nil {
				again = time.After(outputRetry)
				if err.Error() != logged {
					o.Log.Warn("certificates not written", "reason", err)
				}
				logged = err.Error()
			} else {
				logged = ""
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-again:
		}
	}
}

// write replaces the three files as one.
func (o *Output) write(s *pki.Secret) (err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	dir, err := os.MkdirTemp(o.Dir, generation)
	if err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir) // the first error is returned
			err = fmt.Errorf("write certificates: %w", err)
		}
	}()
	files := map[string][]byte{"key.pem": s.Key, "cert-chain.pem": s.Chain, "root-cert.pem": s.Roots}
	for name, text := range files {
		if err := writeFile(filepath.Join(dir, name), text, o.Mode); err != nil {
			return err
		}
	}
	if err := openFolder(dir); err != nil {
		return err
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
	o.sweep(filepath.Base(dir), old)
	return nil
}

// sweep removes all generations but those named: earlier ones, and those of agents that were killed.
func (o *Output) sweep(keep ...string) {
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return // what is left over harms nothing, and is removed next time
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), generation) && e.Name() != keep[0] && e.Name() != keep[1] {
			_ = os.RemoveAll(filepath.Join(o.Dir, e.Name()))
		}
	}
}

// link makes name in the output folder a symbolic link to target, atomically.
func (o *Output) link(name, target string) error {
	path := filepath.Join(o.Dir, name)
	if was, err := os.Readlink(path); err == nil && was == target {
		return nil
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// writeFile creates a file. One that exists is an error, also a symbolic link, because in a folder that other users may write to
// it would be theirs.
func writeFile(path string, text []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	// The mode is independent of the umask.
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// openFolder lets those who may read the files traverse their folder. It follows no link that another user may have put there.
func openFolder(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o755), f.Close())
}
