package secret

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// identity returns a new secret that the CA has signed.
func identity(t *testing.T, ca *fakeCA) *pki.Secret {
	t.Helper()
	s, err := NewKeeper(NewValue(), Options{Identity: alice}, ca, quiet).renew(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// watcher runs a follower that only polls, so that it can run in a synctest bubble.
func watcher(t *testing.T) *filewatch.Follower {
	t.Helper()
	f := filewatch.NewFollower(filewatch.FollowerOptions{PollOnly: true, Poll: pollFiles})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

// pollFiles is how often the tests' follower polls.
const pollFiles = time.Second

func TestFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca := newFakeCA(t)
		one, two := identity(t, ca), identity(t, ca)
		put(t, dir, map[string][]byte{"certificates.pem": one.Chain, "private_key.pem": one.Key, "ca_certificates.pem": one.Roots})
		paths := FilePaths{Chain: filepath.Join(dir, "certificates.pem"), Key: filepath.Join(dir, "private_key.pem"), Roots: filepath.Join(dir, "ca_certificates.pem")}
		f := NewFiles(NewValue(), paths, watcher(t), quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		if s, _ := f.Current(); s == nil || s.Version != one.Version {
			t.Fatalf("read %v, %v", s, f.Problem())
		}
		put(t, dir, map[string][]byte{"certificates.pem": append(two.Chain, '\n')})
		pass(3 * time.Second)
		if s, _ := f.Current(); s.Version != one.Version || f.Problem() == nil {
			t.Errorf("half of a new pair was used: %v", f.Problem())
		}
		put(t, dir, map[string][]byte{"private_key.pem": two.Key})
		pass(3 * time.Second)
		if s, _ := f.Current(); !bytes.Equal(s.Key, two.Key) || f.Problem() != nil {
			t.Errorf("the new pair was not used: %v", f.Problem())
		}
	})
}

func TestOutputIsReplacedAtomically(t *testing.T) {
	ca := newFakeCA(t)
	o := NewOutput(filepath.Join(t.TempDir(), "out"), 0o600, nil, quiet)
	if err := os.MkdirAll(filepath.Join(o.Dir, generation+"of-a-killed-agent"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s := identity(t, ca)
		if err := o.write(s); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string][]byte{"key.pem": s.Key, "cert-chain.pem": s.Chain, "root-cert.pem": s.Roots} {
			path := filepath.Join(o.Dir, name)
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what was written last (%v)", name, err)
			}
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v", name, st.Mode())
			}
			if target, err := os.Readlink(path); err != nil || filepath.Dir(target) != current {
				t.Errorf("%s links to %q, want a path through %s", name, target, current)
			}
		}
	}
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) != 6 { // three names, the link, its folder and the one before
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestOutputFollowsTheKeeper(t *testing.T) {
	dir := t.TempDir()
	keep(t, Options{Ratio: 0.5, TTL: time.Hour}, func(t *testing.T, k *Keeper, _ *fakeCA) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- NewOutput(dir, 0o644, k, quiet).Run(ctx) }()
		defer func() { cancel(); <-done }()
		for range 3 {
			pass(35 * time.Minute)
			s, _ := k.Current()
			if got, _ := os.ReadFile(filepath.Join(dir, "cert-chain.pem")); !bytes.Equal(got, s.Chain) {
				t.Error("the folder does not hold the current certificate")
			}
		}
	})
}
