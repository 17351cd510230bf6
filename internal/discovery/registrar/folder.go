package registrar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/register"
	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// folderFile is the file of a Folder in the state folder, and the file of the origins of its objects.
const folderFile = "registered-workloads"

// saveRetry is the pause after the file could not be written.
const saveRetry = 5 * time.Second

// Folder is a Store for a control plane that reads a directory: it keeps the entries in a file of the state folder, and reports them as a
// source does. Create one with OpenFolder.
type Folder struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex // guards what follows
	entries map[object.Key]*object.Object
	changed map[object.Key]bool // not emitted yet
	unsaved bool
	version int64
	wake    chan struct{}
	failing bool // of Run
}

// OpenFolder reads the file. One that cannot be read is set aside and told: proxies register themselves again.
func OpenFolder(stateDir string, log *slog.Logger) (*Folder, error) {
	f := &Folder{path: filepath.Join(stateDir, folderFile), log: log, entries: map[object.Key]*object.Object{}, changed: map[object.Key]bool{}, wake: make(chan struct{}, 1)}
	text, err := statefile.ReadOwn(f.path, saved.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read registered workloads: %w", err)
	}
	set, err := saved.Decode(text)
	if err != nil {
		aside, failed := statefile.SetAside(f.path)
		if failed != nil {
			return nil, fmt.Errorf("read registered workloads: %w", errors.Join(err, failed))
		}
		log.Error("registered workloads cannot be read: the file is set aside, and proxies register themselves again", "file", f.path, "aside", aside, "error", err)
		return f, nil
	}
	for i := range set.Objects {
		if o := &set.Objects[i]; o.Kind == object.WorkloadEntry {
			f.entries[o.Key] = o
			f.changed[o.Key] = true
		}
	}
	return f, nil
}

// Path returns the file, which is that of the origins of its objects.
func (f *Folder) Path() string { return f.path }

// Write implements Store. It does not wait for the file.
func (f *Folder) Write(_ context.Context, w register.Write) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.entries[w.Key]
	var next *object.Object
	switch {
	case w.Op == register.Create && now != nil, w.Op != register.Create && w.Op != register.Delete && now == nil:
		return fmt.Errorf("%s %s: %w", w.Op, w.Key, ErrChanged)
	case w.Op == register.Delete && now == nil:
		return nil
	case now != nil && !w.Same(now.Meta.Annotations):
		return fmt.Errorf("%s %s: %w", w.Op, w.Key, ErrChanged)
	case w.Op == register.Create:
		next = f.made(w.Object)
		next.Meta.Created, next.Meta.Generation = time.Now().UTC().Truncate(time.Second), 1
	case w.Op == register.Update:
		next = f.made(w.Object)
		next.Meta.Created, next.Meta.Generation, next.Healthy = now.Meta.Created, now.Meta.Generation, now.Healthy
		if !object.SameSpec(now, next) {
			next.Meta.Generation++
		}
	case w.Op == register.Report:
		next = f.made(now)
		next.Healthy = w.Health
	}
	if next == nil {
		delete(f.entries, w.Key)
	} else {
		f.entries[w.Key] = next
	}
	f.changed[w.Key], f.unsaved = true, true
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return nil
}

// made returns a new version of an object.
func (f *Folder) made(from *object.Object) *object.Object {
	o := *from
	f.version++
	o.Meta.ResourceVersion, o.Origin = strconv.FormatInt(f.version, 10), object.Origin{File: f.path}
	return &o
}

// Run reports the entries, as a source does, and writes the file, until ctx ends. Then it returns nil.
func (f *Folder) Run(ctx context.Context, emit func(object.Batch)) error {
	var again *time.Timer
	for first := true; ; first = false {
		f.mu.Lock()
		batch := object.Batch{Synced: first}
		for _, k := range slices.SortedFunc(maps.Keys(f.changed), compare) {
			batch.Changes = append(batch.Changes, object.Change{Key: k, Object: f.entries[k]})
		}
		clear(f.changed)
		f.mu.Unlock()
		if len(batch.Changes) > 0 || batch.Synced {
			emit(batch)
		}
		var due <-chan time.Time
		if !f.save() {
			again = time.NewTimer(saveRetry)
			due = again.C
		}
		select {
		case <-f.wake:
		case <-due:
		case <-ctx.Done():
			f.save()
			return nil
		}
		if again != nil {
			again.Stop()
		}
	}
}

func compare(a, b object.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// save writes the file if it is behind. It reports whether it is not any more.
func (f *Folder) save() bool {
	f.mu.Lock()
	if !f.unsaved {
		f.mu.Unlock()
		return true
	}
	f.unsaved = false
	all := slices.Collect(maps.Values(f.entries))
	f.mu.Unlock()
	var e saved.Encoder
	text, err := e.Encode(time.Now(), f.path, all)
	if err == nil {
		err = statefile.Replace(f.path, text)
	}
	if err != nil {
		f.mu.Lock()
		f.unsaved = true
		f.mu.Unlock()
		if !f.failing {
			f.log.Error("registered workloads cannot be saved; they are served, but a restart would forget them until they register themselves again", "file", f.path, "error", err)
		}
	} else if f.failing {
		f.log.Info("registered workloads are saved again", "file", f.path)
	}
	f.failing = err != nil
	return err == nil
}
