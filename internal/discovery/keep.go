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

	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// savedFile is where the state folder keeps the last good configuration.
const savedFile = "configuration.saved"

// How often the configuration is saved at most, and how long after a write that failed
// the next one is tried.
const (
	saveEvery = time.Second
	saveRetry = 10 * time.Second
)

// keeper keeps the last good configuration in the state folder: what the one before it
// had kept, and what is in force now. It writes from a goroutine of its own, so that no
// commit waits for a disk; changes that come close together are one write. A write that
// fails is logged once, counted, and retried; serving goes on meanwhile.
type keeper struct {
	path, place string
	log         *slog.Logger
	// before is what was kept when this control plane started.
	before       saved.Set
	every, retry time.Duration
	wake         chan struct{}
	encoder      saved.Encoder // of the goroutine that writes
	stats        keeperStats
}

// keeperStats are read by those who serve metrics.
type keeperStats struct {
	failing  atomic.Bool
	failures atomic.Uint64
	size     atomic.Int64 // bytes of the last good write
	written  atomic.Int64 // when that was, in seconds since 1970; 0 where there was none
}

// openKeeper reads what is kept in stateDir. What cannot be used is set aside and logged.
// place is what the files of the source lie below; where the former place was another
// one, the origins of what is remembered follow.
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
		log.Error("the saved configuration cannot be used and is left aside, so nothing is known of what cannot be read now", "file", aside, "error", err)
		return k
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

// remembered is what was kept of the source's objects, or of the mesh file's.
func (k *keeper) remembered(ofMeshFile bool) []object.Object {
	var out []object.Object
	for _, o := range k.before.Objects {
		if (o.Key == meshFileKey) == ofMeshFile {
			out = append(out, o)
		}
	}
	return out
}

// changed says that there may be something to write. It never waits.
func (k *keeper) changed() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// goodObjects is what is in force, with a number that is another whenever that changes; ok
// is false while nothing may be saved.
type goodObjects struct {
	objects []*object.Object
	version uint64
	ok      bool
}

// run writes what is in force whenever it changed, at most once per every, and at the
// end of ctx once more.
func (k *keeper) run(ctx context.Context, get func() goodObjects) error {
	var done uint64 // the version that was written
	timer := time.NewTimer(0)
	defer timer.Stop()
	for resting := true; ; {
		wake, rest := k.wake, timer.C
		if resting {
			wake = nil // something was written just now
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
			if resting = true; k.save(s, &done) {
				timer.Reset(k.every)
			} else {
				timer.Reset(k.retry)
			}
		}
	}
}

// save writes what is in force; false where it could not.
func (k *keeper) save(s goodObjects, done *uint64) bool {
	now := time.Now()
	text, err := k.encoder.Encode(now, k.place, s.objects)
	if err == nil {
		err = statefile.Replace(k.path, text)
	}
	if err != nil {
		k.stats.failures.Add(1)
		if !k.stats.failing.Swap(true) {
			k.log.Error("configuration cannot be saved; it is served all the same, but a restart would not remember what changed since", "file", k.path, "error", err)
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
