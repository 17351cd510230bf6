package filewatch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// start runs a Follower until the test ends.
func start(t *testing.T, f *Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// TestContentIsComparedWhereTimesDoNotTell: on this file system no file ever changes its signature.
func TestContentIsComparedWhereTimesDoNotTell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	synctest.Test(t, func(t *testing.T) {
		f := NewFollower(FollowerOptions{PollOnly: true, Digest: 3 * time.Second})
		f.stat = func(string) (Sig, error) { return Sig{ino: 1, size: 3}, nil }
		start(t, f)
		wake := make(chan struct{}, 1)
		plain, set := f.Follow(wake, path), f.Follow(wake, path)
		defer set.Close()
		defer plain.Close()
		set.ByContent()
		last, times := "", 0
		read := func() error {
			times++
			text, err := os.ReadFile(path)
			last = string(text)
			return err
		}
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
			if set.Due() {
				if err := set.Read(read); err != nil {
					t.Error(err)
				}
			}
		}
		if err := plain.Read(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		for i, text := range []string{"two", "six", "ten"} {
			write(text)
			pass(5 * time.Second)
			if last != text || times != i+2 {
				t.Errorf("read %q, %d times; want %q, %d times", last, times, text, i+2)
			}
			pass(time.Minute)
		}
		if times != 4 {
			t.Errorf("read %d times, want 4: contents that are the same are not read again", times)
		}
		if plain.Due() {
			t.Error("a group that did not ask for it is compared by content")
		}
		// A change while it is read is found, too.
		set.Ask()
		pass(0)
		err := set.Read(func() error { write("new"); return nil })
		if !errors.Is(err, ErrMoving) {
			t.Errorf("%v, want %v", err, ErrMoving)
		}
	})
}

func TestDigestOfWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, fifo, filepath.Join(dir, "missing")} {
		if digestOf(path) != (digest{}) {
			t.Errorf("%s has a digest", path)
		}
	}
}

// TestAWatchThatFailedIsAddedLater: the kernel refuses at first, as when its limit is reached. With a poll of an hour only a notice
// can tell of the change at the end.
func TestAWatchThatFailedIsAddedLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := NewNotifier(slog.New(slog.DiscardHandler))
	defer n.Close()
	add := n.add
	if add == nil {
		t.Fatal("the kernel gives no notices")
	}
	var refuse atomic.Bool
	refuse.Store(true)
	n.add = func(dir string) error {
		if refuse.Load() {
			return syscall.ENOSPC
		}
		return add(dir)
	}
	f := NewFollower(FollowerOptions{Poll: time.Hour})
	set := f.Follow(make(chan struct{}, 1), path)
	defer set.Close()
	f.pollAll(time.Now())
	if f.watch(n) || !n.incomplete || f.Refusals() != 1 {
		t.Fatal("a watch was added although the kernel refused it")
	}
	f.pollAll(time.Now())
	refuse.Store(false)
	if f.watch(n) {
		t.Error("it was tried again at once")
	}
	f.tried = f.tried.Add(-f.poll) // a poll later
	if !f.watch(n) || n.incomplete {
		t.Fatal("the watch was not added")
	}
	if err := os.WriteFile(path, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "a notice of the change", func() error {
		select {
		case <-n.c:
			return nil
		default:
			return errors.New("none")
		}
	})
}
