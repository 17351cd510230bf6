// Package filewatch follows the whole contents of files: now, and again whenever they change.
//
// A change is whatever makes a path resolve to other bytes: a write in place, an atomic
// rename, the swap of a symbolic link anywhere on the way (how Kubernetes updates a
// mounted ConfigMap or Secret). A file is read once it has been unchanged for a moment
// (debounce), and an emptied or deleted file is used only when a second reading confirms
// it. A file that lost lines in place, as it does while a program truncates and rewrites
// it, is used only after a quiet period of 1.5 s. The kernel's notices (inotify) make this
// quick; a poll finds what they miss. Run blocks and waits for what it starts.
//
// A program that follows several groups of files has one Follower, which tells each
// group's user when to read it; it can also compare contents every few seconds. The parts (Sig, Read, Resolve, Debouncer, Shrunk, Notifier)
// are exported for a source that watches whole directories.
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
	DefaultPoll        = 2 * time.Second
	DefaultDebounce    = 20 * time.Millisecond
	DefaultConfirm     = 40 * time.Millisecond
	DefaultQuietPeriod = 1500 * time.Millisecond
	DefaultMaxBytes    = 16 << 20
)

// MaxWait is how long the first contents of a file that keeps changing are waited for.
const MaxWait = 10 * time.Second

// Options configure Run. Path is required; zero durations mean the defaults.
type Options struct {
	Path string
	// Poll is the time between two polls without an inotify event.
	Poll time.Duration
	// Debounce is how long a file must be unchanged before it is read.
	Debounce time.Duration
	// Confirm is the time between the first and the second reading of an emptied or deleted file.
	Confirm time.Duration
	// QuietPeriod is how long a file that lost lines in place must be unchanged before its
	// contents are taken for complete.
	QuietPeriod time.Duration
	// MaxBytes is the largest file that is read; a larger one is an error.
	MaxBytes int64
	// Log gets a warning where the kernel refuses notices; nil discards it.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Poll <= 0 {
		o.Poll = DefaultPoll
	}
	if o.Debounce <= 0 {
		o.Debounce = DefaultDebounce
	}
	if o.Confirm <= 0 {
		o.Confirm = DefaultConfirm
	}
	if o.QuietPeriod <= 0 {
		o.QuietPeriod = DefaultQuietPeriod
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Contents is the content of the file at a path. Err says why it could not be read (it wraps
// fs.ErrNotExist if there is no file); Data is nil then.
type Contents struct {
	Data []byte
	Err  error
}

// Run calls changed with the content at the path, at once (if the file is being written
// to: after it has not changed for a while), and then each time that it differs from the last call, until
// ctx ends; then it returns nil. Calls come from one goroutine. Data is not used again
// after the call.
func Run(ctx context.Context, o Options, changed func(Contents)) error {
	o = o.withDefaults()
	n := NewNotifier(o.Log)
	defer n.Close()
	w := watcher{o: o, debouncer: NewDebouncer(o.Debounce, o.Confirm, o.QuietPeriod), changed: changed, began: time.Now()}
	for {
		real, dirs := Resolve(o.Path)
		grew := n.Watch(append(dirs, parent(real)))
		wait := w.poll(time.Now())
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
	o         Options
	debouncer *Debouncer
	changed   func(Contents)
	began     time.Time
	published bool
	last      Contents
	doubt     bool // the last reading found less than before and must be confirmed
	// candidate is the content of a file that may be partly written, nil
	// if it is complete; since is when it was first found.
	candidate []byte
	since     time.Time
}

// poll reads the file if it is due, and says how long to wait for the next poll.
func (w *watcher) poll(now time.Time) time.Duration {
	seen := map[string]Sig{}
	sig, err := Stat(w.o.Path)
	if err == nil {
		seen[w.o.Path] = sig
	}
	if !w.published && err != nil {
		w.publish(Contents{Err: err})
	}
	for range w.debouncer.Observe(now, seen) {
		w.read(now)
	}
	if next := w.debouncer.Next(now); !next.IsZero() {
		return min(max(next.Sub(now), time.Millisecond), w.o.Poll)
	}
	return w.o.Poll
}

func (w *watcher) read(now time.Time) {
	data, sig, err := Read(w.o.Path, w.o.MaxBytes)
	if errors.Is(err, ErrMoving) {
		return // still pending: the next poll sees another signature
	}
	rewritten, quiet := w.debouncer.MarkRead(w.o.Path, sig, now)
	if !w.published {
		rewritten = now.Before(w.began.Add(MaxWait)) && WrittenTo(w.o.Path, w.o.Debounce)
	}
	if err == nil && rewritten && !quiet && (w.candidate != nil || !w.published || MaybeTruncated(w.last.Data, data)) && !w.same(data, now) {
		w.debouncer.Hold(w.o.Path, now)
		return
	}
	w.candidate = nil
	less := w.published && w.last.Err == nil && (err != nil || len(data) == 0 && len(w.last.Data) > 0)
	if less && !w.doubt && !rewritten {
		w.doubt = true
		w.debouncer.Recheck(w.o.Path, now)
		return
	}
	w.doubt = false
	w.publish(Contents{Data: data, Err: err})
}

// same says whether the contents have been the same for the quiet period: a file that is
// rewritten every second with the same contents is complete too.
func (w *watcher) same(data []byte, now time.Time) bool {
	if w.candidate == nil || !bytes.Equal(w.candidate, data) {
		w.candidate, w.since = append([]byte{}, data...), now
		return false
	}
	return now.Sub(w.since) >= w.o.QuietPeriod
}

func (w *watcher) publish(c Contents) {
	if w.published && bytes.Equal(c.Data, w.last.Data) && (c.Err == nil) == (w.last.Err == nil) && fmt.Sprint(c.Err) == fmt.Sprint(w.last.Err) {
		return
	}
	w.published, w.last = true, c
	w.changed(c)
}
