package filewatch_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// follow runs a Follower until the test ends.
func follow(t *testing.T, o filewatch.FollowerOptions) *filewatch.Follower {
	t.Helper()
	f := filewatch.NewFollower(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return f
}

// pass lets fake time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// reader reads a group whenever it is due and counts the times.
type reader struct {
	set   *filewatch.Set
	times atomic.Int32
	last  atomic.Pointer[string]
	fail  atomic.Bool
}

func read(t *testing.T, f *filewatch.Follower, paths ...string) *reader {
	t.Helper()
	wake := make(chan struct{}, 1)
	r := &reader{set: f.Follow(wake, paths...)}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-wake:
			}
			if r.set.Due() {
				_ = r.set.Read(func() error {
					r.times.Add(1)
					var all []string
					for _, p := range paths {
						text, _ := os.ReadFile(p)
						all = append(all, string(text))
					}
					text := strings.Join(all, "|")
					r.last.Store(&text)
					if r.fail.Load() {
						return errors.New("refused")
					}
					return nil
				})
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		r.set.Close()
	})
	return r
}

func (r *reader) want(t *testing.T, times int32, text string) {
	t.Helper()
	last := ""
	if p := r.last.Load(); p != nil {
		last = *p
	}
	if r.times.Load() != times || last != text {
		t.Errorf("read %d times, last %q; want %d times, %q", r.times.Load(), last, times, text)
	}
}

func save(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace puts another file in the place of path, as a rename does.
func replace(t *testing.T, path, text string) {
	t.Helper()
	save(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestFollowerReadsWhatChanged(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, filewatch.FollowerOptions{PollOnly: true})
		save(t, a, "one")
		pair, other := read(t, f, a, b), read(t, f, c)
		synctest.Wait()
		pair.want(t, 1, "one|")
		other.want(t, 1, "")
		pass(time.Minute)
		pair.want(t, 1, "one|")
		save(t, b, "two")
		pass(2 * time.Second)
		pair.want(t, 2, "one|two")
		replace(t, a, "1")
		pass(2 * time.Second)
		pair.want(t, 3, "1|two")
		if err := os.Remove(b); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		pair.want(t, 4, "1|")
		other.want(t, 1, "")
	})
}

// A file that became smaller in place may be half written: decision 14.
func TestFollowerWaitsForAFileThatShrankInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, filewatch.FollowerOptions{PollOnly: true, Poll: 100 * time.Millisecond})
		save(t, path, "a long text")
		r := read(t, f, path)
		synctest.Wait()
		save(t, path, "short")
		pass(time.Second)
		r.want(t, 1, "a long text")
		r.set.Ask() // asking does not make it whole
		pass(100 * time.Millisecond)
		r.want(t, 1, "a long text")
		save(t, path, "shorter, but growing")
		pass(time.Second)
		r.want(t, 1, "a long text")
		pass(time.Second)
		r.want(t, 2, "shorter, but growing")
		save(t, path, "one that only grew is read at once")
		pass(200 * time.Millisecond)
		r.want(t, 3, "one that only grew is read at once")
	})
}

func TestFollowerTriesAgainAfterAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, filewatch.FollowerOptions{PollOnly: true})
		save(t, path, "one")
		r := read(t, f, path)
		synctest.Wait()
		r.fail.Store(true)
		save(t, path, "one, two")
		pass(3500 * time.Millisecond)
		if n := r.times.Load(); n < 3 || n > 5 {
			t.Errorf("read %d times in 3.5 s of errors, want one a second", n)
		}
		// It is compared with what was used, not with what was refused.
		save(t, path, "o")
		n := r.times.Load()
		pass(1300 * time.Millisecond)
		if r.times.Load() != n {
			t.Error("a file that may be half written was read")
		}
		r.fail.Store(false)
		pass(3 * time.Second)
		r.want(t, n+1, "o")
	})
}

func TestFollowerFindsAChangeWhileReading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	save(t, path, "one")
	set := filewatch.NewFollower(filewatch.FollowerOptions{}).Follow(make(chan struct{}, 1), path)
	err := set.Read(func() error {
		save(t, path, "one, two")
		return nil
	})
	if !errors.Is(err, filewatch.ErrMoving) {
		t.Errorf("got %v, want ErrMoving", err)
	}
	if err := set.Read(func() error { return nil }); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestFollowerIsAsked(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, filewatch.FollowerOptions{PollOnly: true})
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		r := read(t, f, a)
		synctest.Wait()
		r.set.Ask()
		synctest.Wait()
		r.want(t, 2, "")
		r.set.SetPaths(a, b)
		synctest.Wait()
		r.want(t, 3, "")
		r.set.SetPaths(b)
		pass(3 * time.Second)
		r.want(t, 3, "")
		save(t, b, "new")
		pass(2 * time.Second)
		r.want(t, 4, "")
		var limit atomic.Bool
		r.set.Also(func() bool { return limit.CompareAndSwap(true, false) })
		pass(3 * time.Second)
		r.want(t, 4, "")
		limit.Store(true)
		pass(2 * time.Second)
		r.want(t, 5, "")
		r.set.Close()
		save(t, b, "newer")
		pass(3 * time.Second)
		r.want(t, 5, "")
	})
}

// However many groups there are, an idle program wakes once per poll.
func TestFollowerSharesItsWakes(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, filewatch.FollowerOptions{PollOnly: true})
		var polls atomic.Int32
		for range 50 {
			read(t, f, filepath.Join(dir, "a")).set.Also(func() bool {
				polls.Add(1)
				return false
			})
		}
		synctest.Wait()
		before := polls.Load()
		pass(time.Minute)
		if n := (polls.Load() - before) / 50; n != 60 {
			t.Errorf("%d polls of 50 groups in a minute, want 60", n)
		}
	})
}

// The kernel's notices make it quick: with a poll of an hour nothing else would find the change.
func TestFollowerTakesNotices(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "data", "a")
	for _, version := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		save(t, filepath.Join(dir, version, "a"), version)
	}
	link := func(to string) {
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	link("v1")
	f := follow(t, filewatch.FollowerOptions{Poll: time.Hour})
	wake := make(chan struct{}, 1)
	set := f.Follow(wake, path)
	defer set.Close()
	got := ""
	read := func() error {
		text, err := os.ReadFile(path)
		got = string(text)
		return err
	}
	next := func(want string) {
		t.Helper()
		limit := time.After(bound)
		for got != want {
			select {
			case <-wake:
			case <-limit:
				t.Fatalf("read %q, want %q", got, want)
			}
			if set.Due() {
				_ = set.Read(read)
			}
		}
	}
	next("v1")
	link("v2")
	next("v2")
	save(t, filepath.Join(dir, "v2", "a"), "v2, longer")
	next("v2, longer")
}
