package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// listing is the state of a tree of files.
type listing struct {
	files map[string]filewatch.Sig // by path
	watch []string                 // directories whose notices matter
	// blind are directories that could not be listed; what is below them is unknown, not gone.
	blind    []string
	problems []object.Problem
	seen     map[[2]uint64]bool // files and directories that were met, by identity
}

// list walks the tree below root. Names that begin with a dot are passed over, which
// hides the versions of a mounted ConfigMap and leaves the links into them. A file or
// directory that several links lead to counts once, by its first path.
func list(root string) *listing {
	l := &listing{files: map[string]filewatch.Sig{}, seen: map[[2]uint64]bool{}}
	l.dir(root, true)
	return l
}

func (l *listing) dir(path string, top bool) {
	real, links := filewatch.Resolve(path)
	l.watch = append(append(l.watch, links...), real)
	sig, err := filewatch.Stat(path)
	var entries []fs.DirEntry
	if err == nil && l.first(sig) {
		entries, err = os.ReadDir(path)
	}
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && !top:
		return
	default:
		l.unknown(path, err)
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
			l.unknown(path, err)
		}
		l.link(path)
		return // gone, or a link that leads nowhere
	}
	switch {
	case fi.IsDir():
		l.dir(path, false)
	case named && fi.Mode().IsRegular():
		if link {
			l.link(path)
		}
		if sig := filewatch.SigOf(fi); l.first(sig) {
			l.files[path] = sig
		}
	}
}

// unknown notes that nobody can tell what is at path and below it.
func (l *listing) unknown(path string, err error) {
	l.blind = append(l.blind, path)
	l.problems = append(l.problems, object.Problem{
		Origin: object.Origin{File: path},
		Text:   fmt.Sprintf("read configuration: %v", reason(err)),
	})
}

// link watches the way of a symbolic link, and where it ends.
func (l *listing) link(path string) {
	real, links := filewatch.Resolve(path)
	l.watch = append(append(l.watch, links...), filepath.Dir(real))
}

// first says whether a file or directory is met for the first time.
func (l *listing) first(s filewatch.Sig) bool {
	id := s.Identity()
	if id[1] != 0 && l.seen[id] {
		return false
	}
	l.seen[id] = true
	return true
}

// hides says whether a path may be there although it was not found.
func (l *listing) hides(path string) bool {
	for _, b := range l.blind {
		if path == b || strings.HasPrefix(path, strings.TrimSuffix(b, "/")+"/") {
			return true
		}
	}
	return false
}

// reason is an error's cause without the path, which the problem names already.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
