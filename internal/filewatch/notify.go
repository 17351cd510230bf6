package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Notifier tells that something happened in one of a set of directories, never what. Where
// the kernel gives no watches (its limits are shared by a whole machine) it stays silent and
// logs that once; its user must also poll.
type Notifier struct {
	c       chan struct{} // gets a value after something happened
	log     *slog.Logger
	watch   *fsnotify.Watcher // nil where the kernel refused
	add     func(dir string) error
	dirs    map[string]bool
	refused bool
	// refusals counts how often the kernel refused to watch.
	refusals uint64
	// incomplete says that a directory could not be watched.
	incomplete bool
	done       sync.WaitGroup
}

// NewNotifier makes a Notifier that watches nothing yet. Close it.
func NewNotifier(log *slog.Logger) *Notifier {
	c := make(chan struct{}, 1)
	n := &Notifier{c: c, log: log, dirs: map[string]bool{}}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		n.refuse(err)
		return n
	}
	n.watch, n.add = w, w.Add
	n.done.Go(func() {
		for {
			select {
			case _, ok := <-w.Events:
				if !ok {
					return
				}
			case _, ok := <-w.Errors: // an overflow: something happened, too
				if !ok {
					return
				}
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	})
	return n
}

func (n *Notifier) refuse(err error) {
	if !n.refused {
		n.log.Warn("files are polled only: the kernel gives no notices of changes", "error", err)
	}
	n.refused, n.incomplete = true, true
	n.refusals++
}

// Watch makes dirs the set of directories. It returns true where one is new: what
// happened in it before made no notice, so check again. A directory that is not there, or that the kernel refuses to watch, is
// left out until the next call.
func (n *Notifier) Watch(dirs []string) (grew bool) {
	if n.watch == nil {
		return false
	}
	n.incomplete = false
	want := make(map[string]bool, len(dirs))
	for _, d := range dirs {
		if want[d] {
			continue
		}
		// Adding one that is watched costs little, and renews the watch where the directory
		// was replaced.
		if err := n.add(d); err != nil {
			n.incomplete = true
			if !errors.Is(err, fs.ErrNotExist) {
				n.refuse(err)
			}
			continue
		}
		want[d] = true
		grew = grew || !n.dirs[d]
	}
	for d := range n.dirs {
		if !want[d] {
			_ = n.watch.Remove(d) // gone already, or gone now
		}
	}
	n.dirs = want
	return grew
}

// burst is how long Wait collects notices: a busy directory costs at most one check in
// each such time, however much happens in it.
const burst = 2 * time.Millisecond

// Wait returns true after something happened, or after most, and false where ctx ended.
func (n *Notifier) Wait(ctx context.Context, most time.Duration) bool { return n.wait(ctx, most, nil) }

// wait also returns true, at once, when it receives from also.
func (n *Notifier) wait(ctx context.Context, most time.Duration, also <-chan struct{}) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-also:
		return true
	case <-n.c:
		timer.Reset(burst)
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Close ends all watches and waits for the goroutine that listens to them.
func (n *Notifier) Close() {
	if n.watch != nil {
		_ = n.watch.Close() // it only ever says that it was closed before
		n.done.Wait()
	}
}
