package secret

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxNamed bounds how many names are followed at once.
const maxNamed = 1024

// SystemBundles is where operating systems keep the roots that they trust; the first that
// exists counts.
var SystemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL 7 and later
	"/etc/ssl/cert.pem",                                 // Alpine, macOS
}

// Named keeps the secrets of files that clusters name, each for as long as somebody
// follows it. A file is looked at once a second; what was read last stands until its
// successor is whole, for which one that shrank in place must have been still. Any goroutine may call anything but Run. [agent S17]
type Named struct {
	system []string
	log    *slog.Logger
	wake   chan struct{} // a name came

	mu      sync.Mutex
	held    map[string]*named
	changed chan struct{} // closed when a value changes
}

// named is one followed name.
type named struct {
	source source
	users  int
	value  *pki.Secret
	// Why the last attempt failed; empty after one that did not.
	problem string
	// The rest is Run's alone. seen is what the files were like when they were last read,
	// nil where they are to be read again; used, when the value was.
	seen, used map[string]filewatch.Sig
	shrunk     filewatch.Shrunk
}

// NewNamed makes a keeper of named secrets; system says where the operating system's
// roots may lie (SystemBundles). Nothing is read before Run, and nothing but what is
// followed.
func NewNamed(system []string, log *slog.Logger) *Named {
	return &Named{system: system, log: log, wake: make(chan struct{}, 1), held: map[string]*named{}, changed: make(chan struct{})}
}

// Follow has the named secret read and kept until release is called. The error says why
// nothing could ever be served under that name.
func (n *Named) Follow(name string) (release func(), err error) {
	src, err := parseName(name, n.system)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.held[name]
	if e == nil {
		if len(n.held) == maxNamed {
			return nil, fmt.Errorf("secret %.200q: %d secrets of files are followed, no more are", name, maxNamed)
		}
		e = &named{source: src}
		n.held[name] = e
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
	e.users++
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(n.held, name)
		}
	}), nil
}

// Get is the value of a name that is followed: Key and Chain, or Roots, and Version. It is
// nil while there is none.
func (n *Named) Get(name string) *pki.Secret {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.held[name]; e != nil {
		return e.value
	}
	return nil
}

// Changed is closed when a value changes. Take it before Get.
func (n *Named) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// Problems says, for each followed name whose files cannot be read now, why; sorted.
func (n *Named) Problems() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, e := range n.held {
		if e.problem != "" {
			out = append(out, e.problem)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Run follows the files until ctx ends, then returns nil. It sleeps while nothing is
// followed.
func (n *Named) Run(ctx context.Context) error {
	for {
		var next <-chan time.Time
		if n.look() {
			next = time.After(pollFiles)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		case <-next:
		}
	}
}

// look reads what has changed and says whether anything is followed. Files are read
// without the lock, so that a slow disk holds up no stream.
func (n *Named) look() bool {
	n.mu.Lock()
	all := make(map[string]*named, len(n.held))
	for name, e := range n.held {
		all[name] = e
	}
	n.mu.Unlock()
	for name, e := range all {
		now := look(e.source.files())
		if e.seen != nil && maps.Equal(e.seen, now) {
			continue
		}
		// A file that shrank in place may be half written, and a part of a bundle is a bundle.
		if e.shrunk.Wait(time.Now(), e.used, now) > 0 {
			continue
		}
		value, err := e.source.read()
		if err == nil && !maps.Equal(now, look(e.source.files())) {
			e.seen = nil // it is being written: what was read may be a half
			continue
		}
		n.take(name, e, value, err)
		if e.seen = now; err != nil {
			e.seen = nil // a right or a link may change where no file does
		} else {
			e.used = now
		}
	}
	return len(all) > 0
}

// take notes the outcome of reading e, and says so where it is news.
func (n *Named) take(name string, e *named, value *pki.Secret, err error) {
	n.mu.Lock()
	before := e.problem
	e.problem = ""
	if err != nil {
		e.problem = err.Error()
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
