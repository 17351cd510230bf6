package filewatch

import (
	"sort"
	"time"
)

// Pace decides when which file is read: one that looks other than when it was last read,
// once it has looked the same for a while. Files that change together become due
// together. It is a machine without a clock: whoever drives it says what time it is and
// what the files look like. Not for concurrent use.
type Pace struct {
	settle, confirm, still time.Duration
	files                  map[string]*pacing
}

// pacing is what Pace knows of one file.
type pacing struct {
	taken    Sig // as it was when last read; zero where it never was, or was gone
	base     Sig // as it was when what was read was last used
	before   Sig // base before the last reading
	known    bool
	pending  bool
	again    bool      // pending only for a second look
	held     bool      // pending until it has been still for long
	seen     Sig       // as it looked last
	since    time.Time // since when it has looked so
	due      time.Time
	patience time.Time // until when a file that is due waits for others that are not
}

// NewPace makes a Pace with no files. settle is how long a file must keep still before it
// is read, confirm how long Again puts a second look off, and still how long a file must
// keep still before Still and Hold take it for finished.
func NewPace(settle, confirm, still time.Duration) *Pace {
	return &Pace{settle: settle, confirm: confirm, still: still, files: map[string]*pacing{}}
}

// Look takes the present signatures of all files (one that is missing is gone) and
// returns, in order, the paths to read now. They stay due until Taken. A file that is
// Unknown is left alone, and read once it is known again.
func (p *Pace) Look(now time.Time, seen map[string]Sig) []string {
	for path := range seen {
		if p.files[path] == nil {
			p.files[path] = &pacing{}
		}
	}
	for path, f := range p.files {
		if seen[path] == Unknown {
			f.taken, f.known, f.pending = Unknown, true, false
			continue
		}
		f.look(now, seen[path], p.settle)
		if _, there := seen[path]; !there && !f.pending {
			delete(p.files, path)
		}
	}
	return p.dueAt(now)
}

func (f *pacing) look(now time.Time, sig Sig, settle time.Duration) {
	switch {
	case f.pending && sig == f.seen:
		return
	case !f.pending && f.known && sig == f.taken:
		return
	}
	if !f.pending {
		f.patience = now.Add(2 * settle)
	}
	fresh := !f.known && !f.pending
	f.pending, f.again, f.held, f.seen, f.since, f.due = true, false, false, sig, now, now.Add(settle)
	// A file that has long been as it is need not be watched for stillness first.
	if age := now.UnixNano() - sig.mtime; fresh && (age > int64(settle) || age < -int64(settle)) {
		f.since, f.due = time.Unix(0, sig.mtime), now
	}
}

func (p *Pace) dueAt(now time.Time) []string {
	var due []string
	wait, impatient := false, false
	for path, f := range p.files {
		switch {
		case !f.pending:
		case f.due.After(now):
			wait = wait || !f.again && !f.held
		default:
			due = append(due, path)
			impatient = impatient || f.again || f.held || !now.Before(f.patience)
		}
	}
	if wait && !impatient {
		return nil
	}
	sort.Strings(due)
	return due
}

// Taken says that the path was read while it looked like sig (zero: it was gone).
// rewritten says whether it is the file whose contents were used last, written to in
// place, and not another one in its stead; still, whether it has looked so for so long
// that whoever wrote it must have finished.
func (p *Pace) Taken(path string, sig Sig, now time.Time) (rewritten, still bool) {
	f := p.files[path]
	if f == nil {
		return false, false
	}
	if sig != f.seen {
		f.seen, f.since = sig, now
	}
	f.before, f.base = f.base, sig
	f.taken, f.known, f.pending, f.again, f.held = sig, true, false, false, false
	rewritten = f.before != (Sig{}) && f.before.Identity() == sig.Identity()
	return rewritten, now.Sub(f.since) >= p.still
}

// Again asks for a second look at a file that was just taken and not all of it used.
func (p *Pace) Again(path string, now time.Time) {
	if f := p.files[path]; f != nil {
		f.base = f.before
		f.pending, f.again, f.due = true, true, now.Add(p.confirm)
		f.patience = f.due
	}
}

// Hold says that a file that was just taken may be half written, and not all of it was
// used. It is due again once it has been still, or when it has changed and settled.
func (p *Pace) Hold(path string, now time.Time) {
	if f := p.files[path]; f != nil {
		f.base = f.before
		f.pending, f.held, f.due = true, true, f.since.Add(p.still)
		f.patience = f.due
	}
}

// Settled says whether every file has been taken as it looked last, and none is held.
func (p *Pace) Settled() bool {
	for _, f := range p.files {
		if f.pending && !f.again {
			return false
		}
	}
	return true
}

// Next is when to look again at the latest; zero where nothing is pending.
func (p *Pace) Next(now time.Time) time.Time {
	var next time.Time
	for _, f := range p.files {
		at := f.due
		if !at.After(now) {
			at = f.patience
		}
		if f.pending && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}
