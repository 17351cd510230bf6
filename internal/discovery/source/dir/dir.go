// Package dir is a source of configuration: a directory tree of YAML and JSON files that it watches.
//
// It reads files named *.yaml, *.yml and *.json recursively, and ignores names that begin
// with a dot. It notices edits, renames, replaced links and deletions within 100 ms if
// inotify reports them, else at the next poll. It reads a file when it has not been modified
// for 20 ms, decodes the documents of it that are not the same as before, and removes an object when it is missing in two consecutive readings. A document
// that does not parse keeps its last good value, and a directory or file that cannot be read
// keeps its objects; so does a tree that cannot be listed within 5 s. Writing a file in place is not atomic: if objects are missing in such a
// file, or its last document is shorter, it is used when it has not been modified for 1.5 s
// (see maybeTruncated). Changes found in one scan are emitted in one batch. The first batch
// has everything that exists at the start, and Synced; it waits up to 10 s for files that are
// being written in place. A source can restore what an earlier one has emitted for the same
// tree: files that cannot be read keep their restored objects, and objects that were removed
// meanwhile are not in the first batch. Files that have not been found since the start are not
// missing before no directory has been changed for 1.5 s: the tree may be being filled.
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
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Options configure a Source. Durations that are not positive mean the defaults.
type Options struct {
	// Dir is the root of the tree. The paths in objects' origins begin with it.
	Dir string
	// Exclude is a folder whose files are not read if it is within Dir; it need not exist.
	Exclude string
	// Poll is the interval of scans without a notification; by default 2 s.
	Poll time.Duration
	// Debounce is how long a file must be unmodified before it is read; by default 20 ms.
	Debounce time.Duration
	// Confirm is the delay of the second reading that confirms that an object is missing; by
	// default 40 ms.
	Confirm time.Duration
	// QuietPeriod is how long a file that may be incomplete must be unmodified; by default 1.5 s.
	QuietPeriod time.Duration
	// Remembered are the objects that an earlier source of the same tree had emitted. Each is the
	// last good value of the file in its Origin. If there are any, Dir need not exist.
	Remembered []object.Object
	// Log receives messages about objects that are ignored, files that are waited for and limits of
	// inotify; by default they are discarded.
	Log *slog.Logger
}

// Source watches a tree. Run may be called once; only Behind is safe for concurrent use.
type Source struct {
	o       Options
	pace    *filewatch.Debouncer
	merger  *merger
	began   time.Time
	scanned bool // the tree, at least once
	synced  bool
	initial []reading      // the readings before the first batch
	skipped map[string]int // number of ignored objects that were logged, by file
	decoded map[string]*decode.File
	seen    map[string]content
	waiting map[string]bool // files for which waiting was logged
	// unseen are the files of remembered objects that have not been found yet.
	unseen map[string]bool
	fill   fill
	walk   func(root, exclude string) *listing
	// listed receives the listing that is being made; nil if there is none.
	listed   chan *listing
	patience time.Duration // how long a listing may take while objects are in force
	// unreadable are files that could not be read, complete is when everything could last be read.
	unreadable map[string]bool
	complete   time.Time
	behind     atomic.Int64 // since when changes may be missing, in nanoseconds since 1970; 0 if they are not
}

// fill is what is known of a tree that is perhaps being filled: copied, or checked out.
type fill struct {
	since time.Time // when it was noticed; zero if it is not being filled
	until time.Time // when it will not have been changed for QuietPeriod
}

// content is a hash of a file that is being written, and since when it has had that content.
type content struct {
	sum   uint64
	since time.Time
}

// slowListing is how long listing the tree may take before it counts as unreadable.
const slowListing = 5 * time.Second

var seed = maphash.MakeSeed()

// New creates a source. It returns an error if o.Dir cannot be listed, unless objects are
// remembered.
func New(o Options) (*Source, error) {
	o.Dir = filepath.Clean(o.Dir) // filepath.Join cleans the paths that are compared with it
	if len(o.Remembered) == 0 {
		if _, err := os.ReadDir(o.Dir); err != nil {
			return nil, fmt.Errorf("read configuration directory %s: %w", o.Dir, reason(err))
		}
	}
	if o.Poll <= 0 {
		o.Poll = filewatch.DefaultPoll
	}
	if o.Debounce <= 0 {
		o.Debounce = filewatch.DefaultDebounce
	}
	if o.Confirm <= 0 {
		o.Confirm = filewatch.DefaultConfirm
	}
	if o.QuietPeriod <= 0 {
		o.QuietPeriod = filewatch.DefaultQuietPeriod
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, unseen := newMerger(), map[string]bool{}
	m.restore(o.Remembered)
	for i := range o.Remembered {
		unseen[o.Remembered[i].Origin.File] = true
	}
	return &Source{
		o: o, pace: filewatch.NewDebouncer(o.Debounce, o.Confirm, o.QuietPeriod), merger: m, skipped: map[string]int{}, decoded: map[string]*decode.File{}, seen: map[string]content{}, waiting: map[string]bool{},
		unseen: unseen, walk: list, patience: slowListing, unreadable: map[string]bool{},
	}, nil
}

// Run calls emit with batches, from one goroutine, until ctx ends, and then returns nil. While emit
// is running nothing is read; the next scan finds what has changed meanwhile.
func (s *Source) Run(ctx context.Context, emit func(object.Batch)) error {
	n := filewatch.NewNotifier(s.o.Log)
	defer n.Close()
	s.began = time.Now()
	s.complete = s.began
	for {
		l := s.list(ctx)
		if ctx.Err() != nil {
			return nil
		}
		added := n.Watch(l.watch)
		now := time.Now()
		s.scan(l, now, emit)
		wait := s.o.Poll
		if next := s.pace.Next(now); !next.IsZero() {
			wait = min(wait, max(next.Sub(now), time.Millisecond))
		}
		if !s.fill.since.IsZero() {
			wait = min(wait, max(s.fill.until.Sub(now), time.Millisecond))
		}
		if added {
			wait = 0 // changes before the watch was added are not notified
		}
		if !n.Wait(ctx, wait) {
			return nil
		}
	}
}

// list lists the tree. If that takes longer than s.patience while there are objects in force, such as those remembered
// when a network file system does not answer, the tree counts as unreadable until the listing is complete. The
// listing is then made by a goroutine that ends when the file system answers.
func (s *Source) list(ctx context.Context) *listing {
	patience := s.patience
	if s.listed != nil {
		patience = min(patience, s.o.Poll) // it is late already
	} else {
		s.listed = make(chan *listing, 1)
		go func(to chan<- *listing, walk func(root, exclude string) *listing, root, exclude string) {
			to <- walk(root, exclude)
		}(s.listed, s.walk, s.o.Dir, s.o.Exclude)
	}
	var late <-chan time.Time
	if len(s.merger.files) > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case l := <-s.listed:
		s.listed = nil
		return l
	case <-late:
		l := newListing()
		l.addUnreadable(s.o.Dir, fmt.Errorf("the file system has not answered for %v", s.patience))
		return l
	case <-ctx.Done():
		return newListing()
	}
}

// ConfigMaps reads the tree once and returns the ConfigMaps in force, including those remembered
// from files that cannot be read. It ignores files that are being modified. It must be called before
// Run.
func (s *Source) ConfigMaps() []object.Object {
	l, m := s.list(context.Background()), newMerger()
	m.restore(slices.DeleteFunc(slices.Clone(s.o.Remembered), func(o object.Object) bool { return o.Key.Kind != object.ConfigMap }))
	var readings []reading
	for path := range m.files {
		if _, found := l.files[path]; !found && !l.mayExist(path) {
			readings = append(readings, reading{path: path, gone: true})
		}
	}
	for path := range l.files {
		text, _, err := filewatch.Read(path, yamltree.MaxBytes)
		// Few of thousands of files have a ConfigMap, and decoding is slow.
		if err == nil && (m.files[path] != nil || bytes.Contains(text, []byte(object.ConfigMap))) {
			readings = append(readings, reading{path: path, result: decode.Documents(path, text)})
		}
	}
	for range 2 { // a missing object is removed by the second reading
		m.apply(readings, nil)
	}
	var out []object.Object
	for k, o := range m.emitted {
		if k.Kind == object.ConfigMap {
			out = append(out, *o)
		}
	}
	return out
}

// scan reads the files that are due and emits the changes.
func (s *Source) scan(l *listing, now time.Time, emit func(object.Batch)) {
	for path := range s.merger.files {
		if _, found := l.files[path]; !found && l.mayExist(path) {
			l.files[path] = filewatch.Unknown
		}
	}
	s.keepUnseen(l, now)
	if !s.scanned {
		s.scanned = true
		s.addMissingFiles(l, now)
	}
	var readings []reading
	for _, path := range s.pace.Observe(now, l.files) {
		if r, ok := s.read(path, now); ok {
			readings = append(readings, r)
		}
	}
	s.setBehind(len(l.unreadable)+len(s.unreadable) > 0, now)
	if !s.synced {
		s.initial = append(s.initial, readings...)
		if !s.pace.Stable() || !s.fill.since.IsZero() {
			return // the objects of a file that is being written must not be missing in the first batch
		}
		readings, s.initial = s.initial, nil
	}
	batch, reread, wait := s.merger.apply(readings, l.problems)
	for _, path := range reread {
		s.pace.Recheck(path, now)
	}
	for _, r := range readings {
		if waiting := slices.Contains(wait, r.path); waiting != s.waiting[r.path] {
			s.setWaiting(r.path, waiting)
		}
	}
	for _, path := range wait {
		s.pace.Hold(path, now)
	}
	if !s.synced {
		if !s.pace.Next(now).IsZero() {
			return // a second reading decides which remembered objects are missing
		}
		batch, s.synced = s.merger.snapshot(), true
	}
	if len(batch.Changes) > 0 || batch.Problems != nil || batch.Synced {
		emit(batch)
	}
}

// Behind returns since when changes may be missing: when everything could last be read, if now something cannot. It returns
// false if nothing is missing. It is safe for concurrent use.
func (s *Source) Behind() (time.Time, bool) {
	at := s.behind.Load()
	return time.Unix(0, at), at != 0
}

// setBehind says whether something could not be read in a scan.
func (s *Source) setBehind(behind bool, now time.Time) {
	if !behind {
		s.complete = now
		s.behind.Store(0)
		return
	}
	s.behind.Store(s.complete.UnixNano())
}

// keepUnseen keeps the objects of files that have not been found since the start, while the tree is being filled:
// a directory has been changed within QuietPeriod. It does so for at most filewatch.MaxWait.
func (s *Source) keepUnseen(l *listing, now time.Time) {
	var missing []string
	for path := range s.unseen {
		switch sig, found := l.files[path]; {
		case !found:
			missing = append(missing, path)
		case sig != filewatch.Unknown:
			delete(s.unseen, path)
		}
	}
	var changed time.Time
	if len(missing) > 0 {
		changed = l.changed(now)
	}
	s.fill.until = changed.Add(s.o.QuietPeriod)
	switch {
	case changed.IsZero() || !now.Before(s.fill.until):
		s.fill.since = time.Time{}
	case s.fill.since.IsZero():
		s.fill.since = now
	}
	if s.fill.since.IsZero() || now.Sub(s.fill.since) > filewatch.MaxWait {
		for _, path := range missing {
			delete(s.unseen, path)
		}
		s.fill.since = time.Time{}
		return
	}
	for _, path := range missing {
		l.files[path] = filewatch.Unknown
	}
}

// setWaiting logs that a file is or is not waited for. Without the log nobody would notice a file
// that is modified all the time.
func (s *Source) setWaiting(path string, waiting bool) {
	if waiting {
		s.waiting[path] = true
		s.o.Log.Info("objects or lines are missing in a file that was written in place: it may be incomplete; its previous objects stay in force until it has not been modified for some time", "file", path, "wait", s.o.QuietPeriod)
		return
	}
	delete(s.waiting, path)
	s.o.Log.Info("the file is in force as it is now", "file", path)
}

// addMissingFiles treats remembered files that do not exist as files that have just been deleted, so
// that two readings confirm it before their objects are removed.
func (s *Source) addMissingFiles(l *listing, now time.Time) {
	gone := map[string]filewatch.Sig{}
	for path := range s.merger.files {
		if _, found := l.files[path]; !found {
			gone[path] = filewatch.Unknown
		}
	}
	s.pace.Observe(now, gone)
}

// read reads and decodes a file. It returns false if the file is modified at the moment.
func (s *Source) read(path string, now time.Time) (reading, bool) {
	text, sig, err := filewatch.Read(path, yamltree.MaxBytes)
	if errors.Is(err, filewatch.ErrMoving) {
		return reading{}, false
	}
	rewritten, still := s.pace.MarkRead(path, sig, now)
	delete(s.unreadable, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(s.decoded, path)
		return reading{path: path, gone: true}, true
	case err != nil:
		// Only what the system refuses to read: a file that is too large is rejected for what it is.
		if at := (*fs.PathError)(nil); errors.As(err, &at) {
			s.unreadable[path] = true
		}
		return reading{path: path, unreadable: err.Error()}, true
	case !s.synced && !still && now.Before(s.began.Add(filewatch.MaxWait)) && filewatch.WrittenTo(path, s.o.Debounce):
		s.pace.Hold(path, now) // the previous contents, to compare with, are not known
		return reading{}, false
	}
	file := s.decoded[path]
	if file == nil {
		file = decode.NewFile(path)
		s.decoded[path] = file
	}
	r := reading{path: path, result: file.Documents(text), text: extentOf(text), beingWritten: rewritten && !still && !s.unchanged(path, text, now)}
	if !r.beingWritten {
		delete(s.seen, path)
	}
	if n := len(r.result.Skipped); n != s.skipped[path] {
		s.skipped[path] = n
		for _, k := range r.result.Skipped {
			s.o.Log.Debug("ignored an object of a kind that is not read", "at", k.Origin, "api_version", k.APIVersion, "kind", k.Kind, "name", k.Name)
		}
	}
	return r, true
}

// unchanged reports whether the file has had this content for at least QuietPeriod. A file that is
// rewritten every second with the same content is complete, too.
func (s *Source) unchanged(path string, text []byte, now time.Time) bool {
	c, sum := s.seen[path], maphash.Bytes(seed, text)
	if c.sum != sum || c.since.IsZero() {
		s.seen[path] = content{sum: sum, since: now}
		return false
	}
	return now.Sub(c.since) >= s.o.QuietPeriod
}
