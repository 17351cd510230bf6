// Package reload requests a restart of Envoy when one of its inputs has changed.
//
// A Reloader follows the files of the running Spec, the files that Envoy's bootstrap names, Envoy's binary
// and the CPU limit. When one changes, or on request, it makes the next Spec and compares
// it with the running one: another log level is set at run time, anything else that Envoy was
// started with is a new launch, and a change that only takes effect with the next agent is logged and listed
// in Cold. If an input cannot be read, that is logged and nothing changes. How a
// new Envoy takes over is decided by package supervise. Without an Envoy a launch is a new bootstrap of gRPC libraries.
package reload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// cpuPolls is the number of polls of files for each check of the CPU limit, which reads several files of the
// kernel.
const cpuPolls = 5

// maxBootstrap is the largest bootstrap of a user that is read.
const maxBootstrap = 16 << 20

// Options configure a Reloader. All are required.
type Options struct {
	// Running is the Spec that Envoy is started with first, under the hash First.
	Running *spec.Spec
	First   string
	// Read makes the next Spec from the running one and the current contents of the inputs.
	Read func(running *spec.Spec) (*spec.Spec, error)
	// Start makes next the desired Spec of Envoy. If hash is that of the last call, only
	// arguments have changed that a running Envoy does not need.
	Start func(next *spec.Spec, hash string) error
	// SetLogLevel changes the log levels of the running Envoy.
	SetLogLevel func(ctx context.Context, level, components string) error
	// CPULimit is the number of CPUs that Envoy may use, 0 for no limit.
	CPULimit func() int
	Follower *filewatch.Follower
	Log      *slog.Logger
}

// Reloader watches the inputs of one agent. Make it with New and call Run once.
type Reloader struct {
	o     Options
	cold  atomic.Pointer[[]string]
	asked atomic.Bool
	set   *filewatch.Set
	wake  chan struct{}
	limit atomic.Int64 // the CPU limit that was read last
	polls int          // by the follower

	// The rest belongs to Run.
	running  *spec.Spec
	hash     string
	contents string // digest of the files that Envoy reads
	binary   binary
	restarts int // on request
}

// New makes a Reloader. It reads the files: Envoy must be started with their contents of this time.
func New(o Options) *Reloader {
	r := &Reloader{o: o, running: o.Running, hash: o.First, wake: make(chan struct{}, 1)}
	r.cold.Store(&[]string{})
	r.limit.Store(int64(o.CPULimit()))
	if !r.running.Envoy.Disabled {
		r.binary.open(r.running.Envoy.Binary)
	}
	paths, _ := r.inputs(r.running)
	r.set = o.Follower.Follow(r.wake, paths...)
	r.set.Also(r.limitDiffers)
	// If a file is being written, the set stays due, and Run compares again.
	_ = r.set.Read(func() error {
		_, r.contents = r.inputs(r.running)
		return nil
	})
	return r
}

// Restart requests a new Envoy with the current contents of the inputs, even if nothing has changed. It returns at once; any goroutine may call it.
func (r *Reloader) Restart() {
	r.asked.Store(true)
	r.set.Ask()
}

// Look compares the inputs with those of the running Spec. It returns at once; any goroutine may call it.
func (r *Reloader) Look() { r.set.Ask() }

// Begin says that Envoy is started first with another Spec than that of Options, under another hash. Call it before Run.
func (r *Reloader) Begin(running *spec.Spec, hash string) { r.running, r.hash = running, hash }

// Close releases the resources of New. Call it after Run has returned, or instead of Run.
func (r *Reloader) Close() error {
	r.set.Close()
	return r.binary.close()
}

// Cold returns the fields of the proxy configuration whose new values take effect with the next agent, sorted. Any goroutine may call it.
func (r *Reloader) Cold() []string { return *r.cold.Load() }

// Run follows the inputs until ctx ends.
func (r *Reloader) Run(ctx context.Context) error {
	for {
		if r.set.Due() {
			r.reload(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
	}
}

// limitDiffers is called by the follower.
func (r *Reloader) limitDiffers() bool {
	r.polls++
	return r.polls%cpuPolls == 0 && int64(r.o.CPULimit()) != r.limit.Load()
}

// reload reads all inputs and applies the differences.
func (r *Reloader) reload(ctx context.Context) {
	asked := r.asked.Swap(false)
	var (
		next     *spec.Spec
		paths    []string
		contents string
		bad      error // of an input; it is read again after its next change
	)
	err := r.set.Read(func() error {
		r.limit.Store(int64(r.o.CPULimit()))
		if next, bad = r.o.Read(r.running); bad == nil {
			paths, contents = r.inputs(next)
		}
		return nil
	})
	if err != nil { // filewatch.ErrMoving: a file is being written, and the set will be due again
		if asked {
			r.asked.Store(true)
		}
		return
	}
	if bad == nil {
		r.set.SetPaths(paths...)
		bad = r.apply(ctx, next, contents, asked)
	}
	if bad != nil {
		r.o.Log.Warn("the change is not applied", "error", bad)
	}
}

// inputs returns the paths to follow, and a digest of the contents of the files that Envoy reads itself.
func (r *Reloader) inputs(s *spec.Spec) (paths []string, contents string) {
	if s.Envoy.Disabled {
		return slices.Clone(s.Files), ""
	}
	var custom []byte
	own := []string{}
	if path := s.Envoy.CustomBootstrap; path != "" {
		custom, _ = filewatch.ReadFile(path, maxBootstrap) // the digest below differs if it cannot be read
		own = append(own, path)
	}
	own = append(own, dataFiles(custom, []byte(s.Envoy.Arguments.BootstrapYAML))...)
	sums := []string{r.binary.digest(s.Envoy.Binary)}
	for _, path := range own {
		sum, err := fileDigest(path)
		if err != nil {
			sum = "none"
		}
		sums = append(sums, path, sum)
	}
	paths = append(slices.Clone(s.Files), own...)
	if path, err := exec.LookPath(s.Envoy.Binary); err == nil {
		paths = append(paths, path)
	}
	return paths, digest(sums...)
}

// apply applies the difference to the running Spec.
func (r *Reloader) apply(ctx context.Context, next *spec.Spec, contents string, asked bool) error {
	change, err := Compare(r.running, next)
	if err != nil {
		return err
	}
	if len(change.Cold) > 0 && !slices.Equal(change.Cold, r.Cold()) {
		r.o.Log.Warn("a change takes effect when the Pod is restarted", "fields", strings.Join(change.Cold, ", "))
	}
	r.cold.Store(&change.Cold)
	for _, w := range next.Warnings {
		if !slices.Contains(r.running.Warnings, w) {
			r.o.Log.Warn(w)
		}
	}
	if change.LogLevel {
		r.setLogLevel(ctx, next)
	}
	another := asked || change.Envoy || contents != r.contents
	if asked {
		r.restarts++
	}
	if another {
		sum, err := fingerprint(next)
		if err != nil {
			return err
		}
		r.hash = digest(sum, contents)[:16] + "-" + strconv.Itoa(r.restarts)
		if next.Envoy.Disabled {
			r.o.Log.Info("the bootstrap of gRPC libraries is written anew: they read it when the application starts")
		} else {
			r.o.Log.Info("a new Envoy is needed", "hash", r.hash, "requested", asked)
		}
	}
	if another || change.LogLevel {
		if err := r.o.Start(next, r.hash); err != nil {
			return err
		}
	}
	r.running, r.contents = next, contents
	return nil
}

func (r *Reloader) setLogLevel(ctx context.Context, next *spec.Spec) {
	level, components := next.Envoy.Arguments.LogLevel, next.Envoy.Arguments.ComponentLogLevel
	if err := r.o.SetLogLevel(ctx, level, components); err != nil {
		r.o.Log.Warn("change Envoy's log level", "error", err)
		return
	}
	r.o.Log.Info("changed Envoy's log level", "level", level, "components", components)
}

// binary detects that Envoy's binary was replaced. The first one is kept open instead of being
// hashed, which would take longer than the rest of the start.
type binary struct {
	first    *os.File // nil if it could not be opened, and after it was read
	firstSum string   // its digest, "" before it was read
	path     string
	sig      filewatch.Sig
	sum      string // of the last, "" for the first
}

func (b *binary) open(name string) {
	path, err := exec.LookPath(name)
	if err != nil {
		return
	}
	b.path = path
	b.sig, _ = filewatch.Stat(path)
	b.first, _ = filewatch.OpenRegular(path)
}

// digest is "" for the first binary, else that of the file's contents.
func (b *binary) digest(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return "none"
	}
	sig, _ := filewatch.Stat(path)
	if path == b.path && sig == b.sig {
		return b.sum
	}
	sum, err := fileDigest(path)
	if err != nil {
		return "none"
	}
	if b.first != nil {
		b.firstSum, _ = readerDigest(b.first) // "" differs from any digest
		_ = b.close()
	}
	if sum == b.firstSum {
		sum = ""
	}
	b.path, b.sig, b.sum = path, sig, sum
	return sum
}

func (b *binary) close() error {
	if b.first == nil {
		return nil
	}
	defer func() { b.first = nil }()
	return b.first.Close()
}

func fileDigest(path string) (string, error) {
	f, err := filewatch.OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return readerDigest(f)
}

func readerDigest(in io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
