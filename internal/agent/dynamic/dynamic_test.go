package dynamic

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kept makes a store in a folder, and returns what it logs.
func kept(t *testing.T, dir, node string) (*Store, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	return New(Options{Dir: dir, Binding: Binding{Node: node}, Log: slog.New(slog.NewTextHandler(&log, nil)), Check: func(text []byte) error {
		if string(text) == "bad" {
			return errors.New("it is bad")
		}
		return nil
	}}), &log
}

func set(t *testing.T, s *Store, version, text string) {
	t.Helper()
	if err := s.SetBootstrap(version, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func current(t *testing.T, s *Store, version, text string, heard bool) {
	t.Helper()
	if d, h, _ := s.Current(); d.Version != version || string(d.Text) != text || h != heard {
		t.Errorf("version %q, %q, heard %v; want %q, %q, %v", d.Version, d.Text, h, version, text, heard)
	}
}

func changed(s *Store) bool {
	select {
	case <-s.Changed():
		return true
	default:
		return false
	}
}

func TestTheNewestIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	s, _ := kept(t, dir, "a")
	current(t, s, "", "", false)
	set(t, s, "1", "one")
	if !changed(s) {
		t.Error("nothing says that it has changed")
	}
	set(t, s, "1", "one")
	if changed(s) {
		t.Error("the same is a change")
	}
	if err := s.SetBootstrap("2", []byte("bad")); err == nil {
		t.Error("bad differences are taken")
	}
	current(t, s, "1", "one", true)
	next, _ := kept(t, dir, "a")
	current(t, next, "1", "one", false)
	if st, err := os.Stat(filepath.Join(dir, fileName)); err != nil || st.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", st, err)
	}
	set(t, next, "3", "") // discovery changes nothing any more
	next, _ = kept(t, dir, "a")
	current(t, next, "3", "", false)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v; want one file", entries, err)
	}
}

func TestWhatEnvoyRefuses(t *testing.T) {
	dir := t.TempDir()
	s, _ := kept(t, dir, "a")
	set(t, s, "1", "one")
	one, _, _ := s.Current()
	s.Accept(one)
	set(t, s, "2", "two")
	two, _, _ := s.Current()
	s.Refuse(two, "no", true)
	current(t, s, "1", "one", true)
	next, _ := kept(t, dir, "a")
	if d, _, refused := next.Current(); refused != "no" || len(d.Text) > 0 {
		t.Errorf("the next agent uses %q, refused: %q", d.Text, refused)
	}
	set(t, next, "2", "two") // the same again
	if _, _, refused := next.Current(); refused != "no" {
		t.Error("what was refused is tried again")
	}
	set(t, next, "3", "three")
	current(t, next, "3", "three", true)
	s.Refuse(one, "late", true) // not the newest
	if _, _, refused := s.Current(); refused != "no" {
		t.Errorf("refused: %q", refused)
	}
	// Only for this agent.
	set(t, s, "4", "four")
	four, _, _ := s.Current()
	s.Refuse(four, "no", false)
	next, _ = kept(t, dir, "a")
	current(t, next, "4", "four", false)
}

func TestFilesThatAreLeftAside(t *testing.T) {
	write := func(text string, mode fs.FileMode) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const good = `{"format": 1, "binding": {"node": "a", "cluster": "", "identity": "", "discovery": ""}, "version": "1", "text": "b25l"}`
	for _, tt := range []struct {
		name, want string
		make       func(t *testing.T, path string)
	}{
		{"good", "", write(good, 0o600)},
		{"of another node", "it is of", write(strings.Replace(good, `"a"`, `"b"`, 1), 0o600)},
		{"of another format", "its format is 2, want 1", write(strings.Replace(good, "1", "2", 1), 0o600)},
		{"not checked", "it is bad", write(strings.Replace(good, "b25l", "YmFk", 1), 0o600)},
		{"readable", "mode 0644, want 0600", write(good, 0o644)},
		{"half", "parse it", write(good[:40], 0o600)},
		{"large", "bytes, want at most", write(good+strings.Repeat(" ", maxFile), 0o600)},
		{"a folder", "not a regular file", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link", "too many levels of symbolic links", func(t *testing.T, path string) {
			write(good, 0o600)(t, path+".to")
			if err := os.Symlink(path+".to", path); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.make(t, filepath.Join(dir, fileName))
			s, log := kept(t, dir, "a")
			if tt.want == "" {
				current(t, s, "1", "one", false)
			} else {
				current(t, s, "", "", false)
			}
			if !strings.Contains(log.String(), tt.want) || (log.Len() > 0) != (tt.want != "") {
				t.Errorf("log %q, want %q", log, tt.want)
			}
		})
	}
}

// A folder that cannot be written costs the copy only.
func TestAFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, log := kept(t, dir, "a")
	set(t, s, "1", "one")
	current(t, s, "1", "one", true)
	if !strings.Contains(log.String(), "is not kept for the next agent") {
		t.Errorf("log %q", log)
	}
	none, log := kept(t, "", "a")
	set(t, none, "1", "one")
	current(t, none, "1", "one", true)
	if log.Len() > 0 {
		t.Errorf("log %q", log)
	}
}
