package secret

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// memory mounts a tmpfs for one test, which needs root.
func memory(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func openCopy(t *testing.T, dir, keyFile string) *Copy {
	t.Helper()
	c, err := OpenCopy(CopyOptions{Dir: dir, KeyFile: keyFile, Log: quiet})
	if err != nil || c == nil {
		t.Fatalf("OpenCopy: %v, %v", c, err)
	}
	return c
}

// valid is a copy of what the CA has just signed.
func valid(t *testing.T, ca *fakeCA, ttl time.Duration) saved {
	t.Helper()
	s, err := NewKeeper(NewValue(), Options{Identity: alice, TTL: ttl}, ca, quiet).renew(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return saved{Source: "ca:1", Received: time.Now(), Key: s.Key, Chain: s.Chain, Roots: s.Roots}
}

// expired is a copy of what the CA signed long ago.
func expired(t *testing.T, ca *fakeCA) saved {
	t.Helper()
	key, err := pki.GenerateKey("")
	must(t, err)
	leaf, err := ca.leaf(key.Public(), pki.Validity{NotBefore: time.Now().Add(-30 * time.Minute), NotAfter: time.Now().Add(-time.Minute)})
	must(t, err)
	text, err := pki.EncodeKey(key, false)
	must(t, err)
	return saved{Source: "ca:1", Received: time.Now().Add(-time.Hour), Key: text, Chain: pki.EncodeCerts(leaf), Roots: pki.EncodeCerts(ca.root)}
}

func TestARestartedKeeperServesTheCopyWhileTheCAIsAway(t *testing.T) {
	dir := memory(t, "size=1m")
	synctest.Test(t, func(t *testing.T) {
		ca := newFakeCA(t)
		start := func(kind pki.KeyKind) (k *Keeper, stop func()) {
			o := Options{Identity: alice, KeyKind: kind, TTL: 24 * time.Hour, Ratio: 0.5, Source: "ca:1", Copy: openCopy(t, dir, "")}
			k = NewKeeper(NewValue(), o, ca, quiet)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- k.Run(ctx) }()
			synctest.Wait()
			return k, func() { cancel(); <-done }
		}
		k, stop := start("")
		first, _ := k.Current()
		if first == nil || k.State().Restored {
			t.Fatalf("no certificate from the CA: %v", k.Problem())
		}
		stop()
		ca.setFail(errDown)

		// Within the gap after a success nothing is requested: an agent that crashes again and again is no storm.
		pass(time.Hour)
		k, stop = start("")
		if s, _ := k.Current(); s == nil || s.Version != first.Version || !k.State().Restored || len(ca.calls()) != 1 {
			t.Fatalf("the copy is not served: %v, state %+v, %d requests", s, k.State(), len(ca.calls()))
		}
		pass(13 * time.Minute)
		if len(ca.calls()) < 2 {
			t.Error("no renewal after the gap")
		}
		stop()

		// After it, the renewal is due at once, and the copy serves until it succeeds.
		pass(12 * time.Hour)
		k, stop = start("")
		pass(time.Hour)
		if s, _ := k.Current(); s == nil || s.Version != first.Version || k.Problem() == nil {
			t.Errorf("past the renewal: %v, %v", s, k.Problem())
		}
		ca.setFail(nil)
		pass(5 * time.Minute)
		second, _ := k.Current()
		if second.Version == first.Version || k.State().Restored {
			t.Error("not renewed when the CA was back")
		}
		stop()

		// Another kind of key is requested without the gap.
		k, stop = start(pki.ECDSAP384)
		pass(time.Second)
		s, _ := k.Current()
		key, err := pki.ParseKey(s.Key)
		if err != nil || pki.KindOf(key) != pki.ECDSAP384 {
			t.Errorf("the key has kind %q, %v", pki.KindOf(key), err)
		}
		stop()
	})
}

// What cannot be trusted or used is told and ignored; the certificate then comes from the CA.
func TestUnusableCopies(t *testing.T) {
	dir := memory(t, "size=1m")
	ca := newFakeCA(t)
	bob := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "bob"}
	path := filepath.Join(dir, copyName)
	ok := valid(t, ca, time.Hour)
	put := func(s saved) {
		openCopy(t, dir, "").save(s)
	}
	for name, tt := range map[string]struct {
		write   func()
		options Options
		why     string
	}{
		"another CA":         {func() { put(ok) }, Options{Identity: alice, Source: "ca:2"}, "from the CA ca:1, not from ca:2"},
		"another workload":   {func() { put(ok) }, Options{Identity: bob, Source: "ca:1"}, "not of spiffe://cluster.local/ns/shop/sa/bob"},
		"expired":            {func() { put(expired(t, ca)) }, Options{Identity: alice, Source: "ca:1"}, "expired"},
		"key of another":     {func() { s := valid(t, ca, time.Hour); s.Key = ok.Key; put(s) }, Options{Identity: alice, Source: "ca:1"}, "does not match the private key"},
		"readable by others": {func() { put(ok); chmod(t, path, 0o640) }, Options{Identity: alice, Source: "ca:1"}, "mode 0640, want 0600"},
		"owned by others":    {func() { put(ok); chown(t, path, 1) }, Options{Identity: alice, Source: "ca:1"}, "owned by another user"},
		"not JSON":           {func() { put(ok); rewrite(t, path, []byte("PRIVATE")) }, Options{Identity: alice, Source: "ca:1"}, "invalid content"},
		"a link":             {func() { put(ok); link(t, path) }, Options{Identity: alice, Source: "ca:1"}, "too many levels of symbolic links"},
		"a pipe":             {func() { pipe(t, path) }, Options{Identity: alice, Source: "ca:1"}, "not a regular file"},
		"too large":          {func() { put(ok); chmod(t, path, 0o600); truncate(t, path, maxCopy+1) }, Options{Identity: alice, Source: "ca:1"}, "want at most"},
		"encrypted, no key":  {func() { put(ok); rewrite(t, path, []byte(sealedPrefix+"x")) }, Options{Identity: alice, Source: "ca:1"}, "invalid content"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			tt.write()
			var log lines
			tt.options.Copy = openCopy(t, dir, "")
			k := NewKeeper(NewValue(), tt.options, ca, log.logger())
			if held := k.restore(); held != nil {
				t.Error("it is used")
			}
			if s, _ := k.Current(); s != nil || !strings.Contains(log.String(), tt.why) {
				t.Errorf("want a reason with %q: %s", tt.why, log.String())
			}
			if strings.Contains(log.String(), "PRIVATE") {
				t.Errorf("the log quotes the copy: %s", log.String())
			}
		})
	}
}

// A full disk is told once and costs nothing but the copy.
func TestAFullDiskHarmsNothing(t *testing.T) {
	dir := memory(t, "size=64k")
	var log lines
	copies, err := OpenCopy(CopyOptions{Dir: dir, Log: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	ca := newFakeCA(t)
	old := valid(t, ca, time.Hour)
	copies.save(old)
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	k := NewKeeper(NewValue(), Options{Identity: alice, TTL: time.Hour, Source: "ca:1", Copy: copies}, ca, log.logger())
	for range 2 {
		k.request(t.Context(), schedule{}, k.clock())
	}
	if s, _ := k.Current(); s == nil || k.Problem() != nil {
		t.Errorf("no certificate: %v", k.Problem())
	}
	if _, problem := copies.State(); !errors.Is(problem, unix.ENOSPC) || strings.Count(log.String(), "no space left") != 1 {
		t.Errorf("problem %v; log: %s", problem, log.String())
	}
	if s, err := copies.load(); err != nil || !bytes.Equal(s.Key, old.Key) {
		t.Errorf("the old copy is lost: %v", err)
	}
}

func TestACopyOnADiskIsEncrypted(t *testing.T) {
	disk, other := t.TempDir(), memory(t, "size=1m")
	if in, err := inMemory(disk); err != nil || in {
		disk = onDisk(t)
	}
	keyFile := filepath.Join(other, "key")
	ca := newFakeCA(t)
	s := valid(t, ca, time.Hour)

	if c, err := OpenCopy(CopyOptions{Dir: disk, Log: quiet}); err == nil || c != nil || !strings.Contains(err.Error(), "no key to encrypt") {
		t.Errorf("a plain copy on a disk: %v, %v", c, err)
	}
	if c, err := OpenCopy(CopyOptions{Dir: disk, Optional: true, Log: quiet}); err != nil || c != nil {
		t.Errorf("the same, optional: %v, %v", c, err)
	}
	if c, err := OpenCopy(CopyOptions{Dir: disk, KeyFile: filepath.Join(disk, "key"), Log: quiet}); err == nil || c != nil || !strings.Contains(err.Error(), "on the same volume") {
		t.Errorf("the key beside the copy: %v, %v", c, err)
	}

	openCopy(t, disk, keyFile).save(s)
	text, err := os.ReadFile(filepath.Join(disk, copyName))
	if err != nil || !bytes.HasPrefix(text, []byte(sealedPrefix)) || bytes.Contains(text, []byte("source")) || bytes.Contains(text, []byte("LS0t")) {
		t.Fatalf("not encrypted: %.80q, %v", text, err)
	}
	for path, want := range map[string]os.FileMode{keyFile: 0o600, filepath.Join(disk, copyName): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	if got, err := openCopy(t, disk, keyFile).load(); err != nil || !bytes.Equal(got.Key, s.Key) || got.Source != s.Source {
		t.Errorf("read again: %v", err)
	}
	text[len(text)-1] ^= 1
	rewrite(t, filepath.Join(disk, copyName), text)
	if _, err := openCopy(t, disk, keyFile).load(); err == nil {
		t.Error("a changed copy is used")
	}
	openCopy(t, disk, keyFile).save(s)
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	if _, err := openCopy(t, disk, keyFile).load(); err == nil || !strings.Contains(err.Error(), "not encrypted with this key") {
		t.Errorf("with another key: %v", err)
	}
	rewrite(t, keyFile, []byte("short"))
	if c, err := OpenCopy(CopyOptions{Dir: disk, KeyFile: keyFile, Log: quiet}); err != nil || c != nil {
		t.Errorf("with a key of five bytes: %v, %v", c, err)
	}
	chmod(t, keyFile, 0o644)
	if c, err := OpenCopy(CopyOptions{Dir: disk, KeyFile: keyFile, Log: quiet}); err != nil || c != nil {
		t.Errorf("with a key that others can read: %v, %v", c, err)
	}
}

// onDisk is a folder that is not in memory, on machines whose temporary folder is.
func onDisk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "copy-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) { t.Helper(); must(t, os.Chmod(path, mode)) }

func chown(t *testing.T, path string, uid int) { t.Helper(); must(t, os.Chown(path, uid, -1)) }

func truncate(t *testing.T, path string, size int64) { t.Helper(); must(t, os.Truncate(path, size)) }

func rewrite(t *testing.T, path string, text []byte) {
	t.Helper()
	must(t, os.WriteFile(path, text, 0o600))
}

func pipe(t *testing.T, path string) { t.Helper(); must(t, unix.Mkfifo(path, 0o600)) }

// link moves a file and puts a link in its place.
func link(t *testing.T, path string) {
	t.Helper()
	must(t, os.Rename(path, path+"-target"))
	must(t, os.Symlink(path+"-target", path))
}
