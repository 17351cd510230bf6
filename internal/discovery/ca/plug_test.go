package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// newFiles makes a CA as it is read from files: a root that signs, and further roots.
func newFiles(t *testing.T, name string, further ...*x509.Certificate) policy.Plugged {
	t.Helper()
	issuer, err := policy.NewRoot(name, "", pki.Validity{NotBefore: time.Now().Add(-Backdate), NotAfter: time.Now().Add(1000 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return policy.Plugged{Issuer: issuer, Roots: pki.Normalize(append(slices.Clone(further), issuer.Root()))}
}

func idOf(p policy.Plugged) string { return pki.Fingerprint(p.Issuer.Root()) }

// slowPoll is for instances that are alone, and need not report often.
const slowPoll = 5 * time.Minute

func with(p *policy.Plugged) func(*RotatorOptions) {
	return func(o *RotatorOptions) { o.Plugged, o.Poll = p, slowPoll }
}

func (in *instance) plug(p policy.Plugged) {
	in.t.Helper()
	if err := in.Plug(in.t.Context(), p); err != nil {
		in.t.Fatal(err)
	}
}

// A CA is plugged in while the self-signed root signs: the same overlap as of a rotation.
func TestAPluggedInRootWaitsForAcknowledgements(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, with(nil))
		old := in.signer()
		leaf := in.issue(time.Hour)
		in.setWaiting("a")
		files := newFiles(t, "plugged")
		in.plug(files)
		in.expect("plugged in", rotation.Distributing, 2, old, old)
		if got := in.Status(); !got.PluggedIn || got.Phase != rotation.Distributing || !strings.Contains(got.Why, "files have been replaced") {
			t.Errorf("status %+v", got)
		}
		if err := in.Rotate(t.Context()); !errors.Is(err, rotation.ErrInProgress) {
			t.Errorf("another rotation: %v", err)
		}
		in.setWaiting()
		later(slowPoll)
		in.expect("acknowledged for a short time", rotation.Distributing, 2, old, old)
		later(rotation.HoldFiles + slowPoll)
		in.expect("acknowledged", rotation.Overlap, 2, idOf(files), old)
		in.issue(time.Hour)
		in.verify(leaf, string(in.authority.State().RootsPEM()))
		if err := in.Rotate(t.Context()); !errors.Is(err, rotation.ErrPlugged) {
			t.Errorf("a rotation on request: %v", err)
		}
		later(75 * time.Minute)
		in.expect("the last leaf of the old root has ended", rotation.Stable, 1, idOf(files), idOf(files))
		if _, err := os.Stat(filepath.Join(dir, rootFolder)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the key of the old root is kept: %v", err)
		}
		in.issue(time.Hour)
		in.stop()
	})
}

func TestAPluggedInRootWaitsForLeaves(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		a, b := newFiles(t, "a"), newFiles(t, "b")
		in := startInstance(t, dir, with(&a))
		in.expect("at first", rotation.Stable, 1, idOf(a), idOf(a))
		in.setWaiting("x")
		leaf := in.issue(time.Hour)
		in.plug(b)
		later(time.Until(leaf.NotAfter) - time.Minute)
		in.expect("before the leaf ends", rotation.Distributing, 2, idOf(a), idOf(a))
		in.issue(time.Hour)
		later(10*time.Minute + slowPoll)
		in.expect("after it has ended", rotation.Overlap, 2, idOf(b), idOf(a))
		in.issue(time.Hour)
		in.plug(a)
		in.expect("back", rotation.Overlap, 2, idOf(a), idOf(b))
		in.stop()
	})
}

// The files are replaced while the control plane is not running. It does not have the old key, so the new root signs at
// once; the old one is trusted until its last leaf has ended, whatever restarts there are.
func TestFilesReplacedWhileTheControlPlaneIsDown(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		a, b := newFiles(t, "a"), newFiles(t, "b")
		in := startInstance(t, dir, with(&a))
		leaf := in.issue(time.Hour)
		in.stop()
		for range 3 {
			in = startInstance(t, dir, with(&b))
			in.expect("with other files", rotation.Overlap, 2, idOf(b), idOf(b))
			in.issue(time.Hour)
			in.verify(leaf, string(in.authority.State().RootsPEM()))
			later(10 * time.Minute)
			in.stop()
		}
		later(time.Until(leaf.NotAfter) - time.Minute)
		in = startInstance(t, dir, with(&b))
		in.expect("a minute before the last leaf ends", rotation.Overlap, 2, idOf(b), idOf(b))
		later(10*time.Minute + slowPoll)
		in.expect("the last leaf has ended", rotation.Stable, 1, idOf(b), idOf(b))
		in.stop()
	})
}

// A self-signed root goes on after a restart, since its key is in the state folder.
func TestFilesOfTheFirstCAWhileTheControlPlaneIsDown(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, with(nil))
		old := in.signer()
		leaf := in.issue(time.Hour)
		in.stop()
		files := newFiles(t, "plugged")
		in = startInstance(t, dir, with(&files))
		in.setWaiting("x")
		in.expect("plugged in", rotation.Distributing, 2, old, old)
		later(10 * time.Minute)
		in.expect("not acknowledged", rotation.Distributing, 2, old, old)
		in.stop()
		in = startInstance(t, dir, with(nil))
		in.expect("without files again", rotation.Stable, 1, old, old)
		in.stop()
		in = startInstance(t, dir, with(&files))
		in.setWaiting("x")
		later(time.Until(leaf.NotAfter) + 10*time.Minute + slowPoll)
		in.expect("the leaf has ended", rotation.Stable, 1, idOf(files), idOf(files))
		in.issue(time.Hour)
		in.stop()
		in = startInstance(t, dir, with(nil)) // there is no self-signed root any more
		s := in.Status()
		if s.Phase != rotation.Overlap || len(s.Roots) != 2 || s.Roots[0].SHA256 == idOf(files) || s.Roots[1].SHA256 != idOf(files) || s.PluggedIn {
			t.Errorf("without files: %+v", s)
		}
		in.issue(time.Hour)
		in.stop()
	})
}

// The root that signed before the state had plugged-in CAs is trusted for a lifetime.
func TestASelfSignedRootFromBeforeThePluggedInCA(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		open(t, dir)
		files := newFiles(t, "plugged")
		in := startInstance(t, dir, func(o *RotatorOptions) { o.Plugged, o.Poll, o.TTL = &files, slowPoll, time.Hour })
		self, err := readRoot(filepath.Join(dir, rootFolder), false)
		if err != nil {
			t.Fatal(err)
		}
		issuer, err := self.issuer(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		in.expect("at first", rotation.Overlap, 2, idOf(files), pki.Fingerprint(issuer.Root()))
		later(time.Hour + slowPoll)
		in.expect("after a lifetime", rotation.Stable, 1, idOf(files), idOf(files))
		in.stop()
	})
}

// Two instances with one folder, of which one gets the files later: it distributes the new root, and goes on signing with the old one until it has
// the key, which extends the old one's trust.
func TestFilesReachOneOfTwoInstancesLater(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		a, b := startInstance(t, dir, nil), startInstance(t, dir, nil)
		old := a.signer()
		a.issue(30 * time.Minute)
		files := newFiles(t, "plugged")
		b.setWaiting("x")
		a.plug(files)
		later(rotation.HoldFiles + 4*poll)
		b.expect("the other distributes it", rotation.Distributing, 2, old, old)
		b.setWaiting()
		later(rotation.HoldFiles + 4*poll)
		a.expect("acknowledged", rotation.Overlap, 2, idOf(files), old)
		synctest.Wait()
		if got := pki.Fingerprint(b.authority.State().Issuer.Root()); got != old {
			t.Errorf("without the key, %.8s signs, want %.8s", got, old)
		}
		if got := b.Status().Problem; !strings.Contains(got, "replace the files of its CA too") {
			t.Errorf("problem %q", got)
		}
		leaf := b.issue(40 * time.Minute)
		later(35 * time.Minute)
		a.verify(leaf, string(a.authority.State().RootsPEM()))
		b.plug(files)
		b.expect("with the files", rotation.Overlap, 2, idOf(files), old)
		if got := b.Status().Problem; got != "" {
			t.Errorf("problem %q", got)
		}
		later(15 * time.Minute)
		a.expect("at the end", rotation.Stable, 1, idOf(files), idOf(files))
		b.expect("at the end", rotation.Stable, 1, idOf(files), idOf(files))
		a.stop()
		b.stop()
	})
}

// A root that was added to the files a lifetime before it signs is not waited for again, and one that is removed is not trusted.
func TestRootsOfTheFiles(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		a, b := newFiles(t, "a"), newFiles(t, "b")
		in := startInstance(t, dir, with(&a))
		in.setWaiting("x")
		in.issue(time.Hour)
		both := policy.Plugged{Issuer: a.Issuer, Roots: pki.Normalize([]*x509.Certificate{a.Issuer.Root(), b.Issuer.Root()})}
		in.plug(both)
		in.expect("added", rotation.Stable, 2, idOf(a), idOf(a))
		if roles := in.Status().Roots; roles[1].Role != "file" || roles[1].SHA256 != idOf(b) {
			t.Errorf("roots %+v", roles)
		}
		later(90 * time.Minute)
		in.issue(time.Hour)
		in.stop()
		in = startInstance(t, dir, with(&both))
		in.setWaiting("x")
		in.plug(b)
		later(2 * slowPoll)
		in.expect("signs", rotation.Overlap, 2, idOf(b), idOf(a))
		in.issue(time.Hour)
		in.plug(both)
		in.expect("back", rotation.Overlap, 2, idOf(a), idOf(b))
		in.plug(a)
		later(2 * time.Hour)
		in.expect("removed", rotation.Stable, 1, idOf(a), idOf(a))
		in.stop()
	})
}

// Too many roots for the rotation are a problem that time removes; too many in the files are refused.
func TestTooManyPluggedInRoots(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, with(nil))
		for range rotation.MaxTrusted - 1 {
			in.issue(3 * time.Hour)
			in.plug(newFiles(t, "next"))
			later(rotation.HoldFiles + 2*slowPoll)
		}
		in.issue(3 * time.Hour)
		before := in.signer()
		last := newFiles(t, "last")
		in.plug(last)
		if got := in.Status(); !strings.Contains(got.Problem, "8 roots are trusted, the maximum") || got.Roots[0].SHA256 != before || len(got.Roots) != rotation.MaxTrusted {
			t.Errorf("%d roots, problem %q", len(got.Roots), got.Problem)
		}
		later(4 * time.Hour)
		if got := in.Status(); got.Problem != "" || got.Roots[0].SHA256 != idOf(last) {
			t.Errorf("later: problem %q, %.8s signs, want %.8s", got.Problem, got.Roots[0].SHA256, idOf(last))
		}
		var many []*x509.Certificate
		for range maxRoots - rotation.MaxTrusted {
			many = append(many, newFiles(t, "many").Issuer.Root())
		}
		if err := in.Plug(t.Context(), newFiles(t, "many", many...)); err == nil || !strings.Contains(err.Error(), "57 roots, want at most 56") {
			t.Errorf("many roots in the files: %v", err)
		}
		in.stop()
	})
}

// The folders of roots are not taken for those of a CA whose state was lost.
func TestPluggedInWithoutTheStateOfARotation(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	files := newFiles(t, "plugged")
	a, err := NewAuthority(files.Issuer)
	if err != nil {
		t.Fatal(err)
	}
	o := RotatorOptions{Store: NewFolder(dir), Plugged: &files, Log: slog.New(slog.DiscardHandler)}
	if _, err := OpenRotator(t.Context(), a, o); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, rotationFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRotator(t.Context(), a, o); err == nil || !strings.Contains(err.Error(), "which says which of them signs: restore it from a copy") {
		t.Errorf("without the state: %v", err)
	}
}

// interruptedStore is a Store that calls a function once, after a change.
type interruptedStore struct {
	Store
	mu   sync.Mutex
	then func()
}

func (s *interruptedStore) Change(ctx context.Context, f func(rotation.State, bool) (*StoreChange, error)) error {
	err := s.Store.Change(ctx, f)
	s.mu.Lock()
	then := s.then
	s.then = nil
	s.mu.Unlock()
	if then != nil {
		then()
	}
	return err
}

// Files that are replaced again while the first change is stored are not lost.
func TestFilesReplacedDuringALook(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		store := &interruptedStore{Store: NewFolder(dir)}
		in := startInstance(t, dir, func(o *RotatorOptions) { o.Store, o.Poll = store, slowPoll })
		in.setWaiting("x")
		in.issue(time.Hour)
		first, second := newFiles(t, "first"), newFiles(t, "second")
		store.mu.Lock()
		store.then = func() {
			if err := in.setFiles(second); err != nil {
				t.Error(err)
			}
		}
		store.mu.Unlock()
		in.plug(first)
		later(2 * slowPoll)
		if got := in.Status(); len(got.Roots) != 2 || got.Roots[1].SHA256 != idOf(second) || got.Roots[1].Role != "next" {
			t.Errorf("%+v; want %.8s to be next", got.Roots, idOf(second))
		}
		in.stop()
	})
}
