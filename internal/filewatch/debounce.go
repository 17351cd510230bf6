package filewatch

import (
	"sort"
	"time"
)

// Debouncer decides which files to read when: those whose signature differs from that of
// their last reading, once it has stayed the same for a while. Files that change together
// become due together. It is a machine without a clock: its user passes the time and the
// files' signatures. Not for concurrent use.
type Debouncer struct {
	debounce, confirm, quiet time.Duration
	files                    map[string]*fileState
}

// fileState is what a Debouncer knows of one file.
type fileState struct {
	read     Sig // at the last reading; zero where there was none, or no file
	base     Sig // at the last reading that was used
	before   Sig // base before the last reading
	known    bool
	pending  bool
	again    bool      // pending only to be confirmed
	held     bool      // pending until the quiet period is over
	seen     Sig       // at the last observation
	since    time.Time // since when it is the same
	due      time.Time
	deadline time.Time // until when a file that is due waits for others that are not
}

// NewDebouncer makes a Debouncer of no files. debounce is how long a file must stay
// unchanged before it is read, confirm how long Recheck delays the next reading, and quiet
// how long a file must stay unchanged before MarkRead and Hold take it for complete.
func NewDebouncer(debounce, confirm, quiet time.Duration) *Debouncer {
	return &Debouncer{debounce: debounce, confirm: confirm, quiet: quiet, files: map[string]*fileState{}}
}

// Observe takes the present signatures of all files (one that is missing does not exist)
// and returns, in order, the paths to read now. They stay due until MarkRead. A file that
// is Unknown is left alone, and read once it is known again.
func (d *Debouncer) Observe(now time.Time, seen map[string]Sig) []string {
	for path := range seen {
		if d.files[path] == nil {
			d.files[path] = &fileState{}
		}
	}
	for path, f := range d.files {
		if seen[path] == Unknown {
			f.read, f.known, f.pending = Unknown, true, false
			continue
		}
		f.observe(now, seen[path], d.debounce)
		if _, there := seen[path]; !there && !f.pending {
			delete(d.files, path)
		}
	}
	return d.dueAt(now)
}

func (f *fileState) observe(now time.Time, sig Sig, debounce time.Duration) {
	switch {
	case f.pending && sig == f.seen:
		return
	case !f.pending && f.known && sig == f.read:
		return
	}
	if !f.pending {
		f.deadline = now.Add(2 * debounce)
	}
	fresh := !f.known && !f.pending
	f.pending, f.again, f.held, f.seen, f.since, f.due = true, false, false, sig, now, now.Add(debounce)
	// A file that was last modified long ago need not be debounced.
	if age := now.UnixNano() - sig.mtime; fresh && (age > int64(debounce) || age < -int64(debounce)) {
		f.since, f.due = time.Unix(0, sig.mtime), now
	}
}

func (d *Debouncer) dueAt(now time.Time) []string {
	var due []string
	wait, impatient := false, false
	for path, f := range d.files {
		switch {
		case !f.pending:
		case f.due.After(now):
			wait = wait || !f.again && !f.held
		default:
			due = append(due, path)
			impatient = impatient || f.again || f.held || !now.Before(f.deadline)
		}
	}
	if wait && !impatient {
		return nil
	}
	sort.Strings(due)
	return due
}

// MarkRead notes that the path was read with the signature sig (zero: there was no file).
// rewritten says whether it is the file whose contents were used last, written in place,
// and not another one at the same path; quiet, whether it has been unchanged for so long
// that its writer must have finished.
func (d *Debouncer) MarkRead(path string, sig Sig, now time.Time) (rewritten, quiet bool) {
	f := d.files[path]
	if f == nil {
		return false, false
	}
	if sig != f.seen {
		f.seen, f.since = sig, now
	}
	f.before, f.base = f.base, sig
	f.read, f.known, f.pending, f.again, f.held = sig, true, false, false, false
	rewritten = f.before != (Sig{}) && f.before.Identity() == sig.Identity()
	return rewritten, now.Sub(f.since) >= d.quiet
}

// Recheck makes a file that was just read, and not all of it used, due once more after the
// confirm time.
func (d *Debouncer) Recheck(path string, now time.Time) {
	if f := d.files[path]; f != nil {
		f.base = f.before
		f.pending, f.again, f.due = true, true, now.Add(d.confirm)
		f.deadline = f.due
	}
}

// Hold notes that a file that was just read may be half written, and that not all of it
// was used. It is due again after the quiet period, or when it has changed and is unchanged
// for the debounce time.
func (d *Debouncer) Hold(path string, now time.Time) {
	if f := d.files[path]; f != nil {
		f.base = f.before
		f.pending, f.held, f.due = true, true, f.since.Add(d.quiet)
		f.deadline = f.due
	}
}

// Stable says whether every file has been read as it was last observed, and none is held.
func (d *Debouncer) Stable() bool {
	for _, f := range d.files {
		if f.pending && !f.again {
			return false
		}
	}
	return true
}

// Next is when to observe again at the latest; zero if nothing is pending.
func (d *Debouncer) Next(now time.Time) time.Time {
	var next time.Time
	for _, f := range d.files {
		at := f.due
		if !at.After(now) {
			at = f.deadline
		}
		if f.pending && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}
