// Package dynamic keeps what discovery changes in Envoy's bootstrap.
//
// A Store has the newest differences, which are checked before they are taken, and those that Envoy has last accepted. It keeps the newest in a
// file of mode 0600, which is replaced as a whole, for a start without discovery. What Envoy has refused is remembered there, so that an agent
// that is started again does not try it again. The file belongs to one workload: one with another binding is left aside. A file that cannot be
// written or read is logged and costs the copy only. [agent B26]
package dynamic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// fileName is the name of the file.
const fileName = "bootstrap-copy"

// maxFile is the maximum size of the file in bytes: the differences in base64, and the binding.
const maxFile = 2 * mesh.MaxBootstrap

// Binding says whose bootstrap a file is for.
type Binding struct {
	Node      string `json:"node"`
	Cluster   string `json:"cluster"`
	Identity  string `json:"identity"`
	Discovery string `json:"discovery"`
}

// Options configure a Store. All fields but Dir are required.
type Options struct {
	// Dir is the folder of the file, which is created if missing; empty if nothing is kept.
	Dir     string
	Binding Binding
	// Check returns an error for differences that must not be merged.
	Check func(text []byte) error
	Log   *slog.Logger
}

// Differences are what discovery changes in the bootstrap.
type Differences struct {
	// Version is discovery's name of the contents.
	Version string `json:"version"`
	// Text is an encoded message of mesh.BootstrapType; empty if nothing is changed. It must not be modified.
	Text []byte `json:"text,omitempty"`
}

// file is the content of the file.
type file struct {
	Format  int     `json:"format"`
	Binding Binding `json:"binding"`
	Differences
	// Refused says why Envoy did not start with them; empty if it did, or has not been.
	Refused string `json:"refused,omitempty"`
}

// format is the number of the file's format.
const format = 1

// Store has the differences of one workload. Its methods may be called by several goroutines.
type Store struct {
	o       Options
	changed chan struct{}

	mu       sync.Mutex
	newest   Differences
	refused  string // why Envoy did not start with the newest
	accepted Differences
	heard    bool // newest is from discovery, and not only from the file
}

// New makes a Store with what the file has.
func New(o Options) *Store {
	s := &Store{o: o, changed: make(chan struct{}, 1)}
	if o.Dir == "" {
		return s
	}
	switch f, err := s.read(); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		o.Log.Warn("the kept bootstrap is not used", "path", s.path(), "reason", err)
	default:
		s.newest, s.refused = f.Differences, f.Refused
	}
	return s
}

func (s *Store) path() string { return filepath.Join(s.o.Dir, fileName) }

// Changed has an element after SetBootstrap has changed what Current returns. It is for one receiver.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// SetBootstrap takes the newest differences from discovery. It returns an error if they must not be merged; what was there before stays.
func (s *Store) SetBootstrap(version string, text []byte) error {
	if err := s.o.Check(text); err != nil {
		s.o.Log.Warn("what discovery changes in the bootstrap is not used", "version", version, "reason", err)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = true
	if s.newest.Version == version && bytes.Equal(s.newest.Text, text) {
		return nil
	}
	s.newest, s.refused = Differences{Version: version, Text: text}, ""
	s.write()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return nil
}

// Current returns what is to be merged: the newest differences, or if Envoy has refused them, those that it has accepted before. heard
// says that discovery has answered, refused why the newest were refused, empty if they were not.
func (s *Store) Current() (d Differences, heard bool, refused string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused != "" {
		return s.accepted, s.heard, s.refused
	}
	return s.newest, s.heard, ""
}

// Accept says that Envoy has found differences valid.
func (s *Store) Accept(d Differences) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = d
}

// Refuse says that Envoy does not start with differences. They are not used again, by later agents neither if keep is set.
func (s *Store) Refuse(d Differences, why string, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted.Version == d.Version {
		s.accepted = Differences{}
	}
	if s.newest.Version != d.Version {
		return
	}
	if s.refused = why; keep {
		s.write()
	}
}

// write replaces the file. Callers hold mu.
func (s *Store) write() {
	if s.o.Dir == "" {
		return
	}
	if err := s.replace(file{Format: format, Binding: s.o.Binding, Differences: s.newest, Refused: s.refused}); err != nil {
		s.o.Log.Warn("what discovery changes in the bootstrap is not kept for the next agent", "path", s.path(), "reason", err)
	}
}

func (s *Store) replace(f file) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.o.Dir, 0o700); err != nil {
		return err
	}
	return statefile.Replace(s.path(), text)
}

// read reads the file, of which the content must be this user's own.
func (s *Store) read() (f file, err error) {
	text, err := statefile.ReadMine(s.path(), maxFile)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, fmt.Errorf("parse it: %w", err)
	}
	switch {
	case f.Format != format:
		return f, fmt.Errorf("its format is %d, want %d", f.Format, format)
	case f.Binding != s.o.Binding:
		return f, fmt.Errorf("it is of %.400q, not of %q", fmt.Sprint(f.Binding), fmt.Sprint(s.o.Binding))
	}
	return f, s.o.Check(f.Text)
}
