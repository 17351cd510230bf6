package discovery

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// savedFile is where the state folder keeps the last good configuration.
const savedFile = "configuration.saved"

// The minimum interval between two writes, and the delay after a write that failed.
const (
	saveEvery = time.Second
	saveRetry = 10 * time.Second
)

// A write takes as long as the configuration is large, whatever has changed. So the interval after one is at least saveShare
// times as long as the write took, but for that not longer than saveAtLeast.
const (
	saveShare   = 50
	saveAtLeast = 5 * time.Second
)

// saveInterval is the interval after a write that took so long.
func saveInterval(every, took time.Duration) time.Duration {
	return max(every, min(saveShare*took, saveAtLeast))
}

// keeper saves the last good configuration in the state folder, and has what an earlier process saved.
// It writes on its own goroutine, so that commits do not wait for the disk, and combines changes within
// an interval into one write. A write that fails is logged once, counted and retried; proxies are served
// meanwhile.
type keeper struct {
	path, place string
	log         *slog.Logger
	// before is what was saved when this control plane started.
	before       saved.Set
	every, retry time.Duration
	wake         chan struct{}
	encoder      saved.Encoder // of the goroutine that writes
	stats        keeperStats
}

// keeperStats are counters for metrics, which other goroutines read.
type keeperStats struct {
	failing  atomic.Bool
	failures atomic.Uint64
	size     atomic.Int64 // of the last successful write, in bytes
	written  atomic.Int64 // its time in seconds since 1970; 0 if there was none
}

// openKeeper reads the configuration saved in stateDir. A file that cannot be used is renamed and
// logged. place is the directory of the source; the origins of saved objects are changed to it if it was
// another one.
func openKeeper(stateDir, place string, log *slog.Logger) *keeper {
	k := &keeper{
		path: filepath.Join(stateDir, savedFile), place: filepath.Clean(place), log: log,
		every: saveEvery, retry: saveRetry, wake: make(chan struct{}, 1),
	}
	text, err := statefile.ReadOwn(k.path, saved.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return k
	}
	if err == nil {
		k.before, err = saved.Decode(text)
	}
	if err != nil {
		aside, failed := statefile.SetAside(k.path)
		if failed != nil {
			err, aside = errors.Join(err, failed), k.path
		}
		log.Error("saved configuration cannot be used and is renamed; there is no last good version of objects that cannot be read now", "file", aside, "error", err)
		return k
	}
	if unknown := k.before.Unknown; len(unknown) > 0 {
		log.Warn("saved configuration is of a later release: what this one does not know is left out, and will not be saved again", "file", k.path, "unknown", strings.Join(unknown, ", "))
	}
	for i := range k.before.Objects {
		o := &k.before.Objects[i]
		if o.Saved.IsZero() {
			o.Saved = k.before.Written
		}
		if below, ok := strings.CutPrefix(o.Origin.File, k.before.Place+"/"); ok {
			o.Origin.File = filepath.Join(k.place, below)
		}
	}
	return k
}

// remembered returns the saved objects of the source, or those of the mesh file.
func (k *keeper) remembered(ofMeshFile bool) []object.Object {
	var out []object.Object
	for _, o := range k.before.Objects {
		if (o.Key == config.MeshFileKey) == ofMeshFile {
			out = append(out, o)
		}
	}
	return out
}

// changed notifies the keeper that there may be something to write. It does not block.
func (k *keeper) changed() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// goodObjects has the objects in force and a number that changes with them; ok is false while they must
// not be saved.
type goodObjects struct {
	objects []*object.Object
	// allocated are the virtual addresses, which nobody modifies.
	allocated map[string]allocate.Pair
	keys      []saved.KeySet
	version   uint64
	ok        bool
}

// run writes the objects in force when they have changed, at most once per k.every, and once more when
// ctx ends.
func (k *keeper) run(ctx context.Context, get func() goodObjects) error {
	var done uint64 // the version that was written
	timer := time.NewTimer(0)
	defer timer.Stop()
	for resting := true; ; {
		wake, rest := k.wake, timer.C
		if resting {
			wake = nil // until the interval after a write has passed
		} else {
			rest = nil
		}
		select {
		case <-ctx.Done():
			if s := get(); s.ok && s.version != done {
				k.save(s, &done)
			}
			return nil
		case <-rest:
			if resting = false; k.stats.failing.Load() {
				k.changed()
			}
		case <-wake:
			s := get()
			if !s.ok || s.version == done {
				continue
			}
			began := time.Now()
			if resting = true; k.save(s, &done) {
				timer.Reset(saveInterval(k.every, time.Since(began)))
			} else {
				timer.Reset(k.retry)
			}
		}
	}
}

// save writes the objects in force and reports whether it succeeded.
func (k *keeper) save(s goodObjects, done *uint64) bool {
	now := time.Now()
	k.encoder.Allocated, k.encoder.Keys = s.allocated, s.keys
	text, err := k.encoder.Encode(now, k.place, s.objects)
	if err == nil {
		err = statefile.Replace(k.path, text)
	}
	if err != nil {
		k.stats.failures.Add(1)
		if !k.stats.failing.Swap(true) {
			k.log.Error("configuration cannot be saved; it is served, but changes would be unknown after a restart", "file", k.path, "error", err)
		}
		return false
	}
	*done = s.version
	k.stats.size.Store(int64(len(text)))
	k.stats.written.Store(now.Unix())
	if k.stats.failing.Swap(false) {
		k.log.Info("configuration is saved again", "file", k.path)
	}
	return true
}
