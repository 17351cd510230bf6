package secret

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxNamed bounds how many names are followed at once.
const maxNamed = 1024

// SystemBundles are the paths of the trust bundles of operating systems; the first that
// exists is used.
var SystemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL 7 and later
	"/etc/ssl/cert.pem",                                 // Alpine, macOS
}

// Named holds the secrets of files that clusters name, each while at least one stream
// follows it. A value is kept until its successor can be read completely. Any goroutine may
// call its methods, Run once. [agent S17]
type Named struct {
	system   []string
	follower *filewatch.Follower
	log      *slog.Logger
	wake     chan struct{} // a name is due
	failures atomic.Uint64

	mu      sync.Mutex
	names   map[string]*named
	changed chan struct{} // closed when a value changes
}

// named is one followed name.
type named struct {
	source source
	set    *filewatch.Set
	users  int
	value  *pki.Secret
	// Why the last attempt failed; empty after a success.
	problem string
}

// NewNamed makes a Named; system are the possible paths of the operating system's
// roots (SystemBundles). Run reads the files of followed names.
// Later contents are found only while the follower runs.
func NewNamed(system []string, follower *filewatch.Follower, log *slog.Logger) *Named {
	return &Named{
		system: system, follower: follower, log: log,
		wake: make(chan struct{}, 1), names: map[string]*named{}, changed: make(chan struct{}),
	}
}

// Follow keeps the named secret up to date until release is called. The error says why
// the name is invalid, or that too many names are followed.
func (n *Named) Follow(name string) (release func(), err error) {
	src, err := parseName(name, n.system)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.names[name]
	if e == nil {
		if len(n.names) == maxNamed {
			return nil, fmt.Errorf("secret %.200q: already following %d secrets of files, the maximum", name, maxNamed)
		}
		e = &named{source: src, set: n.follower.Follow(n.wake, src.files()...)}
		e.set.ByContent()
		n.names[name] = e
	}
	e.users++
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if e.users--; e.users == 0 {
			e.set.Close()
			delete(n.names, name)
		}
	}), nil
}

// Get returns the value of a followed name: Key and Chain, or Roots, and Version. It is
// nil while there is no value.
func (n *Named) Get(name string) *pki.Secret {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.names[name]; e != nil {
		return e.value
	}
	return nil
}

// Changed returns a channel that is closed when a value changes. Call it before Get.
func (n *Named) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// Problems returns the errors of the followed names whose files cannot be read now, sorted.
func (n *Named) Problems() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, e := range n.names {
		if e.problem != "" {
			out = append(out, e.problem)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Failures counts the reads that failed. Any goroutine may call it.
func (n *Named) Failures() uint64 { return n.failures.Load() }

// Run reads what is due until ctx ends, then returns nil.
func (n *Named) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
			n.update()
		}
	}
}

// update reads what is due, without the lock, so that a slow disk holds up no stream.
func (n *Named) update() {
	n.mu.Lock()
	all := maps.Clone(n.names)
	n.mu.Unlock()
	for name, e := range all {
		if !e.set.Due() {
			continue
		}
		var value *pki.Secret
		err := e.set.Read(func() (err error) {
			value, err = e.source.read()
			return err
		})
		if !errors.Is(err, filewatch.ErrMoving) { // otherwise the value may be incomplete
			n.publish(name, e, value, err)
		}
	}
}

// publish stores the result of reading e, and logs it if it differs from the last one.
func (n *Named) publish(name string, e *named, value *pki.Secret, err error) {
	n.mu.Lock()
	before := e.problem
	e.problem = ""
	if err != nil {
		e.problem = err.Error()
		n.failures.Add(1)
	}
	fresh := err == nil && (e.value == nil || e.value.Version != value.Version)
	if fresh {
		e.value = value
		close(n.changed)
		n.changed = make(chan struct{})
	}
	problem, serving := e.problem, e.value != nil
	n.mu.Unlock()
	switch {
	case fresh:
		n.log.Info("secret read from its files", "name", name, "version", value.Version)
	case problem != "" && problem != before:
		n.log.Warn("secret not read from its files", "reason", problem, "name", name, "serving", serving,
			"remedy", "put the file where the proxy can read it, or correct the DestinationRule that names it")
	}
}
