package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// readGeneration reads the three files as a program does that must have files that match: it resolves the link once.
func readGeneration(dir string) (key, chain, roots []byte, err error) {
	target, err := os.Readlink(filepath.Join(dir, current))
	if err != nil {
		return nil, nil, nil, err
	}
	var out [3][]byte
	for i, name := range []string{"key.pem", "cert-chain.pem", "root-cert.pem"} {
		if out[i], err = os.ReadFile(filepath.Join(dir, target, name)); err != nil {
			return nil, nil, nil, err
		}
	}
	return out[0], out[1], out[2], nil
}

// TestReadersOfTheOutputGetFilesThatMatch replaces the files 1,000 times beside a reader.
func TestReadersOfTheOutputGetFilesThatMatch(t *testing.T) {
	const swaps = 1000
	var all []*pki.Secret
	versions := map[string]bool{}
	for range 10 { // with different roots
		s := identity(t, newFakeCA(t))
		all = append(all, s)
		versions[pki.VersionOf(s.Key, s.Chain, s.Roots)] = true
	}
	o := NewOutput(t.TempDir(), 0o600, nil, quiet)
	if err := o.write(all[0]); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	type result struct {
		reads int
		err   error
	}
	read := make(chan result, 1)
	go func() {
		var r result
		for {
			key, chain, roots, err := readGeneration(o.Dir)
			switch {
			case errors.Is(err, fs.ErrNotExist): // two replacements within one reading
			case err != nil:
				r.err = err
			case !versions[pki.VersionOf(key, chain, roots)]:
				r.err = errors.New("files of different secrets")
			default:
				r.reads++
			}
			select {
			case <-done:
				if r.reads > 0 || r.err != nil {
					read <- r
					return
				}
			default:
			}
			// A program that opens the files by their names always finds each of them.
			for _, name := range []string{"key.pem", "cert-chain.pem", "root-cert.pem"} {
				if _, err := os.Lstat(filepath.Join(o.Dir, name)); err != nil {
					r.err = err
				}
			}
		}
	}()
	for i := range swaps {
		if err := o.write(all[i%len(all)]); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	r := <-read
	if r.err != nil {
		t.Error(r.err)
	}
	t.Logf("%d swaps, %d readings", swaps, r.reads)
}

// TestOutputFollowsNoLinks: in a folder that other users may write to, links of theirs lead nowhere.
func TestOutputFollowsNoLinks(t *testing.T) {
	s := identity(t, newFakeCA(t))
	o := NewOutput(t.TempDir(), 0o600, nil, quiet)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"key.pem", "key.pem.new", "cert-chain.pem", "root-cert.pem", "root-cert.pem.new", current, current + ".new"} {
		if err := os.Symlink(victim, filepath.Join(o.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.write(s); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "kept" {
		t.Errorf("the link's target holds %q, error %v", text, err)
	}
	if key, _, _, err := readGeneration(o.Dir); err != nil || !bytes.Equal(key, s.Key) {
		t.Errorf("the key was not written: %v", err)
	}
}

// TestOutputIsTriedAgain: a folder that cannot be written harms nothing, and is written when it can be.
func TestOutputIsTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in place of the folder
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		v := NewValue()
		s := identity(t, newFakeCA(t))
		o := NewOutput(dir, 0o600, v, quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- o.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		select {
		case <-o.Tried():
			t.Error("tried without a secret")
		default:
		}
		v.publish(s)
		<-o.Tried()
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		pass(2 * outputRetry)
		if key, _, _, err := readGeneration(dir); err != nil || !bytes.Equal(key, s.Key) {
			t.Errorf("the key was not written: %v", err)
		}
	})
}

func TestTried(t *testing.T) {
	for what, try := range map[string]func(*Value){
		"a secret": func(v *Value) { v.publish(identity(t, newFakeCA(t))) },
		"an error": func(v *Value) { v.fail(fmt.Errorf("none")) },
	} {
		v := NewValue()
		select {
		case <-v.Tried():
			t.Error("tried at the start")
		default:
		}
		for range 2 {
			try(v)
			select {
			case <-v.Tried():
			default:
				t.Errorf("%s: not tried", what)
			}
		}
	}
}
