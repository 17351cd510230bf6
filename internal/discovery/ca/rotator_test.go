package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// instance is an instance of the control plane, with the proxies that it waits for.
type instance struct {
	t *testing.T
	*Rotator
	server *Server
	stop   func()

	mu          sync.Mutex
	waiting     []string
	distributed []*x509.Certificate
}

// poll is longer than by default, for the tests to look less often.
const poll = 20 * time.Second

// startInstance starts an instance with a state folder.
func startInstance(t *testing.T, dir string, change func(*RotatorOptions)) *instance {
	t.Helper()
	in := &instance{t: t}
	o := RotatorOptions{
		Store: NewFolder(dir), Organization: "cluster.local", RootTTL: 1000 * time.Hour, TTL: 24 * time.Hour, MaxTTL: 48 * time.Hour, Interval: time.Hour, Poll: poll,
		Policy: rotation.Policy{Share: 0.2, Margin: 72 * time.Hour}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Distribute: func(roots []*x509.Certificate) {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.distributed = roots
		},
		Proxies: func() (int, []string) {
			in.mu.Lock()
			defer in.mu.Unlock()
			return 3, in.waiting
		},
	}
	if change != nil {
		change(&o)
	}
	var a *Authority
	var err error
	if o.Plugged != nil {
		a, err = NewAuthority(o.Plugged.Issuer, o.Plugged.Roots...)
	} else {
		a, err = OpenRoot(dir, "cluster.local", o.RootTTL, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	if in.Rotator, err = OpenRotator(t.Context(), a, o); err != nil {
		t.Fatal(err)
	}
	in.server = New(a, anybody{}, policy.Limits{}, o.Log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	in.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return in
}

func (in *instance) setWaiting(names ...string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waiting = names
}

// issue issues a leaf and checks that it verifies with what comes with it.
func (in *instance) issue(ttl time.Duration) *x509.Certificate {
	in.t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		in.t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, workload)
	if err != nil {
		in.t.Fatal(err)
	}
	chain, err := in.server.issue(in.t.Context(), nil, policy.Request{Caller: workload, CSR: csr, TTL: ttl})
	if err != nil {
		in.t.Fatal(err)
	}
	leaf, err := pki.ParseBundle([]byte(chain[0]))
	if err != nil {
		in.t.Fatal(err)
	}
	in.verify(leaf[0], chain[len(chain)-1])
	return leaf[0]
}

func (in *instance) verify(leaf *x509.Certificate, roots string) {
	in.t.Helper()
	trusted, err := pki.ParseBundle([]byte(roots))
	if err != nil {
		in.t.Fatal(err)
	}
	if err := pki.VerifyChain([]*x509.Certificate{leaf}, trusted, x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
		in.t.Error(err)
	}
}

var workload = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}

type anybody struct{}

func (anybody) AuthenticateForCertificate(context.Context) (mesh.Identity, func(context.Context, []byte) error, error) {
	return workload, nil, nil
}

func (anybody) TrustDomains() []string { return []string{workload.TrustDomain} }

// expect checks the phase, the number of trusted roots everywhere, and who signs and serves.
func (in *instance) expect(when string, phase rotation.Phase, roots int, signer, serving string) {
	in.t.Helper()
	synctest.Wait()
	s := in.Status()
	in.mu.Lock()
	distributed := len(in.distributed)
	in.mu.Unlock()
	bundle, served := in.authority.State(), in.serving.State()
	if s.Phase != phase || len(s.Roots) != roots || len(bundle.Roots) != roots || len(served.Roots) != roots || distributed != roots {
		in.t.Errorf("%s: %s, %d roots (%d, %d, %d), want %s and %d; %s", when, s.Phase, len(s.Roots), len(bundle.Roots), len(served.Roots), distributed, phase, roots, s.Problem)
	}
	if got := pki.Fingerprint(bundle.Issuer.Root()); got != signer {
		in.t.Errorf("%s: %.8s signs, want %.8s", when, got, signer)
	}
	if got := pki.Fingerprint(served.Issuer.Root()); got != serving {
		in.t.Errorf("%s: %.8s issues the serving certificate, want %.8s", when, got, serving)
	}
}

func (in *instance) signer() string { return in.Status().Roots[0].SHA256 }

func (in *instance) next() string {
	for _, r := range in.Status().Roots {
		if r.Role == "next" {
			return r.SHA256
		}
	}
	return ""
}

func later(d time.Duration) { <-time.After(d) }

// A rotation on request with proxies that acknowledge, across a restart in each phase.
func TestRotation(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, nil)
		old := in.signer()
		in.expect("at first", rotation.Stable, 1, old, old)
		leaf := in.issue(time.Hour)
		in.setWaiting("a", "b")
		if err := in.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if in.next() == "" {
			t.Error("the status does not have the rotation that was requested")
		}
		if err := in.Rotate(t.Context()); !errors.Is(err, rotation.ErrInProgress) {
			t.Errorf("a second request: %v", err)
		}
		later(2 * poll)
		rotated := in.next()
		in.expect("distributing", rotation.Distributing, 2, old, old)
		in.issue(time.Hour)
		in.stop()
		in = startInstance(t, dir, nil)
		in.setWaiting("b")
		later(5 * time.Minute)
		in.expect("restarted, one has not acknowledged", rotation.Distributing, 2, old, old)
		if got := in.Status(); got.Why != "requested" || len(got.Instances) != 1 || strings.Join(got.Instances[0].Names, " ") != "b" {
			t.Errorf("status %+v", got)
		}
		in.setWaiting()
		later(rotation.Hold - poll)
		in.expect("all have acknowledged", rotation.Distributing, 2, old, old)
		later(3 * poll)
		in.expect("the new root signs", rotation.Overlap, 2, rotated, old)
		in.issue(time.Hour)
		in.verify(leaf, string(in.authority.State().RootsPEM()))
		in.stop()
		in = startInstance(t, dir, nil)
		in.expect("restarted", rotation.Overlap, 2, rotated, old)
		later(time.Until(leaf.NotAfter))
		in.expect("the old root's last leaf ends", rotation.Overlap, 2, rotated, old)
		later(10 * time.Minute) // what is stored is an eighth of the lifetime later
		in.expect("the old root is not trusted", rotation.Stable, 1, rotated, rotated)
		if _, err := os.Stat(filepath.Join(dir, rootFolder)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the key of the old root is kept: %v", err)
		}
		in.issue(time.Hour)
		in.stop()
		in = startInstance(t, dir, nil)
		in.expect("restarted afterwards", rotation.Stable, 1, rotated, rotated)
		in.stop()
	})
}

// Proxies without PCDS never acknowledge. The new root signs when the leaves have ended that were issued before it was distributed.
func TestRotationWithoutAcknowledgements(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, nil)
		in.setWaiting("a")
		old := in.signer()
		leaf := in.issue(time.Hour)
		if err := in.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		later(time.Until(leaf.NotAfter) - time.Minute)
		rotated := in.next()
		in.expect("before the leaf ends", rotation.Distributing, 2, old, old)
		in.issue(time.Hour)
		later(10*time.Minute + 3*poll)
		in.expect("after it has ended", rotation.Overlap, 2, rotated, old)
		later(75 * time.Minute)
		in.expect("at the end", rotation.Stable, 1, rotated, rotated)
		in.stop()
	})
}

// A root is rotated by itself, in time, again and again.
func TestRotationByItself(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, func(o *RotatorOptions) {
			o.RootTTL, o.Poll = 100*time.Hour, time.Hour
			o.Policy = rotation.Policy{Share: 0.2}
		})
		defer func() { in.stop() }()
		seen := map[string]bool{}
		for i := range 40 {
			in.issue(2 * time.Hour)
			later(10 * time.Hour)
			synctest.Wait()
			seen[in.signer()] = true
			if got := in.Status(); got.Problem != "" || !time.Now().Before(in.authority.State().Issuer.Validity().NotAfter) {
				t.Fatalf("after %d rounds: %+v", i, got)
			}
		}
		if len(seen) < 4 {
			t.Errorf("%d roots have signed in 400 hours, want one for each 80", len(seen))
		}
		made, err := madeFolders(dir)
		if err != nil || len(made) > 2 {
			t.Errorf("left are %q (%v)", made, err)
		}
	})
}

// Two instances with one folder decide the same, and the new root signs only when both distribute it.
func TestRotationOfTwoInstances(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		a, b := startInstance(t, dir, nil), startInstance(t, dir, nil)
		old := a.signer()
		a.issue(time.Hour)
		b.setWaiting("x")
		if err := a.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		later(rotation.Hold + 4*poll)
		a.expect("one of the other's proxies has not acknowledged", rotation.Distributing, 2, old, old)
		b.expect("the other", rotation.Distributing, 2, old, old)
		rotated := a.next()
		if got := a.Status(); len(got.Instances) != 2 || rotated != b.next() {
			t.Errorf("instances %+v", got.Instances)
		}
		if err := b.Rotate(t.Context()); !errors.Is(err, rotation.ErrInProgress) {
			t.Errorf("the other can begin another rotation: %v", err)
		}
		b.setWaiting()
		later(rotation.Hold + 4*poll)
		a.expect("both", rotation.Overlap, 2, rotated, old)
		b.expect("both", rotation.Overlap, 2, rotated, old)
		a.stop()
		later(75 * time.Minute)
		b.expect("the one that is left", rotation.Stable, 1, rotated, rotated)
		b.stop()
	})
}

func TestRotationOfAnEarlierVersionsRoot(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		open(t, dir)
		later(time.Hour)
		in := startInstance(t, dir, nil) // its leaves are not known
		defer in.stop()
		if got, want := in.Status().Roots[0].LastLeaf, time.Now().Add(48*time.Hour); !got.Equal(want) {
			t.Errorf("the last leaf ends at %s, want %s", got, want)
		}
	})
}

func TestRotationErrors(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		damage     func(dir string) error
	}{
		{"a state that is not JSON", "parse ", func(dir string) error { return os.WriteFile(filepath.Join(dir, rotationFile), []byte("x"), 0o600) }},
		{"a state of a later version", "version 2, want 1", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, rotationFile), []byte(`{"version":2}`), 0o600)
		}},
		{"a state that others may write", "lets others write it", func(dir string) error { return os.Chmod(filepath.Join(dir, rotationFile), 0o622) }},
		{"a state that was removed after a rotation", "which says which of them signs", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, rotationFile)), os.Rename(filepath.Join(dir, rootFolder), filepath.Join(dir, "ca-0123456789abcdef")))
		}},
		{"the root of another state", "restore the one that belongs to the other", func(dir string) error {
			if err := os.RemoveAll(filepath.Join(dir, rootFolder)); err != nil {
				return err
			}
			_, err := OpenRoot(dir, "other", time.Hour, "")
			return err
		}},
	} {
		dir := filepath.Join(wait.Folder(t), "state")
		o := RotatorOptions{Store: NewFolder(dir), Policy: rotation.Policy{Share: 0.2}, Log: slog.New(slog.DiscardHandler)}
		if _, err := OpenRotator(t.Context(), open(t, dir), o); err != nil {
			t.Fatal(err)
		}
		if err := tt.damage(dir); err != nil {
			t.Fatal(err)
		}
		a, err := OpenRoot(dir, "cluster.local", 0, "")
		if err == nil {
			_, err = OpenRotator(t.Context(), a, o)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// brokenStore is a Store that answers no change until its context ends, while it is broken.
type brokenStore struct {
	Store
	mu     sync.Mutex
	broken bool
	asked  int
}

func (s *brokenStore) Change(ctx context.Context, f func(rotation.State, bool) (*StoreChange, error)) error {
	s.mu.Lock()
	broken := s.broken
	s.asked++
	s.mu.Unlock()
	if broken {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Change(ctx, f)
}

func (s *brokenStore) set(broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.asked = broken, 0
}

// Leaves are issued while nothing can be stored: the first waits a little, all others do not. What they need is stored
// afterwards, before the state changes.
func TestLeavesAreIssuedWhileNothingIsStored(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: NewFolder(dir)}
		in := startInstance(t, dir, func(o *RotatorOptions) { o.Store, o.Poll = store, time.Hour })
		defer func() { in.stop() }()
		store.set(true)
		begin := time.Now()
		var last *x509.Certificate
		for range 100 {
			last = in.issue(time.Hour)
		}
		if took := time.Since(begin); took > issueTimeout || store.asked != 1 {
			t.Errorf("100 leaves took %s and %d attempts to store them", took, store.asked)
		}
		store.set(false)
		later(time.Hour)
		synctest.Wait()
		if got := in.Status(); got.Problem != "" || got.Roots[0].LastLeaf.Before(last.NotAfter) {
			t.Errorf("stored is %s, want at least %s; %s", got.Roots[0].LastLeaf, last.NotAfter, got.Problem)
		}
	})
}

// What is asked of an instance while it stops does not bring its report back, which others would wait for.
func TestAnInstanceThatHasLeftDoesNotReport(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	synctest.Test(t, func(t *testing.T) {
		in := startInstance(t, dir, nil)
		in.issue(time.Hour)
		in.stop()
		if err := in.Rotate(t.Context()); err != nil {
			t.Error(err)
		}
		in = startInstance(t, dir, nil)
		defer in.stop()
		if got := in.Status(); len(got.Instances) != 1 || got.Phase != rotation.Distributing {
			t.Errorf("%d instances, %s; want one, and the rotation that was requested", len(got.Instances), got.Phase)
		}
	})
}
