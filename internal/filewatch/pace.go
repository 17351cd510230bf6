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
	settle, confirm time.Duration
	files           map[string]*pacing
}

// pacing is what Pace knows of one file.
type pacing struct {
	taken    Sig // as it was when last read; zero where it never was, or was gone
	known    bool
	pending  bool
	again    bool // pending only for a second look
	seen     Sig  // as it looked last, while pending
	due      time.Time
	patience time.Time // until when a file that is due waits for others that are not
}

// NewPace makes a Pace with no files. settle is how long a file must keep still, confirm
// how long Again puts a second look off.
func NewPace(settle, confirm time.Duration) *Pace {
	return &Pace{settle: settle, confirm: confirm, files: map[string]*pacing{}}
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
	f.pending, f.again, f.seen, f.due = true, false, sig, now.Add(settle)
	// A file that has long been as it is need not be watched for stillness first.
	if age := now.UnixNano() - sig.mtime; fresh && (age > int64(settle) || age < -int64(settle)) {
		f.due = now
	}
}

func (p *Pace) dueAt(now time.Time) []string {
	var due []string
	wait, impatient := false, false
	for path, f := range p.files {
		switch {
		case !f.pending:
		case f.due.After(now):
			wait = wait || !f.again
		default:
			due = append(due, path)
			impatient = impatient || f.again || !now.Before(f.patience)
		}
	}
	if wait && !impatient {
		return nil
	}
	sort.Strings(due)
	return due
}

// Taken says that the path was read while it looked like sig (zero: it was gone).
func (p *Pace) Taken(path string, sig Sig) {
	if f := p.files[path]; f != nil {
		f.taken, f.known, f.pending, f.again = sig, true, false, false
	}
}

// Again asks for a second look at a file that was just taken.
func (p *Pace) Again(path string, now time.Time) {
	if f := p.files[path]; f != nil {
		f.pending, f.again, f.seen, f.due = true, true, f.taken, now.Add(p.confirm)
		f.patience = f.due
	}
}

// Settled says whether every file has been taken as it looked last.
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
