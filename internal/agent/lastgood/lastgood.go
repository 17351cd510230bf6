// Package lastgood keeps the configuration that Envoy has acknowledged in a file, and serves it to a new Envoy while discovery is away.
//
// A Store records the streams between Envoy and discovery: what Envoy acknowledges is appended to the file, by a goroutine
// of its own, so that a slow or full disk delays and harms nothing. An Envoy that starts with nothing begins a new file,
// which replaces the old one once it has clusters and listeners and what they need; so the file is at each moment what one
// Envoy had. Kept are resources of Envoy's types with their versions, never secrets. The file has mode 0600 and a maximum size, and
// belongs to one workload: node, cluster, identity and discovery are those of the settings, or it is left aside.
//
// Answers plays discovery with the file's content for one stream of an Envoy. It never sends again what Envoy refused, and drops it
// from the file. The versions are those of discovery, so that an Envoy which returns to it is sent what differs.
package lastgood

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
)

// Binding says whose configuration a file has.
type Binding struct {
	Node      string `json:"node"`
	Cluster   string `json:"cluster"`
	Identity  string `json:"identity"` // SPIFFE, with the trust domain
	Discovery string `json:"discovery"`
	// Version is that of the program that wrote it. Another one's is read.
	Version string `json:"version"`
}

// matches returns why a file with this binding is not to be used by an agent with another.
func (b Binding) matches(own Binding) error {
	for _, f := range []struct{ what, file, own string }{
		{"node", b.Node, own.Node}, {"cluster", b.Cluster, own.Cluster}, {"identity", b.Identity, own.Identity}, {"discovery", b.Discovery, own.Discovery},
	} {
		if f.file != f.own {
			return fmt.Errorf("it is of the %s %.200q, not of %q", f.what, f.file, f.own)
		}
	}
	return nil
}

// Options configure a Store. All fields are required.
type Options struct {
	// Dir is the folder of the file, which is created if missing.
	Dir     string
	Binding Binding
	// MaxAge is the age at which a file is no longer served. The age is the time since discovery last confirmed it: since
	// Envoy was last connected.
	MaxAge time.Duration
	// MaxSize is the maximum size of the configuration in bytes. The file may be twice as large.
	MaxSize int64
	Log     *slog.Logger
}

// Bounds and times.
const (
	fileName = "xds-copy"
	// touchInterval is how often a file is marked as confirmed.
	touchInterval = time.Minute
	// settleTime is how long a new file must be without change before it replaces the old one, settleLimit how long it may
	// wait for what Envoy asked for and has not got.
	settleTime  = time.Second
	settleLimit = 20 * time.Second
	// retryInterval is the least time between a failure to write and the next attempt, for which needed bytes must be free.
	retryInterval = 10 * time.Minute
	needed        = 1 << 20
	// clockSkew is by how much a file may be newer than the clock.
	clockSkew = time.Hour
	// maxQueued bounds what waits to be written, in bytes.
	maxQueued = 64 << 20
)

// Store is one workload's file. Its methods may be called by several goroutines.
type Store struct {
	o    Options
	path string
	wake chan struct{}
	// retry is retryInterval, settle is settleTime, tick is touchInterval.
	retry, settle, tick time.Duration

	// streams is of Run's goroutine.
	streams map[*Recording]bool

	// mu guards what follows, and the indexes of all books. Only Run's goroutine changes those and building.
	mu       sync.RWMutex
	current  *book
	building *building
	looked   bool      // for a file of a predecessor
	fresh    time.Time // when current was last confirmed
	problem  error
	failed   time.Time
	serving  int
	served   uint64
	dropped  uint64

	queue sync.Mutex
	// events wait for Run. lost says that there were too many.
	events []event
	queued int
	lost   bool
}

// building is a file that is not complete yet.
type building struct {
	*book
	began   time.Time
	changed time.Time
	// open has the names, by type, that Envoy asked for and has not got.
	open map[string]map[uint64]bool
}

// State is the state of a Store.
type State struct {
	Path string
	// Confirmed is when discovery last confirmed the file, zero if there is none.
	Confirmed time.Time
	// Bytes and Resources are what it has.
	Bytes     int64
	Resources int
	// Problem is why the file could not be written or read, empty if it could.
	Problem string
	// Streams is how many streams are answered from the file now, Served how many were, Dropped how many resources Envoy refused.
	Streams         int
	Served, Dropped uint64
}

// New returns a Store. Call Run.
func New(o Options) *Store {
	return &Store{o: o, path: filepath.Join(o.Dir, fileName), wake: make(chan struct{}, 1), retry: retryInterval, settle: settleTime, tick: touchInterval, streams: map[*Recording]bool{}}
}

// State returns a snapshot.
func (s *Store) State() State {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := State{Path: s.path, Streams: s.serving, Served: s.served, Dropped: s.dropped}
	if s.current != nil {
		out.Confirmed, out.Bytes, out.Resources = s.fresh, s.current.end, s.current.resources()
	}
	if s.problem != nil {
		out.Problem = s.problem.Error()
	}
	return out
}

// Usable reports whether there is a file that could be served now. It reads the file of a predecessor when it is first called.
func (s *Store) Usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usable() == nil
}

// errNone says that there is no file.
var errNone = errors.New("there is none")

// usable returns why there is no file that can be served. Callers hold mu.
func (s *Store) usable() error {
	if !s.looked && s.current == nil {
		s.looked = true
		b, changed, err := openBook(s.path, s.o.Binding, s.o.MaxSize)
		switch {
		case err == nil && !b.complete():
			err = errors.Join(errors.New("it lacks clusters or listeners"), b.file.Close())
			fallthrough
		case err != nil && !errors.Is(err, os.ErrNotExist):
			s.problem = fmt.Errorf("%s is left aside: %w", s.path, err)
			s.o.Log.Warn("the copy of Envoy's configuration is left aside", "file", s.path, "reason", err)
		case err == nil:
			s.current, s.fresh = b, changed
		}
	}
	if s.current == nil {
		return errNone
	}
	switch age := time.Since(s.fresh); {
	case age > s.o.MaxAge:
		return fmt.Errorf("it is %s old, want at most %s", age.Round(time.Second), s.o.MaxAge)
	case age < -clockSkew:
		return fmt.Errorf("it was written at %s, which is in the future", s.fresh.UTC().Format(time.RFC3339))
	}
	return nil
}

// Empty reports whether the first request of a stream is of an Envoy that has no configuration.
func Empty(first mem.BufferSlice, delta bool) bool {
	r, err := readRequest(first.Materialize(), delta)
	return err == nil && len(r.initial) == 0 && (delta || r.version == "")
}

// kept reports whether resources of a type are kept.
func kept(typ string) bool {
	return strings.HasPrefix(typ, "type.googleapis.com/envoy.") && !strings.HasSuffix(typ, ".tls.v3.Secret")
}
