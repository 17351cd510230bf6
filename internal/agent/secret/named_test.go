package secret

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

func TestNamesOfFiles(t *testing.T) {
	for name, want := range map[string][]string{
		"file-cert:/c.pem~/k.pem": {"/c.pem", "/k.pem"},
		"file-cert:./c~d/k":       {"./c", "d/k"},
		"file-root:/ca.pem":       {"/ca.pem"},
		"file-root:system":        {"/one", "/two"},
	} {
		s, err := parseName(name, []string{"/one", "/two"})
		if err != nil || !slices.Equal(s.files(), want) {
			t.Errorf("%s: %v, %v, want %v", name, s.files(), err, want)
		}
	}
	for name, why := range map[string]string{
		"default": "want a name that begins with file-cert: or file-root:", "file-root:": "is empty", "file-cert:/c": "want file-cert:", "file-cert:/a~/b~/c": "want file-cert:",
		"file-cert:~/k": "is empty", "file-root:../ca.pem": "want an absolute path", "file-cert:/c~a/../../k": "want an absolute path",
		"file-root:/a\x00b": "no zero byte", "file-root:/" + strings.Repeat("x", 5000): "at most 4096 bytes",
	} {
		if _, err := parseName(name, nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40q: %v, want %q", name, err, why)
		}
	}
}

// follow runs a Named that follows names in a synctest bubble; f is called after the first read.
func follow(t *testing.T, log *slog.Logger, system []string, names []string, f func(t *testing.T, n *Named)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := NewNamed(system, watcher(t), log)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		for _, name := range names {
			release, err := n.Follow(name)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
		}
		synctest.Wait()
		f(t, n)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestNamedFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	ca := newFakeCA(t)
	one, two := identity(t, ca), identity(t, newFakeCA(t))
	put(t, dir, map[string][]byte{"c": one.Chain, "k": one.Key, "r": one.Roots})
	pair, root := CertPrefix+dir+"/c~"+dir+"/k", RootPrefix+dir+"/r"
	follow(t, quiet, nil, []string{pair, root}, func(t *testing.T, n *Named) {
		p, r, changed := n.Get(pair), n.Get(root), n.Changed()
		if p == nil || r == nil || !bytes.Equal(p.Chain, one.Chain) || !bytes.Equal(p.Key, one.Key) || !bytes.Equal(r.Roots, one.Roots) {
			t.Fatalf("read %v and %v: %v", p, r, n.Problems())
		}
		put(t, dir, map[string][]byte{"c": append(two.Chain, '\n')})
		pass(4 * time.Second) // the chain may have come out a line shorter, and must then have been still
		if n.Get(pair) != p || len(n.Problems()) != 1 || n.Failures() == 0 || !strings.Contains(n.Problems()[0], "is for another key") {
			t.Errorf("half of a new pair was used: %v", n.Problems())
		}
		put(t, dir, map[string][]byte{"k": two.Key, "r": two.Roots[:len(two.Roots)-30]})
		pass(4 * time.Second) // the bundle shrank, and must have been still
		if got := n.Get(pair); !bytes.Equal(got.Chain, two.Chain) || got.Version == p.Version {
			t.Error("the new pair was not used")
		}
		if n.Get(root) != r || len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "incomplete") {
			t.Errorf("half of a bundle was used: %v", n.Problems())
		}
		select {
		case <-changed:
		default:
			t.Error("the channel of changes is not closed")
		}
		if err := os.Remove(filepath.Join(dir, "r")); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		if n.Get(root) != r {
			t.Error("the secret of a deleted file was dropped")
		}
	})
}

// TestSwappedSymlink changes a folder as Kubernetes does: a symbolic link on the path
// gets another target, and the file itself does not change.
func TestSwappedSymlink(t *testing.T) {
	dir := t.TempDir()
	one, two := identity(t, newFakeCA(t)), identity(t, newFakeCA(t))
	when := time.Now().Add(-time.Hour)
	link := func(to string) {
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	for name, roots := range map[string][]byte{"a": one.Roots, "b": two.Roots} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, name), map[string][]byte{"r": roots})
		if err := os.Chtimes(filepath.Join(dir, name, "r"), when, when); err != nil {
			t.Fatal(err)
		}
	}
	link("a")
	name := RootPrefix + dir + "/data/r"
	follow(t, quiet, nil, []string{name}, func(t *testing.T, n *Named) {
		if s := n.Get(name); s == nil || !bytes.Equal(s.Roots, one.Roots) {
			t.Fatalf("read %v: %v", s, n.Problems())
		}
		link("b")
		pass(2 * time.Second)
		if s := n.Get(name); !bytes.Equal(s.Roots, two.Roots) {
			t.Error("the swap was not seen")
		}
	})
}

func TestUnreadableFilesAreLoggedOnce(t *testing.T) {
	dir := t.TempDir()
	s := identity(t, newFakeCA(t))
	put(t, dir, map[string][]byte{"big": bytes.Repeat([]byte("x"), maxFile+1), "key": s.Key, "chain": s.Chain, "text": []byte("hello")})
	names := map[string]string{
		RootPrefix + dir + "/none":                         "read trust bundle " + dir + "/none: no such file or directory",
		RootPrefix + dir:                                   "not a regular file",
		RootPrefix + dir + "/big":                          "want at most 1048576",
		RootPrefix + dir + "/key":                          "no PEM block of a certificate",
		RootPrefix + "system":                              "none of [" + dir + "/x " + dir + "/y]",
		CertPrefix + dir + "/chain~" + dir + "/none":       "read private key " + dir + "/none: no such file",
		CertPrefix + dir + "/chain~" + dir + "/text":       "read private key " + dir + "/text: private key: found no PEM",
		CertPrefix + dir + "/text~" + dir + "/key":         "read certificate " + dir + "/text: certificates: found no PEM",
		CertPrefix + dir + "/chain~/proc/self/task/1/none": "no such file",
	}
	var keys []string
	for k := range names {
		keys = append(keys, k)
	}
	var log bytes.Buffer
	follow(t, slog.New(slog.NewTextHandler(&log, nil)), []string{dir + "/x", dir + "/y"}, keys, func(t *testing.T, n *Named) {
		pass(5 * time.Second)
		all := strings.Join(n.Problems(), "\n")
		for name, why := range names {
			if n.Get(name) != nil || !strings.Contains(all, why) {
				t.Errorf("%s: want %q in\n%s", name, why, all)
			}
			if c := strings.Count(log.String(), `name="`+name+`"`) + strings.Count(log.String(), "name="+name+" "); c != 1 {
				t.Errorf("%s was logged %d times", name, c)
			}
		}
		put(t, dir, map[string][]byte{"none": s.Roots})
		pass(2 * time.Second)
		if n.Get(RootPrefix+dir+"/none") == nil {
			t.Error("a file that came was not read")
		}
	})
	if strings.Contains(log.String(), "PRIVATE KEY") || !strings.Contains(log.String(), "correct the DestinationRule") {
		t.Errorf("log:\n%s", &log)
	}
}

func TestOnlyCertificatesOfABundleAreServed(t *testing.T) {
	dir := t.TempDir()
	s := identity(t, newFakeCA(t))
	odd := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	put(t, dir, map[string][]byte{"mixed": slices.Concat([]byte("# ours\n"), s.Roots, s.Key), "odd": slices.Concat(odd, s.Roots)})
	mixed, strict, lenient := RootPrefix+dir+"/mixed", RootPrefix+dir+"/odd", RootPrefix+"system"
	follow(t, quiet, []string{dir + "/none", dir + "/odd"}, []string{mixed, strict, lenient}, func(t *testing.T, n *Named) {
		if got := n.Get(mixed); got == nil || !bytes.Equal(got.Roots, s.Roots) {
			t.Errorf("of a bundle with a key in it: %v, %v", got, n.Problems())
		}
		if got := n.Get(lenient); got == nil || !bytes.Equal(got.Roots, s.Roots) {
			t.Errorf("the system's bundle: %v, %v", got, n.Problems())
		}
		if n.Get(strict) != nil || !strings.Contains(strings.Join(n.Problems(), ""), "certificate 1: ") {
			t.Errorf("a bundle with an unreadable certificate: %v", n.Problems())
		}
	})
}

func TestReleasedNamesAreForgotten(t *testing.T) {
	n := NewNamed(nil, filewatch.NewFollower(filewatch.FollowerOptions{}), quiet)
	one, err := n.Follow("file-root:/a")
	if err != nil {
		t.Fatal(err)
	}
	two, _ := n.Follow("file-root:/a")
	one()
	one() // idempotent
	if len(n.names) != 1 {
		t.Error("dropped while it is followed")
	}
	two()
	if len(n.names) != 0 {
		t.Error("kept after the last release")
	}
	if _, err := n.Follow("file-root:../x"); err == nil {
		t.Error("a path out of the working directory is followed")
	}
}
