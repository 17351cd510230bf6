// Package dir is a source of configuration: a tree of YAML and JSON files, watched.
//
// Files named *.yaml, *.yml and *.json are read recursively; names that begin with a dot
// are not. An edit, a rename, the swap of a link and a deletion are seen within 100 ms
// where the kernel tells of them, else within the poll. A file is read once it has kept
// still for 30 ms; an object counts as removed only when a second look misses it too; a
// document that does not parse keeps its last good value; and a directory or file that
// cannot be read keeps what it held. A file that somebody truncates and writes anew may
// be half written at any moment: where one that is written to in place lost objects, or
// its last document came out shorter, it is used once it has been still for 1.5 s (fold
// says in which cases). What is found together is emitted together. The first batch holds
// everything that was there at start, and Synced; it waits for files that are being
// written to in place then, 10 s at most. A source that is told what another had emitted
// of the same tree goes on from there: files that cannot be read hold what they held then,
// and what is gone meanwhile is missing from the first batch.
package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Options say what to read. Zero values mean the defaults.
type Options struct {
	// Dir is the top of the tree. Objects' origins are paths that begin with it.
	Dir string
	// Poll is how often to look where no notice came; 2 s by default.
	Poll time.Duration
	// Settle is how long a file must keep still before it is read; 30 ms by default.
	Settle time.Duration
	// Confirm is how long after the first look at a deleted object the second one is
	// taken; 40 ms by default.
	Confirm time.Duration
	// Still is how long a file that may be half written must keep still; 1.5 s by default.
	Still time.Duration
	// Remembered is what a source of the same tree had emitted when it ended: the new one
	// begins where that one was, with each object as the last good value that its file
	// (Origin) gave. With it the tree need not be there at start.
	Remembered []object.Object
	// Log tells of files that are left out and of notices that the kernel refuses.
	Log *slog.Logger
}

// Source reads one tree. Run it once.
type Source struct {
	o       Options
	pace    *filewatch.Pace
	fold    *fold
	began   time.Time
	looked  bool // at the tree, once
	synced  bool
	initial []reading      // what was read before everything had been
	skipped map[string]int // objects of other kinds that the log has told of, by file
	seen    map[string]content
	held    map[string]bool // files that the log has told are waited for
}

// content is what was last read of a file that is being written to, and since when.
type content struct {
	sum   uint64
	since time.Time
}

var seed = maphash.MakeSeed()

// New makes a source of o.Dir, which must be a directory that can be listed, unless
// something is remembered.
func New(o Options) (*Source, error) {
	o.Dir = filepath.Clean(o.Dir) // paths below it are clean, and are compared with it
	if _, err := os.ReadDir(o.Dir); err != nil && len(o.Remembered) == 0 {
		return nil, fmt.Errorf("read configuration directory %s: %w", o.Dir, reason(err))
	}
	if o.Poll <= 0 {
		o.Poll = filewatch.DefaultPoll
	}
	if o.Settle <= 0 {
		o.Settle = filewatch.DefaultSettle
	}
	if o.Confirm <= 0 {
		o.Confirm = filewatch.DefaultConfirm
	}
	if o.Still <= 0 {
		o.Still = filewatch.DefaultStill
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := newFold()
	f.remember(o.Remembered)
	return &Source{
		o: o, pace: filewatch.NewPace(o.Settle, o.Confirm, o.Still), fold: f, skipped: map[string]int{}, seen: map[string]content{}, held: map[string]bool{},
	}, nil
}

// Run emits batches, from one goroutine, until ctx ends; then it returns nil. While emit
// does not return nothing is read, and what happens meanwhile is found by the next look.
func (s *Source) Run(ctx context.Context, emit func(object.Batch)) error {
	n := filewatch.NewNotifier(s.o.Log)
	defer n.Close()
	s.began = time.Now()
	for {
		l := list(s.o.Dir)
		grew := n.Watch(l.watch)
		now := time.Now()
		s.look(l, now, emit)
		wait := s.o.Poll
		if next := s.pace.Next(now); !next.IsZero() {
			wait = min(wait, max(next.Sub(now), time.Millisecond))
		}
		if grew {
			wait = 0 // what changed before the watch was there made no notice
		}
		if !n.Wait(ctx, wait) {
			return nil
		}
	}
}

// ConfigMaps reads the tree once, whatever moves in it, and returns the ConfigMaps that
// count, those remembered of files that cannot be read included. Call it before Run.
func (s *Source) ConfigMaps() []object.Object {
	l, f := list(s.o.Dir), newFold()
	f.remember(slices.DeleteFunc(slices.Clone(s.o.Remembered), func(o object.Object) bool { return o.Key.Kind != object.ConfigMap }))
	var readings []reading
	for path := range f.files {
		if _, found := l.files[path]; !found && !l.hides(path) {
			readings = append(readings, reading{path: path, gone: true})
		}
	}
	for path := range l.files {
		text, _, err := filewatch.Read(path, yamltree.MaxBytes)
		// Decoding is what takes time: of thousands of files few hold one.
		if err == nil && (f.files[path] != nil || bytes.Contains(text, []byte(object.ConfigMap))) {
			readings = append(readings, reading{path: path, result: decode.Documents(path, text)})
		}
	}
	for range 2 { // the second look is what an object is missed by
		f.step(readings, nil)
	}
	var out []object.Object
	for k, o := range f.out {
		if k.Kind == object.ConfigMap {
			out = append(out, *o)
		}
	}
	return out
}

// look reads the files whose time has come and emits what follows from them.
func (s *Source) look(l *listing, now time.Time, emit func(object.Batch)) {
	for path := range s.fold.files {
		if _, found := l.files[path]; !found && l.hides(path) {
			l.files[path] = filewatch.Unknown
		}
	}
	if !s.looked {
		s.looked = true
		s.miss(l, now)
	}
	var readings []reading
	for _, path := range s.pace.Look(now, l.files) {
		if r, ok := s.read(path, now); ok {
			readings = append(readings, r)
		}
	}
	if !s.synced {
		s.initial = append(s.initial, readings...)
		if !s.pace.Settled() {
			return // a file is still being written: what is in it must not seem absent
		}
		readings, s.initial = s.initial, nil
	}
	batch, again, hold := s.fold.step(readings, l.problems)
	for _, path := range again {
		s.pace.Again(path, now)
	}
	for _, r := range readings {
		if held := slices.Contains(hold, r.path); held != s.held[r.path] {
			s.tellHeld(r.path, held)
		}
	}
	for _, path := range hold {
		s.pace.Hold(path, now)
	}
	if !s.synced {
		if !s.pace.Next(now).IsZero() {
			return // a second look decides what of the remembered objects is gone
		}
		batch, s.synced = s.fold.everything(), true
	}
	if len(batch.Changes) > 0 || batch.Problems != nil || batch.Synced {
		emit(batch)
	}
}

// tellHeld says that a file is waited for, which a reader of a file that never keeps still
// would not find out otherwise, and that it is no longer.
func (s *Source) tellHeld(path string, held bool) {
	if held {
		s.held[path] = true
		s.o.Log.Info("a file lost objects or lines in place and may be half written; what it held counts until it has been still", "file", path, "still", s.o.Still)
		return
	}
	delete(s.held, path)
	s.o.Log.Info("the file is used as it is now", "file", path)
}

// miss has the files that are remembered and are not there any more taken for files that
// have just gone: they are looked at twice before what they held is dropped.
func (s *Source) miss(l *listing, now time.Time) {
	gone := map[string]filewatch.Sig{}
	for path := range s.fold.files {
		if _, found := l.files[path]; !found {
			gone[path] = filewatch.Unknown
		}
	}
	s.pace.Look(now, gone)
}

// read reads and decodes one file; false where it is being written.
func (s *Source) read(path string, now time.Time) (reading, bool) {
	text, sig, err := filewatch.Read(path, yamltree.MaxBytes)
	if errors.Is(err, filewatch.ErrMoving) {
		return reading{}, false
	}
	rewritten, still := s.pace.Taken(path, sig, now)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return reading{path: path, gone: true}, true
	case err != nil:
		return reading{path: path, unreadable: err.Error()}, true
	case !s.synced && !still && now.Before(s.began.Add(filewatch.MostWait)) && filewatch.WrittenTo(path, s.o.Settle):
		s.pace.Hold(path, now) // nothing says what the file held before
		return reading{}, false
	}
	r := reading{path: path, result: decode.Documents(path, text), text: extentOf(text), unfinished: rewritten && !still && !s.same(path, text, now)}
	if !r.unfinished {
		delete(s.seen, path)
	}
	if n := len(r.result.Skipped); n != s.skipped[path] {
		s.skipped[path] = n
		for _, k := range r.result.Skipped {
			s.o.Log.Debug("object of a kind that configuration does not use is left out", "at", k.Origin, "api_version", k.APIVersion, "kind", k.Kind, "name", k.Name)
		}
	}
	return r, true
}

// same says whether nothing else has been read of a file for as long as it would have to
// be still: one that is written anew every second, always the same, is finished too.
func (s *Source) same(path string, text []byte, now time.Time) bool {
	c, sum := s.seen[path], maphash.Bytes(seed, text)
	if c.sum != sum || c.since.IsZero() {
		s.seen[path] = content{sum: sum, since: now}
		return false
	}
	return now.Sub(c.since) >= s.o.Still
}
