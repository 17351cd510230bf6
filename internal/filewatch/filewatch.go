// Package filewatch turns a path into its whole contents: now, and again whenever they change.
//
// A change is whatever makes the path lead to other bytes: a write in place, an atomic
// rename, the swap of a symbolic link anywhere on the way (how Kubernetes updates a
// mounted ConfigMap or Secret). A file is read once it has kept still for a moment, and a
// deleted or replaced file is believed only when a second look finds the same. A file
// that lost lines in place, as it does while somebody truncates it and writes it anew, is
// taken for whole only once it has been still for 1.5 s. The kernel's notices make this
// quick; a poll finds what they miss. Run blocks and waits for what it starts.
//
// A program that follows several groups of files has one Follower, which tells each group's
// user when to read it. The parts (Sig, Read, Resolve, Pace, Shrunk, Notifier) are exported
// for a source that watches whole directories.
package filewatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Defaults of Options.
const (
	DefaultPoll     = 2 * time.Second
	DefaultSettle   = 30 * time.Millisecond
	DefaultConfirm  = 40 * time.Millisecond
	DefaultStill    = 1500 * time.Millisecond
	DefaultMaxBytes = 16 << 20
)

// MostWait is how long the first contents of a file that never keeps still are waited for.
const MostWait = 10 * time.Second

// Options say what to watch, and how patiently. Zero values mean the defaults.
type Options struct {
	Path string
	// Poll is how often to look where no notice came.
	Poll time.Duration
	// Settle is how long a file must keep still before it is read.
	Settle time.Duration
	// Confirm is how long after the first look the second one at an emptied or deleted
	// file is taken.
	Confirm time.Duration
	// Still is how long a file that lost lines in place must keep still before its
	// contents are taken for all of it.
	Still time.Duration
	// MaxBytes is the largest file that is read; a larger one is an error.
	MaxBytes int64
	// Log tells of notices that the kernel refuses; nil means nobody is told.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Poll <= 0 {
		o.Poll = DefaultPoll
	}
	if o.Settle <= 0 {
		o.Settle = DefaultSettle
	}
	if o.Confirm <= 0 {
		o.Confirm = DefaultConfirm
	}
	if o.Still <= 0 {
		o.Still = DefaultStill
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Contents is what a path leads to. Err says why it could not be read (it wraps
// fs.ErrNotExist where nothing is there); Data is nil then.
type Contents struct {
	Data []byte
	Err  error
}

// Run calls changed with what the path leads to, at once (where the file is being written
// to: once it has been still), and then each time that differs from the last call, until
// ctx ends; then it returns nil. Calls come from one goroutine. Data is not used again
// after the call.
func Run(ctx context.Context, o Options, changed func(Contents)) error {
	o = o.withDefaults()
	n := NewNotifier(o.Log)
	defer n.Close()
	w := watcher{o: o, pace: NewPace(o.Settle, o.Confirm, o.Still), changed: changed, began: time.Now()}
	for {
		real, dirs := Resolve(o.Path)
		grew := n.Watch(append(dirs, parent(real)))
		wait := w.look(time.Now())
		if grew {
			wait = 0 // what changed before the watch was there made no notice
		}
		if !n.Wait(ctx, wait) {
			return nil
		}
	}
}

// watcher is the state of one Run.
type watcher struct {
	o       Options
	pace    *Pace
	changed func(Contents)
	began   time.Time
	told    bool
	last    Contents
	doubt   bool // the last read found less than there was, and awaits a second one
	// held is what the last read found in a file that may be half written, nil where it
	// is not, and since when.
	held  []byte
	since time.Time
}

// look reads the file if its time has come, and says how long to wait for the next look.
func (w *watcher) look(now time.Time) time.Duration {
	seen := map[string]Sig{}
	sig, err := Stat(w.o.Path)
	if err == nil {
		seen[w.o.Path] = sig
	}
	if !w.told && err != nil {
		w.tell(Contents{Err: err})
	}
	for range w.pace.Look(now, seen) {
		w.read(now)
	}
	if next := w.pace.Next(now); !next.IsZero() {
		return min(max(next.Sub(now), time.Millisecond), w.o.Poll)
	}
	return w.o.Poll
}

func (w *watcher) read(now time.Time) {
	data, sig, err := Read(w.o.Path, w.o.MaxBytes)
	if errors.Is(err, ErrMoving) {
		return // still pending: the next look sees another signature
	}
	rewritten, still := w.pace.Taken(w.o.Path, sig, now)
	if !w.told {
		rewritten = now.Before(w.began.Add(MostWait)) && WrittenTo(w.o.Path, w.o.Settle)
	}
	if err == nil && rewritten && !still && (w.held != nil || !w.told || Cut(w.last.Data, data)) && !w.same(data, now) {
		w.pace.Hold(w.o.Path, now)
		return
	}
	w.held = nil
	less := w.told && w.last.Err == nil && (err != nil || len(data) == 0 && len(w.last.Data) > 0)
	if less && !w.doubt && !rewritten {
		w.doubt = true
		w.pace.Again(w.o.Path, now)
		return
	}
	w.doubt = false
	w.tell(Contents{Data: data, Err: err})
}

// same says whether nothing else has been read for as long as the file would have to be
// still: one that is written anew every second, always the same, is finished too.
func (w *watcher) same(data []byte, now time.Time) bool {
	if w.held == nil || !bytes.Equal(w.held, data) {
		w.held, w.since = append([]byte{}, data...), now
		return false
	}
	return now.Sub(w.since) >= w.o.Still
}

func (w *watcher) tell(c Contents) {
	if w.told && bytes.Equal(c.Data, w.last.Data) && (c.Err == nil) == (w.last.Err == nil) && fmt.Sprint(c.Err) == fmt.Sprint(w.last.Err) {
		return
	}
	w.told, w.last = true, c
	w.changed(c)
}
