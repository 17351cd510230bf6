package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// listing is the result of listing a tree of files.
type listing struct {
	files map[string]filewatch.Sig // by path
	watch []string                 // directories to watch
	dirs  []string                 // the directories of the tree that could be read
	// unreadable are paths that could not be read. Files below them may exist.
	unreadable []string
	problems   []object.Problem
	seen       map[[2]uint64]bool // files and directories, by device and inode
	exclude    [2]uint64          // a directory that is ignored; zero for none
}

// list lists the tree below root. It ignores names that begin with a dot, among them the versions
// of a mounted ConfigMap, to which visible links refer. A file or directory that has several paths
// is listed once, by its first path. A directory exclude within the tree is ignored.
func list(root, exclude string) *listing {
	l := newListing()
	if sig, err := filewatch.Stat(exclude); err == nil {
		l.exclude = sig.Identity()
	}
	l.dir(root, true)
	return l
}

func newListing() *listing {
	return &listing{files: map[string]filewatch.Sig{}, seen: map[[2]uint64]bool{}}
}

func (l *listing) dir(path string, top bool) {
	sig, err := filewatch.Stat(path)
	if id := sig.Identity(); !top && err == nil && id[1] != 0 && id == l.exclude {
		return
	}
	real, links := filewatch.Resolve(path)
	l.watch = append(append(l.watch, links...), real)
	var entries []fs.DirEntry
	if err == nil && l.visit(sig) {
		entries, err = os.ReadDir(path)
	}
	switch {
	case err == nil:
		l.dirs = append(l.dirs, path)
	case errors.Is(err, fs.ErrNotExist) && !top:
		return
	default:
		l.addUnreadable(path, err)
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		l.entry(filepath.Join(path, e.Name()), e)
	}
}

func (l *listing) entry(path string, e fs.DirEntry) {
	if e.IsDir() {
		l.dir(path, false)
		return
	}
	link := e.Type()&fs.ModeSymlink != 0
	named := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path))
	if !link && (!named || !e.Type().IsRegular()) {
		return
	}
	fi, err := os.Stat(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.addUnreadable(path, err)
		}
		l.watchLink(path)
		return // deleted, or a dangling link
	}
	switch {
	case fi.IsDir():
		l.dir(path, false)
	case named && fi.Mode().IsRegular():
		if link {
			l.watchLink(path)
		}
		if sig := filewatch.SigOf(fi); l.visit(sig) {
			l.files[path] = sig
		}
	}
}

// addUnreadable records that path, and what is below it, could not be read.
func (l *listing) addUnreadable(path string, err error) {
	l.unreadable = append(l.unreadable, path)
	l.problems = append(l.problems, object.Problem{
		Origin: object.Origin{File: path},
		Text:   fmt.Sprintf("read configuration: %v", reason(err)),
	})
}

// changed returns when a file was last added to, renamed in or removed from a directory of the tree; the zero time
// if that is unknown or in the future.
func (l *listing) changed(now time.Time) (last time.Time) {
	for _, path := range l.dirs {
		fi, err := os.Stat(path)
		if err != nil {
			continue // deleted since it was listed
		}
		if at := fi.ModTime(); at.After(last) && !at.After(now) {
			last = at
		}
	}
	return last
}

// watchLink adds the directories of a symbolic link's path and of its target to the watch list.
func (l *listing) watchLink(path string) {
	real, links := filewatch.Resolve(path)
	l.watch = append(append(l.watch, links...), filepath.Dir(real))
}

// visit reports whether the file or directory has not been visited before, and marks it as visited.
func (l *listing) visit(s filewatch.Sig) bool {
	id := s.Identity()
	if id[1] != 0 && l.seen[id] {
		return false
	}
	l.seen[id] = true
	return true
}

// mayExist reports whether a path that is not listed may exist, in a directory that is unreadable.
func (l *listing) mayExist(path string) bool {
	for _, b := range l.unreadable {
		if path == b || strings.HasPrefix(path, strings.TrimSuffix(b, "/")+"/") {
			return true
		}
	}
	return false
}

// reason returns an error without the path, which is in the problem's origin.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
