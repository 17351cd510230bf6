// Package wasm fetches the Wasm modules of Envoy's extensions and keeps them in files.
//
// A control plane configures an extension whose module is at a URL; Envoy would fetch it itself, without credentials and only
// over HTTP, and not from registries. So the agent fetches it, checks its SHA-256, and gives Envoy the file. A module that cannot
// be had is replaced by a filter that lets requests pass or denies them all, as the configuration says. [agent X10, E31]
//
// Modules are bounded in size, are never held in memory as a whole, and are removed when no configuration has named them for a
// while. Files appear complete or not at all.
package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Options configure a Cache.
type Options struct {
	// Dir is the folder of the modules. It is created with the first one.
	Dir string
	// Expiry is how long a module is kept that no configuration names; it is looked for each PurgeInterval.
	Expiry, PurgeInterval time.Duration
	// Timeout bounds a fetch whose configuration has no timeout, Retries is how often a failed one is repeated.
	Timeout time.Duration
	Retries int
	// MaxSize bounds a module, in bytes.
	MaxSize int64
	// InsecureRegistries are hosts that are also asked in plaintext, or with any certificate; * is every host.
	InsecureRegistries []string
	// Blocked are addresses that are never connected to.
	Blocked []netip.Prefix
	// TLS limits versions, ciphers and curves.
	TLS pki.TLSPolicy
	Log *slog.Logger
}

// Stats count what a Cache has done.
type Stats struct {
	// Hits and Misses count modules that were in the cache, and that were not.
	Hits, Misses uint64
	// Fetched and Failed count fetches.
	Fetched, Failed uint64
	// Entries is how many modules are known.
	Entries int
	// Converted counts configurations that got a file in place of a module, Local those without a module to fetch, Substituted
	// those whose module could not be had, and Invalid those that are not valid.
	Converted, Local, Substituted, Invalid uint64
	// Converting is how long configurations took, but Local ones, and Durations how many took up to each of DurationBounds, and longer.
	Converting time.Duration
	Durations  [len(DurationBounds) + 1]uint64
}

// DurationBounds are the bounds of Stats.Durations.
var DurationBounds = [...]time.Duration{
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second,
}

// Cache fetches and keeps modules. It is safe for concurrent use.
type Cache struct {
	o      Options
	client *client

	mu      sync.Mutex // guards the rest
	entries map[string]*entry
	stats   Stats
}

// entry is a module. Its mutex is held while it is fetched, so that nobody else fetches it.
type entry struct {
	mu      sync.Mutex
	file    string // empty while there is none
	version string
	used    time.Time // guarded by Cache.mu
	users   int       // guarded by Cache.mu
}

// New returns a cache. It touches no file before the first module.
func New(o Options) *Cache {
	return &Cache{o: o, client: newClient(&o), entries: map[string]*entry{}}
}

// Run removes modules that are not used any more until ctx ends, and returns nil.
func (c *Cache) Run(ctx context.Context) error {
	tick := time.NewTicker(c.o.PurgeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			c.client.close()
			return nil
		case now := <-tick.C:
			c.purge(now)
		}
	}
}

// Stats returns the counts.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries = len(c.entries)
	return s
}

// Convert returns the configuration of an extension, an encoded TypedExtensionConfig, with a file in place of a module that is
// fetched; any other one is returned as it is. An error means that the configuration is invalid.
func (c *Cache) Convert(ctx context.Context, config []byte) ([]byte, error) {
	began := time.Now()
	e, err := parse(config)
	if err != nil {
		c.count(func(s *Stats) { s.Invalid++ })
		return config, err
	}
	if e == nil {
		c.count(func(s *Stats) { s.Local++ })
		return config, nil
	}
	file, err := c.get(ctx, e.module)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.count(func(s *Stats) { s.took(time.Since(began), err == nil) })
	if err != nil {
		c.o.Log.Error("the module of an extension cannot be had", "extension", e.name, "url", printable.Quote(e.module.URL, maxURL), "requests_pass", e.failOpen, "reason", err)
		return e.substitute(), nil
	}
	return e.local(file)
}

const maxURL = 2048

// get returns the file of a module.
func (c *Cache) get(ctx context.Context, m Module) (string, error) {
	m.SHA256 = strings.ToLower(strings.TrimPrefix(m.SHA256, "sha256:"))
	switch {
	case m.SecretMissing:
		return "", errors.New("the control plane does not have the secret of the registry")
	case m.SHA256 != "" && !hexSHA256().MatchString(m.SHA256):
		return "", fmt.Errorf("invalid sha256 %s: want 64 hexadecimal digits", printable.Quote(m.SHA256, 100))
	case len(m.URL) > maxURL:
		return "", fmt.Errorf("a URL of %d bytes: want at most %d", len(m.URL), maxURL)
	}
	// Another secret may not be allowed to have what the first one could.
	key := m.URL + " " + m.SHA256 + " " + hex.EncodeToString(digestOf(m.Secret))
	c.mu.Lock()
	e := c.entries[key]
	if e == nil {
		e = &entry{}
		c.entries[key] = e
	}
	e.users++
	c.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	file, err := c.fetch(ctx, e, m)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	e.used = time.Now()
	if err != nil && e.file == "" && e.users == 0 {
		delete(c.entries, key)
	}
	return file, err
}

// fetch returns the module of an entry, whose mutex is held, and fetches it if needed.
func (c *Cache) fetch(ctx context.Context, e *entry, m Module) (string, error) {
	if e.file != "" && (!m.Always && !isLatest(m.URL) || m.Version == e.version || m.SHA256 != "") {
		if _, err := os.Stat(e.file); err == nil {
			c.count(func(s *Stats) { s.Hits++ })
			return e.file, nil
		}
	}
	c.count(func(s *Stats) { s.Misses++ })
	dir := filepath.Join(c.o.Dir, hex.EncodeToString(digestOf([]byte(m.URL))))
	if m.SHA256 != "" && !isOCI(m.URL) {
		// An earlier agent may have fetched it.
		file := filepath.Join(dir, m.SHA256+".wasm")
		if sum, err := sumOf(file); err == nil && sum == m.SHA256 {
			e.file, e.version = file, m.Version
			return file, nil
		}
	}
	if m.Timeout <= 0 {
		m.Timeout = c.o.Timeout
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- Envoy may run as another user
		return "", err
	}
	file, err := c.client.fetch(ctx, m, dir)
	c.count(func(s *Stats) {
		if s.Fetched++; err != nil {
			s.Failed++
		}
	})
	if err != nil {
		return "", err
	}
	c.o.Log.Info("fetched the module of an extension", "url", printable.Quote(m.URL, maxURL), "file", file)
	e.file, e.version = file, m.Version
	return file, nil
}

// took counts a configuration with a module.
func (s *Stats) took(d time.Duration, had bool) {
	if had {
		s.Converted++
	} else {
		s.Substituted++
	}
	s.Converting += d
	i := 0
	for i < len(DurationBounds) && d > DurationBounds[i] {
		i++
	}
	s.Durations[i]++
}

func (c *Cache) count(f func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.stats)
}

// purge removes the modules that no configuration has named for a while.
func (c *Cache) purge(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := map[string]bool{}
	var old []string
	for key, e := range c.entries {
		if e.users == 0 && now.Sub(e.used) > c.o.Expiry {
			old = append(old, e.file) // nobody changes it without being a user
			delete(c.entries, key)
		} else if e.users == 0 {
			used[e.file] = true
		}
	}
	for _, file := range old {
		if file == "" || used[file] {
			continue
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.o.Log.Warn("a module that is not used any more is not removed", "error", err)
			continue
		}
		_ = os.Remove(filepath.Dir(file)) // fails if there are other modules of the URL
		c.o.Log.Info("removed the module of an extension, which is not used any more", "file", file)
	}
}

func digestOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

func isOCI(url string) bool { return strings.HasPrefix(url, "oci://") }

// isLatest reports whether a URL is of an image without a fixed tag.
func isLatest(url string) bool {
	if !isOCI(url) || strings.Contains(url, "@") {
		return false
	}
	_, tag, ok := strings.Cut(url[strings.LastIndexByte(url, '/')+1:], ":")
	return !ok || tag == "latest"
}
