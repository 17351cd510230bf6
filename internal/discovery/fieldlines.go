package discovery

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// maxPlacedFile bounds the files in which fields are looked for, in bytes: a page of problems parses them once for each
// version. In a longer one a problem is at the first line of its object.
const maxPlacedFile = 1 << 20

// fieldLines finds the lines of fields in files. Objects in force do not have them: most are never asked for. It is safe for
// concurrent use.
type fieldLines struct {
	mu    sync.Mutex
	files map[string]*placedFile
}

// placedFile has the lines that were found in one version of a file.
type placedFile struct {
	size     int64
	modified time.Time
	lines    map[placedField]int
	find     func(k object.Key, line int, field string) int // nil between requests
}

// placedField is a field of an object that begins at a line.
type placedField struct {
	key   object.Key
	line  int
	field string
}

// place sets the lines of problems to those of their fields. A problem whose line is known better, or whose file has another
// version of the object by now, stays as it is.
func (l *fieldLines) place(all []object.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := map[string]*placedFile{}
	for i := range all {
		p := &all[i]
		if p.Field == "" || p.Key.Name == "" || p.Origin.Line == 0 || !filepath.IsAbs(p.Origin.File) {
			continue
		}
		f := now[p.Origin.File]
		if f == nil {
			f = l.current(p.Origin.File)
			now[p.Origin.File] = f
		}
		p.Origin.Line = f.line(p.Origin.File, placedField{p.Key, p.Origin.Line, p.Field})
	}
	for _, f := range now {
		f.find = nil
	}
	l.files = now
}

// current is what is known of a file that has not changed.
func (l *fieldLines) current(path string) *placedFile {
	info, err := os.Stat(path)
	if err != nil {
		return &placedFile{lines: map[placedField]int{}} // of no version
	}
	if f := l.files[path]; f != nil && f.size == info.Size() && f.modified.Equal(info.ModTime()) {
		return f
	}
	return &placedFile{size: info.Size(), modified: info.ModTime(), lines: map[placedField]int{}}
}

func (f *placedFile) line(path string, of placedField) int {
	if n, known := f.lines[of]; known {
		return n
	}
	if f.find == nil {
		f.find = func(_ object.Key, line int, _ string) int { return line }
		if text, err := filewatch.ReadFile(path, maxPlacedFile); err == nil {
			f.find = admit.Lines(path, text)
		}
	}
	n := f.find(of.key, of.line, of.field)
	f.lines[of] = n
	return n
}
