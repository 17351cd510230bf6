package secret

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// TestFilesThatAppearLaterAreUsed: the first complete candidate takes over from the CA, and keeps the certificate.
func TestFilesThatAppearLaterAreUsed(t *testing.T) {
	dir := t.TempDir()
	in := func(folder string) FilePaths {
		return FilePaths{Chain: filepath.Join(dir, folder, "cert-chain.pem"), Key: filepath.Join(dir, folder, "key.pem"), Roots: filepath.Join(dir, folder, "root-cert.pem")}
	}
	synctest.Test(t, func(t *testing.T) {
		ca := newFakeCA(t)
		first, second, other := identity(t, ca), identity(t, ca), identity(t, ca)
		v := NewValue()
		ended := make(chan struct{})
		fromCA := func(ctx context.Context) error {
			v.publish(other)
			<-ctx.Done()
			close(ended)
			return nil
		}
		s := NewSources(v, []FilePaths{in("one"), in("two")}, fromCA, watcher(t), quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		expect := func(what string, want *pki.Secret) {
			t.Helper()
			pass(5 * time.Second)
			if got, _ := v.Current(); got == nil || got.Version != want.Version {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		expect("no files", other)
		if err := os.Mkdir(filepath.Join(dir, "two"), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, "two"), map[string][]byte{"cert-chain.pem": first.Chain, "key.pem": first.Key})
		expect("two of three files", other)
		put(t, filepath.Join(dir, "two"), map[string][]byte{"root-cert.pem": first.Roots, "key.pem": second.Key})
		expect("files that do not match", other)
		select {
		case <-ended:
			t.Error("the CA is not asked any more, although the files cannot be used")
		default:
		}
		put(t, filepath.Join(dir, "two"), map[string][]byte{"key.pem": first.Key})
		expect("three files", first)
		<-ended
		// What has the certificate keeps it: neither another folder nor the removal of the files changes it.
		if err := os.Mkdir(filepath.Join(dir, "one"), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, "one"), map[string][]byte{"cert-chain.pem": second.Chain, "key.pem": second.Key, "root-cert.pem": second.Roots})
		expect("files of an earlier candidate", first)
		if err := os.RemoveAll(filepath.Join(dir, "two")); err != nil {
			t.Fatal(err)
		}
		expect("files that were removed", first)
	})
}

func TestTheEndOfTheOtherSourceEndsSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSources(NewValue(), nil, func(context.Context) error { return errDown }, watcher(t), quiet)
		if err := s.Run(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("%v, want %v", err, errDown)
		}
	})
}

// TestEveryWayOfReplacingFilesIsFound: the ways in which platforms and programs replace a mounted identity.
func TestEveryWayOfReplacingFilesIsFound(t *testing.T) {
	names := func(s *pki.Secret) map[string][]byte {
		return map[string][]byte{"cert-chain.pem": s.Chain, "key.pem": s.Key, "root-cert.pem": s.Roots}
	}
	inPlace := func(t *testing.T, dir string, s *pki.Secret) {
		// Longer than before, as a file that shrinks in place is waited for.
		files := names(s)
		for name := range files {
			files[name] = append(bytes.Clone(files[name]), bytes.Repeat([]byte("\n"), 100)...)
		}
		put(t, dir, files)
	}
	renamed := func(t *testing.T, dir string, s *pki.Secret) {
		for name, text := range names(s) {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.WriteFile(path+".next", text, 0o600), os.Rename(path+".next", path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	swapped := func(t *testing.T, dir string, s *pki.Secret) {
		next := filepath.Join(dir, "..version-"+s.Version)
		if err := os.MkdirAll(next, 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, next, names(s))
		data := filepath.Join(dir, "..data")
		if err := errors.Join(os.Symlink(filepath.Base(next), data+"_tmp"), os.Rename(data+"_tmp", data)); err != nil {
			t.Fatal(err)
		}
		for name := range names(s) {
			path := filepath.Join(dir, name)
			_ = os.Remove(path)
			if err := os.Symlink(filepath.Join("..data", name), path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for how, replace := range map[string]func(t *testing.T, dir string, s *pki.Secret){
		"in place": inPlace, "by rename": renamed, "by a swap of a symbolic link": swapped,
		"folder replaced": func(t *testing.T, dir string, s *pki.Secret) {
			if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
				t.Fatal(err)
			}
			put(t, dir, names(s))
		},
	} {
		for _, twice := range []bool{false, true} {
			name := how
			if twice {
				name += ", twice within a debounce"
			}
			t.Run(name, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "certs")
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				synctest.Test(t, func(t *testing.T) {
					ca := newFakeCA(t)
					replace(t, dir, identity(t, ca))
					paths := FilePaths{Chain: filepath.Join(dir, "cert-chain.pem"), Key: filepath.Join(dir, "key.pem"), Roots: filepath.Join(dir, "root-cert.pem")}
					f := NewFiles(NewValue(), paths, watcher(t), quiet)
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error)
					go func() { done <- f.Run(ctx) }()
					defer func() { cancel(); <-done }()
					for range 3 {
						pass(5 * time.Second)
						if twice {
							replace(t, dir, identity(t, ca))
							pass(10 * time.Millisecond)
						}
						next := identity(t, ca)
						replace(t, dir, next)
						pass(5 * time.Second)
						if got, _ := f.Current(); got == nil || !bytes.Equal(got.Chain, next.Chain) || f.Problem() != nil {
							t.Errorf("the new files are not used: %v", f.Problem())
						}
					}
				})
			})
		}
	}
}
