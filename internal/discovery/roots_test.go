package discovery

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Links and pipes where the trust bundle is written are replaced: not followed, and not waited for.
func TestTheTrustBundleIsWrittenToAFileOfItsOwn(t *testing.T) {
	target := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(dir string) error{
		"a link at the temporary path of older releases": func(dir string) error { return os.Symlink(target, filepath.Join(dir, rootsFile+".new")) },
		"a link at the path":                             func(dir string) error { return os.Symlink(target, filepath.Join(dir, rootsFile)) },
		"a pipe at the path":                             func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, rootsFile), 0o600) },
	} {
		dir := t.TempDir()
		if err := plant(dir); err != nil {
			t.Fatal(err)
		}
		p := start(t, func(o *Options) { o.StateDir = dir })
		path := filepath.Join(dir, rootsFile)
		if fi, err := os.Lstat(path); err != nil || fi.Mode() != 0o644 {
			t.Errorf("%s: %s: %v, %v, want a file of mode 0644", name, path, fi.Mode(), err)
		}
		if got, want := p.root(), string(p.server.authority.State().RootsPEM()); got != want {
			t.Errorf("%s: the file does not have the trust bundle", name)
		}
		if got, err := os.ReadFile(target); err != nil || string(got) != "precious" {
			t.Errorf("%s: the link's target holds %q, %v", name, got, err)
		}
	}
}

func TestTheTrustBundleIsWrittenWhenItChanges(t *testing.T) {
	p := start(t)
	next, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	authority := p.server.authority
	if err := authority.Replace(authority.State().Issuer, []*x509.Certificate{next.Root()}); err != nil {
		t.Fatal(err)
	}
	want := string(authority.State().RootsPEM())
	wait.Until(t, "the file has both roots", func() bool { return p.root() == want })
}
