package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// look is the interval at which the directory, the logs and the programs are looked at.
const look = 200 * time.Millisecond

// readFiles reads the files of a directory that pilot-discovery would read: *.yaml, *.yml and *.json, without names that begin with a dot.
func readFiles(dir string) ([]podplan.File, error) {
	var out []podplan.File
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != dir && strings.HasPrefix(e.Name(), ".") {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return nil
		}
		text, _, err := filewatch.Read(path, yamltree.MaxBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		name, relErr := filepath.Rel(dir, path)
		out = append(out, podplan.File{Name: filepath.ToSlash(name), Text: text})
		return errors.Join(err, relErr)
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	return out, nil
}

// follow prints logs, applies edits and restarts programs until ctx ends.
func (s *session) follow(ctx context.Context) error {
	files, err := readFiles(s.o.Dir)
	if err != nil {
		return err
	}
	logs, problems := newTails(s), newProblems(s)
	s.ended = logs.last
	last, pending := files, []podplan.File(nil)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		logs.print()
		s.restartEnded()
		problems.print(ctx)
		files, err := readFiles(s.o.Dir)
		switch {
		case err != nil:
			continue // the directory is being replaced
		case same(files, last):
			pending = nil
		case same(files, pending):
			// Unchanged for one look: whoever wrote it has ended.
			last, pending = files, nil
			s.change(ctx, files)
		default:
			pending = files
		}
	}
}

func same(a, b []podplan.File) bool {
	return slices.EqualFunc(a, b, func(x, y podplan.File) bool { return x.Name == y.Name && string(x.Text) == string(y.Text) })
}

// change applies an edit of the directory.
func (s *session) change(ctx context.Context, files []podplan.File) {
	began := time.Now()
	plan, err := podplan.Make(files, podplan.Options{Before: s.plan})
	if err != nil {
		s.out.line("edit: %v: nothing was changed", err)
		return
	}
	old := map[string]bool{}
	for _, n := range s.plan.Notes {
		old[n.String()] = true
	}
	for _, n := range plan.Notes {
		// What does not parse is told by pilot-discovery, which reads it, too.
		if !old[n.String()] && !(n.Problem && n.Object == "") {
			s.note(n)
		}
	}
	before := map[string]bool{}
	for _, p := range s.plan.Pods {
		before[p.Key()] = true
	}
	s.plan = plan
	notReady := map[string]bool{}
	for _, p := range plan.Pods {
		notReady[p.Key()] = !before[p.Key()]
	}
	err = s.writeConfig(notReady)
	started, ended, changeErr := s.mesh.Change(ctx, plan)
	opened := len(s.record.Published)
	err = errors.Join(err, changeErr, s.writeConfig(nil), s.open(ctx))
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.out.line("edit: %v", err)
	}
	what := []string{"the configuration is with pilot-discovery"}
	if len(started) > 0 {
		what = append(what, "started "+strings.Join(started, ", "))
	}
	if len(ended) > 0 {
		what = append(what, "ended "+strings.Join(ended, ", "))
	}
	s.out.line("edit: %s (%s)", strings.Join(what, "; "), time.Since(began).Round(time.Millisecond))
	for _, p := range s.record.Published[opened:] {
		s.out.line("edit: %s is port %d of %s", p.URL(), p.Port, p.Pod)
	}
}

// restart is when a container that has ended is started again.
type restart struct {
	pid   int
	at    time.Time
	pause time.Duration
}

// The pauses before a container that has ended is started again, which double.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// restartEnded starts containers again that have ended, but not those of Jobs.
func (s *session) restartEnded() {
	now := time.Now()
	for _, p := range s.mesh.Pods() {
		for _, prog := range p.Spec.Programs {
			proc := p.Ended(prog.Container)
			if proc == nil {
				continue
			}
			key := p.Spec.Key() + "/" + prog.Container
			r := s.restarts[key]
			if r == nil {
				r = &restart{}
				s.restarts[key] = r
			}
			if r.pid != proc.PID() {
				r.pid = proc.PID()
				r.pause = min(max(2*r.pause, firstPause), lastPause)
				r.at = now.Add(r.pause)
				s.ended(p.Spec.Key() + "." + prog.Container)
				if prog.Once {
					s.out.line("%s: ended with exit code %d", key, proc.ExitCode())
				} else {
					s.out.line("%s: ended with exit code %d; starts again in %s", key, proc.ExitCode(), r.pause)
				}
			}
			if prog.Once || now.Before(r.at) {
				continue
			}
			if err := p.Restart(prog.Container); err != nil {
				s.out.line("%v", err)
				r.at = now.Add(r.pause)
			}
		}
	}
}

// tails prints what is appended to the logs.
type tails struct {
	s  *session
	at map[string]int64
	// rest are the beginnings of lines.
	rest map[string]string
}

func newTails(s *session) *tails {
	return &tails{s: s, at: map[string]int64{}, rest: map[string]string{}}
}

// maxLog bounds what is printed of one log at once, in bytes.
const maxLog = 64 << 10

func (t *tails) print() {
	dir := filepath.Join(t.s.work, "log")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	sizes := map[string]int64{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sizes[e.Name()] = info.Size()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if sizes[name] > t.at[name] {
			t.read(dir, name)
		}
	}
}

func (t *tails) read(dir, name string) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, t.at[name], maxLog))
	if err != nil {
		return
	}
	t.at[name] += int64(len(text))
	lines := strings.Split(t.rest[name]+string(text), "\n")
	t.rest[name] = lines[len(lines)-1]
	t.lines(name, lines[:len(lines)-1])
}

func (t *tails) lines(name string, lines []string) {
	title := strings.TrimSuffix(name, ".log")
	for _, line := range lines {
		if t.shown(title, line) {
			t.s.out.line("%s | %s", title, printable.EscapeOutput(line))
		}
	}
}

// last prints what is left in the log of a program that has ended, which need not end its last line.
func (t *tails) last(title string) {
	name := title + ".log"
	t.read(filepath.Join(t.s.work, "log"), name)
	if rest := t.rest[name]; rest != "" {
		t.rest[name] = ""
		t.lines(name, []string{rest})
	}
}

// shown decides which lines a person wants to see: those of applications, and changes and warnings of pilot-discovery.
func (t *tails) shown(title, line string) bool {
	switch {
	case title == "pilot-discovery":
		for _, told := range toldOfObjects {
			if strings.Contains(line, told) {
				return false
			}
		}
		return strings.Contains(line, "\tconfiguration changed\t") || strings.Contains(line, "\twarn\t") || strings.Contains(line, "\terror\t")
	case strings.HasSuffix(title, ".agent"), strings.HasSuffix(title, ".capture"):
		return t.s.o.ProxyLogs
	}
	return true
}
