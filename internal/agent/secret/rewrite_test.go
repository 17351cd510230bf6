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
)

// A bundle that is rewritten in place, certificate by certificate, must not lose a root.
func TestABundleRewrittenInPlaceKeepsItsRoots(t *testing.T) {
	dir := t.TempDir()
	one, two := identity(t, newFakeCA(t)).Roots, identity(t, newFakeCA(t)).Roots
	put(t, dir, map[string][]byte{"r": append(bytes.Clone(one), two...)})
	name := RootPrefix + dir + "/r"
	follow(t, quiet, nil, []string{name}, func(t *testing.T, n *Named) {
		both := n.Get(name)
		if both == nil || !bytes.Contains(both.Roots, two) {
			t.Fatal("the bundle was not read")
		}
		for _, text := range [][]byte{nil, one, append(bytes.Clone(one), "-----BEGIN"...)} {
			put(t, dir, map[string][]byte{"r": text})
			pass(pollFiles)
			if s := n.Get(name); s != both || len(n.Problems()) > 0 {
				t.Fatalf("half of the bundle was used: %v, problems %v", s, n.Problems())
			}
		}
		put(t, dir, map[string][]byte{"r": one})
		pass(pollFiles + filewatch.DefaultQuietPeriod + pollFiles)
		if s := n.Get(name); bytes.Contains(s.Roots, two) {
			t.Error("a root that was removed for good stays")
		}
	})
}

func TestAMountedIdentityRewrittenInPlaceKeepsItsRoots(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, more := identity(t, newFakeCA(t)), identity(t, newFakeCA(t)).Roots
		put(t, dir, map[string][]byte{"cert-chain.pem": s.Chain, "key.pem": s.Key, "root-cert.pem": append(bytes.Clone(s.Roots), more...)})
		paths := FilePaths{Chain: filepath.Join(dir, "cert-chain.pem"), Key: filepath.Join(dir, "key.pem"), Roots: filepath.Join(dir, "root-cert.pem")}
		f := NewFiles(NewValue(), paths, watcher(t), quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		both, _ := f.Current()
		for _, text := range [][]byte{nil, s.Roots} {
			put(t, dir, map[string][]byte{"root-cert.pem": text})
			pass(pollFiles)
			if now, _ := f.Current(); now != both || f.Problem() != nil {
				t.Fatalf("half of the roots were used: %v, problem %v", now, f.Problem())
			}
		}
		// Another file in its place needs no waiting.
		put(t, dir, map[string][]byte{"next": s.Roots})
		if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "root-cert.pem")); err != nil {
			t.Fatal(err)
		}
		pass(pollFiles + 100*time.Millisecond)
		if now, _ := f.Current(); now == both || bytes.Contains(now.Roots, more) {
			t.Errorf("the new file was not used: %v", f.Problem())
		}
	})
}
