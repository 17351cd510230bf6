package filewatch_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long a test waits for what takes milliseconds on an idle machine.
const bound = 20 * time.Second

// watch runs a watch of path until the test ends and returns what it tells.
func watch(t *testing.T, o filewatch.Options) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan string, 100)
	done := make(chan error, 1)
	go func() {
		done <- filewatch.Run(ctx, o, func(c filewatch.Contents) {
			switch {
			case errors.Is(c.Err, fs.ErrNotExist):
				told <- "gone"
			case c.Err != nil:
				told <- "error: " + c.Err.Error()
			default:
				told <- string(c.Data)
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return told
}

func want(t *testing.T, told <-chan string, text string) {
	t.Helper()
	select {
	case got := <-told:
		if got != text {
			t.Fatalf("told %q, want %q", got, text)
		}
	case <-time.After(bound):
		t.Fatalf("nothing told, want %q", text)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// create makes a file with all of its text: one that is seen empty may be told so.
func create(t *testing.T, path, text string) {
	t.Helper()
	whole := filepath.Join(t.TempDir(), "whole")
	write(t, whole, text)
	must(t, os.Rename(whole, path))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// quick polls too rarely to help: what is seen is seen by notice.
var quick = filewatch.Options{Poll: time.Hour}

func options(path string) filewatch.Options {
	o := quick
	o.Path = path
	return o
}

func TestNotices(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	told := watch(t, options(path))
	want(t, told, "gone")
	create(t, path, "one")
	want(t, told, "one")
	write(t, path, "two, in place")
	want(t, told, "two, in place")
	write(t, filepath.Join(dir, "new"), "three, renamed")
	must(t, os.Rename(filepath.Join(dir, "new"), path))
	want(t, told, "three, renamed")
	must(t, os.Remove(path))
	want(t, told, "gone")
	create(t, path, "back")
	want(t, told, "back")
}

func TestMountedConfigMap(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{"old", "new"} {
		version := filepath.Join(dir, fmt.Sprintf("..v%d", i))
		must(t, os.Mkdir(version, 0o755))
		write(t, filepath.Join(version, "f"), text)
	}
	must(t, os.Symlink("..v0", filepath.Join(dir, "..data")))
	must(t, os.Symlink("..data/f", filepath.Join(dir, "f")))
	outside := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, outside))
	told := watch(t, options(filepath.Join(outside, "f")))
	want(t, told, "old")
	must(t, os.Symlink("..v1", filepath.Join(dir, "..tmp")))
	must(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	must(t, os.RemoveAll(filepath.Join(dir, "..v0")))
	want(t, told, "new")
}

func TestDirectoryComesLater(t *testing.T) {
	dir := t.TempDir()
	told := watch(t, options(filepath.Join(dir, "a", "b", "f")))
	want(t, told, "gone")
	must(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755))
	create(t, filepath.Join(dir, "a", "b", "f"), "here")
	want(t, told, "here")
}

// rewritten has a file with the text old rewritten, and wants that the watch, which is started by rewrite or before it, tells
// only of the result. What is rewritten more slowly than in the quiet period is told in parts: where the machine stood still
// for so long, it is done again with another file.
func rewritten(t *testing.T, old, result string, watchFirst bool, rewrite func(f *os.File, watch func())) {
	t.Helper()
	for once := func() bool {
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, old)
		var told <-chan string
		start := func() { told = watch(t, filewatch.Options{Path: path}) }
		if watchFirst {
			start()
			want(t, told, old)
		} else {
			<-time.After(100 * time.Millisecond) // the file is not a new one
		}
		began := time.Now()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		must(t, err)
		defer f.Close()
		rewrite(f, start)
		if time.Since(began) >= filewatch.DefaultQuietPeriod {
			return false
		}
		want(t, told, result)
		return true
	}; !once(); {
		t.Log("the machine stood still meanwhile")
	}
}

// A writer that truncates, waits and writes must not make the file look empty.
func TestTruncateThenWrite(t *testing.T) {
	rewritten(t, "one", "two", true, func(f *os.File, _ func()) {
		// Long enough for the empty file to be read, and read again.
		<-time.After(400 * time.Millisecond)
		_, err := f.WriteString("two")
		must(t, err)
	})
}

// Neither does one that writes line by line, nor is a part of what it writes told.
func TestWrittenLineByLine(t *testing.T) {
	rewritten(t, "a: 1\nb: 1\nc: 1\n", "a: 2\nb: 2\nc: 2\nd: 2\n", true, func(f *os.File, _ func()) {
		for _, line := range []string{"a: 2\n", "b: 2\n", "c: 2\n", "d: 2\n"} {
			<-time.After(70 * time.Millisecond)
			_, err := f.WriteString(line)
			must(t, err)
		}
	})
}

// A file with fewer lines is told at once where it took another's place, and one with as
// many where it was written in place. One that is seen empty, as when the machine stands still while it is written, is told
// after the quiet period: then all is done again.
func TestWhatIsToldAtOnce(t *testing.T) {
	for attempts := 1; !toldAtOnce(t); attempts++ {
		if attempts == 5 {
			t.Fatalf("not told at once in any of %d attempts", attempts)
		}
	}
}

func toldAtOnce(t *testing.T) bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	told := watch(t, filewatch.Options{Path: path})
	want(t, told, "gone")
	late := false
	step := func(text string, change func()) {
		t.Helper()
		began := time.Now()
		change()
		want(t, told, text)
		late = late || time.Since(began) >= filewatch.DefaultQuietPeriod
	}
	step("a: 100\nb: 1\n", func() { create(t, path, "a: 100\nb: 1\n") })
	step("a: 5\nb: 1\n", func() { write(t, path, "a: 5\nb: 1\n") })
	step("a: 5\nb: 1\nc: 1\n", func() { write(t, path, "a: 5\nb: 1\nc: 1\n") })
	step("a: 5\n", func() { create(t, path, "a: 5\n") })
	step("gone", func() { must(t, os.Remove(path)) })
	return !late
}

// A file that is being rewritten when the watch begins is waited for.
func TestRewrittenAtStart(t *testing.T) {
	rewritten(t, "one", "two", false, func(f *os.File, watch func()) {
		watch()
		<-time.After(300 * time.Millisecond)
		_, err := f.WriteString("two")
		must(t, err)
	})
}

func TestEmptiedForGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "one")
	told := watch(t, options(path))
	want(t, told, "one")
	must(t, os.Truncate(path, 0))
	want(t, told, "")
}

// Notices do not cross every file system; the poll does. A change behind a hard link in
// another directory makes no notice in this one.
func TestPollFindsWhatNoticesMiss(t *testing.T) {
	path, other := filepath.Join(t.TempDir(), "f"), filepath.Join(t.TempDir(), "g")
	write(t, path, "one")
	must(t, os.Link(path, other))
	told := watch(t, filewatch.Options{Path: path, Poll: 20 * time.Millisecond})
	want(t, told, "one")
	write(t, other, "two")
	want(t, told, "two")
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	must(t, os.Mkdir(path, 0o755))
	o := options(path)
	o.MaxBytes = 10
	told := watch(t, o)
	want(t, told, "error: read "+path+": a directory: want a regular file")
	must(t, os.Remove(path))
	create(t, path, strings.Repeat("x", 11))
	for got := range told {
		if got == "error: read "+path+": more than 10 bytes" {
			break
		}
		if got != "gone" {
			t.Fatalf("told %q", got)
		}
	}
	write(t, path, "short")
	want(t, told, "short")
}

func TestResolve(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	at := func(s string) string { return filepath.Join(root, s) }
	must(t, os.MkdirAll(at("x/y"), 0o755))
	must(t, os.MkdirAll(at("z"), 0o755))
	write(t, at("x/y/f"), "")
	must(t, os.Symlink("../x", at("z/link")))
	must(t, os.Symlink(at("z/link/y"), at("top")))
	must(t, os.Symlink("loop", at("loop")))
	for _, tt := range []struct {
		path, real string
		dirs       []string
	}{
		{at("x/y/f"), at("x/y/f"), nil},
		{at("top/f"), at("x/y/f"), []string{root, at("z")}},
		{at("top/no/f"), at("x/y/no/f"), []string{root, at("z"), at("x/y")}},
		{at("loop/f"), at("loop/f"), []string{root}},
	} {
		real, dirs := filewatch.Resolve(tt.path)
		if real != tt.real || !slices.Equal(dirs, tt.dirs) {
			t.Errorf("%s: %s by %v, want %s by %v", tt.path, real, dirs, tt.real, tt.dirs)
		}
	}
}
