package dir_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// remembered returns what a source of top has emitted for these files.
func remembered(t *testing.T, top string, files map[string]string) []object.Object {
	t.Helper()
	var out []object.Object
	for name, text := range files {
		for _, o := range decode.Documents(filepath.Join(top, name), []byte(text)).Objects {
			o.Saved = time.Unix(1000, 0)
			out = append(out, o)
		}
	}
	return out
}

const noSyntax = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: n\n---\n"

// One file is broken, one deleted, one changed and one new since the earlier source ended. The first
// batch must be correct.
func TestRememberedObjects(t *testing.T) {
	top := t.TempDir()
	was := remembered(t, top, map[string]string{
		"broken.yaml": service("a", 1), "gone.yaml": service("b", 1), "sub/gone.yaml": service("c", 1), "changed.yaml": service("d", 1) + service("e", 1),
	})
	write(t, filepath.Join(top, "broken.yaml"), noSyntax)
	write(t, filepath.Join(top, "changed.yaml"), service("d", 2))
	write(t, filepath.Join(top, "new.yaml"), service("f", 1))
	m := run(t, dir.Options{Dir: top, Remembered: was})
	if len(m.history) != 3 {
		t.Errorf("the first batch has %v", m.history)
	}
	m.want("a=1 d=2 f=1")
	if len(m.problems) != 1 || m.problems[0].Origin.File != filepath.Join(top, "broken.yaml") {
		t.Errorf("problems %v", m.problems)
	}
	write(t, filepath.Join(top, "broken.yaml"), service("a", 2))
	m.want("a=2 d=2 f=1")
	must(t, os.Remove(filepath.Join(top, "broken.yaml")))
	m.want("d=2 f=1")
}

func TestRememberedObjectsOfAMissingDirectory(t *testing.T) {
	for name, top := range map[string]string{"plain": "mesh", "not clean": "./x/../mesh/"} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			m := run(t, dir.Options{Dir: top, Remembered: remembered(t, "mesh", map[string]string{"f.yaml": service("a", 1)}), Poll: 20 * time.Millisecond})
			m.want("a=1")
			if len(m.problems) != 1 || !strings.Contains(m.problems[0].Text, "no such file or directory") {
				t.Errorf("problems %v", m.problems)
			}
			must(t, os.Mkdir("next", 0o755))
			write(t, "next/f.yaml", service("a", 2))
			write(t, "next/g.yaml", service("b", 2))
			must(t, os.Rename("next", "mesh"))
			m.want("a=2 b=2")
			if len(m.problems) != 0 {
				t.Errorf("problems %v", m.problems)
			}
		})
	}
}

// The directory is missing at the start and is then filled file by file. Nothing is removed meanwhile; what is
// still missing afterwards is.
func TestRememberedObjectsOfADirectoryThatIsFilled(t *testing.T) {
	for !fills(t) {
		t.Log("the machine is so busy that the directory was not filled in time: again")
	}
}

// fills fills a directory. It returns false if that took so long that what is missing may have been removed meanwhile.
func fills(t *testing.T) (steady bool) {
	t.Helper()
	top := filepath.Join(t.TempDir(), "mesh")
	const quiet = filewatch.DefaultQuietPeriod
	m := run(t, dir.Options{Dir: top, Poll: 20 * time.Millisecond, Remembered: remembered(t, top, map[string]string{
		"a.yaml": service("a", 1), "sub/b.yaml": service("b", 1), "gone.yaml": service("gone", 1),
	})})
	m.want("a=1 b=1 gone=1")
	began, want := time.Now(), ""
	last := began
	must(t, os.Mkdir(top, 0o755))
	for _, name := range []string{"a", "c", "d", "e", "f", "g"} {
		before := time.Now()
		write(t, filepath.Join(top, name+".yaml"), service(name, 2))
		for m.ports[name] != 2 {
			m.next()
		}
		steady = time.Since(last) < quiet*3/4 && time.Since(began) < filewatch.MaxWait*3/4
		if last = before; !steady {
			return false
		}
		if want += name + "=2 "; name == "a" {
			want += "b=1 "
		}
		m.want(want + "gone=1")
	}
	write(t, filepath.Join(top, "sub/b.yaml"), service("b", 2))
	if time.Since(last) >= quiet*3/4 {
		return false
	}
	m.want(strings.TrimSpace(strings.Replace(want, "b=1", "b=2", 1)))
	if slices.Contains(m.history, "-b") {
		t.Errorf("an object was removed while the directory was being filled: %v", m.history)
	}
	if last := m.history[len(m.history)-1]; last != "-gone" {
		t.Errorf("the last change is %s, want the removal of what is missing: %v", last, m.history)
	}
	return true
}

func TestRememberedObjectsOfAnEmptyDirectory(t *testing.T) {
	top := t.TempDir()
	m := run(t, dir.Options{Dir: top, Remembered: remembered(t, top, map[string]string{"f.yaml": service("a", 1)})})
	if len(m.history) != 0 {
		t.Errorf("the first batch has %v", m.history)
	}
}

// The paths of files below "./mesh" do not begin with "./mesh".
func TestRelativeDirectoryIsRenamed(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "mesh/f.yaml", service("a", 1))
	m := run(t, dir.Options{Dir: "./mesh", Poll: 20 * time.Millisecond})
	must(t, os.Rename("mesh", "away"))
	for len(m.problems) == 0 {
		m.next()
	}
	write(t, "away/f.yaml", service("a", 2))
	must(t, os.Rename("away", "mesh"))
	m.want("a=2")
	for _, h := range m.history {
		if h == "-a" {
			t.Errorf("objects of a directory that cannot be read were removed: %v", m.history)
		}
	}
}
