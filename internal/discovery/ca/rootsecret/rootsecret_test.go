package rootsecret

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const namespace = "istio-system"

// apiServer has Secrets with versions, as the fake of client-go has not, and its ConfigMaps.
type apiServer struct {
	*fake.Clientset

	mu      sync.Mutex
	secrets map[string]*corev1.Secret
	version int64
	fails   error
}

func newAPIServer() *apiServer {
	s := &apiServer{Clientset: fake.NewClientset(), secrets: map[string]*corev1.Secret{}}
	s.PrependReactor("*", "secrets", s.react)
	s.PrependReactor("*", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.fails != nil, nil, s.fails
	})
	return s
}

var resource = schema.GroupResource{Resource: "secrets"}

func (s *apiServer) react(a clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return true, nil, s.fails
	}
	switch a := a.(type) {
	case clienttesting.GetAction:
		if old := s.secrets[a.GetName()]; old != nil {
			return true, old.DeepCopy(), nil
		}
		return true, nil, apierrors.NewNotFound(resource, a.GetName())
	case clienttesting.UpdateAction: // as CreateAction
		obj := a.GetObject().(*corev1.Secret).DeepCopy()
		old := s.secrets[obj.Name]
		switch create := a.GetVerb() == "create"; {
		case create && old != nil:
			return true, nil, apierrors.NewAlreadyExists(resource, obj.Name)
		case !create && (old == nil || old.ResourceVersion != obj.ResourceVersion):
			return true, nil, apierrors.NewConflict(resource, obj.Name, errors.New("the object has been modified"))
		}
		s.store(obj)
		return true, obj.DeepCopy(), nil
	}
	return false, nil, nil
}

func (s *apiServer) store(obj *corev1.Secret) {
	s.version++
	obj.ResourceVersion = string(rune('0'+s.version%10)) + "-" + time.Duration(s.version).String()
	s.secrets[obj.Name] = obj
}

// put replaces the data of the Secret.
func (s *apiServer) put(data map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: DefaultSecret, Namespace: namespace}, Data: data})
}

// data returns the data of the Secret.
func (s *apiServer) data() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.secrets[DefaultSecret].Data)
}

func (s *apiServer) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *apiServer) open(t *testing.T) *Store {
	return newStore(s.CoreV1(), Options{Namespace: namespace, Instance: "istiod-1", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

func TestTenInstancesMakeOneRoot(t *testing.T) {
	s := newAPIServer()
	roots := make([]string, 10)
	var wg sync.WaitGroup
	for i := range roots {
		wg.Go(func() {
			a, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", time.Hour, "")
			if err != nil {
				t.Error(err)
				return
			}
			roots[i] = pki.Fingerprint(a.State().Issuer.Root())
		})
	}
	wg.Wait()
	if slices.Sort(roots); roots[0] != roots[9] || roots[0] == "" {
		t.Errorf("the instances have the roots %q", roots)
	}
	if got := slices.Sorted(maps.Keys(s.data())); strings.Join(got, " ") != "ca-cert.pem ca-key.pem root-cert.pem" || s.secrets[DefaultSecret].Type != "istio.io/ca-root" {
		t.Errorf("the Secret has the keys %q and the type %s", got, s.secrets[DefaultSecret].Type)
	}
}

// instance is an instance of the control plane.
type instance struct {
	t         *testing.T
	store     *Store
	authority *ca.Authority
	rotator   *ca.Rotator
	stop      func()

	mu      sync.Mutex
	waiting []string
	trusted []*x509.Certificate
}

func start(t *testing.T, s *apiServer) *instance { return startWith(t, s, nil) }

// startWith starts an instance with a CA that is plugged in, nil for none.
func startWith(t *testing.T, s *apiServer, files *policy.Plugged) *instance {
	t.Helper()
	in := &instance{t: t, store: s.open(t)}
	var err error
	if files != nil {
		in.authority, err = ca.NewAuthority(files.Issuer, files.Roots...)
	} else {
		in.authority, err = ca.OpenStore(t.Context(), in.store, "cluster.local", 1000*time.Hour, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	in.rotator, err = ca.OpenRotator(t.Context(), in.authority, ca.RotatorOptions{
		Store: in.store, Organization: "cluster.local", RootTTL: 1000 * time.Hour, TTL: 20 * time.Minute, MaxTTL: 20 * time.Minute, Plugged: files, Interval: time.Hour, Poll: 10 * time.Second,
		Policy: rotation.Policy{Share: 0.2, Margin: 3 * time.Hour}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Distribute: func(roots []*x509.Certificate) {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.trusted = roots
		},
		Proxies: func() (int, []string) {
			in.mu.Lock()
			defer in.mu.Unlock()
			return 1, in.waiting
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.rotator.Run(ctx) }()
	in.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return in
}

// used makes a root that has signed leaves.
func used(t *testing.T, s *apiServer) {
	t.Helper()
	if _, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", 1000*time.Hour, ""); err != nil {
		t.Fatal(err)
	}
	later(time.Hour)
}

func (in *instance) wait(names ...string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waiting = names
}

func (in *instance) signer() string { return pki.Fingerprint(in.authority.State().Issuer.Root()) }

func (in *instance) expect(when string, phase rotation.Phase, trusted int, signer string) {
	in.t.Helper()
	synctest.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	if got := in.rotator.Status(); got.Phase != phase || len(in.trusted) != trusted || in.signer() != signer || got.Problem != "" {
		in.t.Errorf("%s: %s, %d roots, %.8s signs, %q; want %s, %d, %.8s", when, got.Phase, len(in.trusted), in.signer(), got.Problem, phase, trusted, signer)
	}
}

func later(d time.Duration) { <-time.After(d) }

// Two instances with one Secret: the new root signs only when both distribute it and all proxies have it.
func TestRotationOfTwoInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		used(t, s)
		a, b := start(t, s), start(t, s)
		defer a.stop()
		defer b.stop()
		old := a.signer()
		b.wait("x")
		if err := a.rotator.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.rotator.Rotate(t.Context()); !errors.Is(err, rotation.ErrInProgress) {
			t.Errorf("the other can begin another rotation: %v", err)
		}
		later(rotation.Hold + time.Minute)
		a.expect("a proxy of the other has not acknowledged", rotation.Distributing, 2, old)
		b.expect("the other", rotation.Distributing, 2, old)
		if got := s.data(); len(pemOf(t, got["root-cert.pem"])) != 2 || pki.Fingerprint(pemOf(t, got["ca-cert.pem"])[0]) != old {
			t.Errorf("the Secret has the keys %q", slices.Sorted(maps.Keys(got)))
		}
		b.wait()
		later(rotation.Hold + time.Minute)
		next := a.signer()
		if next == old {
			t.Fatal("the old root signs")
		}
		a.expect("all have acknowledged", rotation.Overlap, 2, next)
		b.expect("the other", rotation.Overlap, 2, next)
		c := start(t, s)
		c.expect("one that starts", rotation.Overlap, 2, next)
		a.stop()
		later(30 * time.Minute)
		b.expect("the old root's last leaf has ended", rotation.Stable, 1, next)
		c.expect("the other", rotation.Stable, 1, next)
		got := s.data()
		if keys := slices.Sorted(maps.Keys(got)); strings.Join(keys, " ") != "ca-cert.pem ca-key.pem ca-rotation.json root-cert.pem" || pki.Fingerprint(pemOf(t, got["ca-cert.pem"])[0]) != next {
			t.Errorf("at the end the Secret has the keys %q", keys)
		}
		b.stop()
		c.stop()
	})
}

func pemOf(t *testing.T, text []byte) []*x509.Certificate {
	t.Helper()
	certs, err := pki.ParseBundle(text)
	if err != nil {
		t.Fatal(err)
	}
	return certs
}

// While the API server cannot be reached, the roots stay as they are; afterwards the rotation goes on.
func TestRootsSurviveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		used(t, s)
		a := start(t, s)
		old := a.signer()
		s.fail(apierrors.NewServiceUnavailable("down"))
		later(5 * time.Minute)
		if a.signer() != old || a.rotator.Status().Problem == "" {
			t.Errorf("during the outage: %+v", a.rotator.Status())
		}
		s.fail(nil)
		later(20 * time.Second)
		if err := a.rotator.Rotate(t.Context()); err != nil {
			t.Error(err)
		}
		later(2 * rotation.Hold)
		a.expect("after the outage", rotation.Overlap, 2, a.signer())
		if a.signer() == old {
			t.Error("the old root signs")
		}
		a.stop()
	})
}

// A start during an outage waits, then goes on; it ends with the reason if the outage lasts.
func TestFirstWaitsForTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.fail(apierrors.NewServiceUnavailable("down"))
		if _, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", 0, ""); err == nil || !strings.Contains(err.Error(), "down") {
			t.Errorf("an outage that lasts: %v", err)
		}
		go func() {
			later(10 * time.Second)
			s.fail(nil)
		}()
		if _, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", 0, ""); err != nil {
			t.Errorf("an outage that ends: %v", err)
		}
		s.fail(apierrors.NewForbidden(resource, DefaultSecret, errors.New("no rule")))
		if _, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", 0, ""); !apierrors.IsForbidden(err) {
			t.Errorf("without permission: %v", err)
		}
	})
}

// rootPEM makes a root with its key.
func rootPEM(t *testing.T, kind pki.KeyKind) ca.StoredRoot {
	t.Helper()
	s := newAPIServer()
	if _, err := ca.OpenStore(t.Context(), s.open(t), "istio", time.Hour, kind); err != nil {
		t.Fatal(err)
	}
	return ca.StoredRoot{Cert: s.data()["ca-cert.pem"], Key: s.data()["ca-key.pem"]}
}

// The Secret of Istio, or one with the names of kubernetes.io/tls, is used; other keys stay.
func TestRootsOfOthersAreUsed(t *testing.T) {
	for name, style := range map[string]func(root ca.StoredRoot) map[string][]byte{
		"Istio's": func(root ca.StoredRoot) map[string][]byte {
			return map[string][]byte{"ca-cert.pem": root.Cert, "ca-key.pem": root.Key, "cert-chain.pem": {}, "key.pem": {}, "root-cert.pem": root.Cert, "note": []byte("x")}
		},
		"kubernetes.io/tls": func(root ca.StoredRoot) map[string][]byte {
			return map[string][]byte{"tls.crt": root.Cert, "tls.key": root.Key, "note": []byte("x")}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			root := rootPEM(t, pki.RSA2048)
			data := style(root)
			s := newAPIServer()
			s.put(data)
			in := start(t, s)
			if got, want := in.signer(), pki.Fingerprint(pemOf(t, root.Cert)[0]); got != want {
				t.Errorf("%s: %.8s signs, want %.8s", name, got, want)
			}
			in.stop()
			if got := s.data(); string(got["note"]) != "x" || got[ca.RotationKey] == nil || len(got["tls.crt"]) != len(data["tls.crt"]) || len(got["ca-cert.pem"]) != len(data["ca-cert.pem"]) {
				t.Errorf("%s: afterwards the Secret has the keys %q", name, slices.Sorted(maps.Keys(got)))
			}
		})
	}
}

func TestAnEmptySecretIsFilled(t *testing.T) {
	s := newAPIServer()
	s.put(map[string][]byte{"note": []byte("x")})
	if _, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", time.Hour, ""); err != nil {
		t.Fatal(err)
	}
	if got := s.data(); len(got["ca-key.pem"]) == 0 || string(got["note"]) != "x" {
		t.Errorf("the Secret has the keys %q", slices.Sorted(maps.Keys(got)))
	}
}

// What cannot be used is an error that says what to do, without a key, and nothing is written.
func TestUnusableSecrets(t *testing.T) {
	root, other := rootPEM(t, ""), rootPEM(t, "")
	state, err := ca.EncodeRotation(rotation.State{Signer: rotation.Root{ID: pki.Fingerprint(pemOf(t, other.Cert)[0])}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"no key":                 {map[string][]byte{"ca-cert.pem": root.Cert}, "want both ca-cert.pem and ca-key.pem"},
		"no certificate":         {map[string][]byte{"ca-key.pem": root.Key}, "want both ca-cert.pem and ca-key.pem"},
		"another key":            {map[string][]byte{"ca-cert.pem": root.Cert, "ca-key.pem": other.Key}, "ca-key.pem of Secret istio-system/istio-ca-secret: does not match ca-cert.pem"},
		"a key as certificate":   {map[string][]byte{"ca-cert.pem": root.Key, "ca-key.pem": root.Key}, "read root certificate ca-cert.pem"},
		"a state of another":     {map[string][]byte{"ca-cert.pem": root.Cert, "ca-key.pem": root.Key, "ca-rotation.json": state}, "remove that key"},
		"a state that is broken": {map[string][]byte{"ca-cert.pem": root.Cert, "ca-key.pem": root.Key, "ca-rotation.json": []byte("x")}, "remove the key"},
		"half of a retired root": {map[string][]byte{"ca-cert.pem": root.Cert, "ca-key.pem": root.Key, "ca-cert-0123456789abcdef.pem": other.Cert}, "want both ca-cert-0123456789abcdef.pem and"},
	} {
		s := newAPIServer()
		s.put(tt.data)
		before := s.version
		_, err := ca.OpenStore(t.Context(), s.open(t), "cluster.local", time.Hour, "")
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "PRIVATE") || s.version != before {
			t.Errorf("%s: %v, %d writes; want %q", name, err, s.version-before, tt.want)
		}
	}
}

// A Secret that is removed while instances run is a problem that they report; no root is made in its place.
func TestARemovedSecretIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		in := start(t, s)
		s.mu.Lock()
		delete(s.secrets, DefaultSecret)
		s.mu.Unlock()
		later(time.Minute)
		if got := in.rotator.Status().Problem; !strings.Contains(got, "has been removed") {
			t.Errorf("problem %q", got)
		}
		if err := in.rotator.Rotate(t.Context()); err == nil {
			t.Error("a rotation begins")
		}
		if len(s.secrets) != 0 {
			t.Error("another root was made")
		}
		in.stop()
	})
}

// reportOf is what another instance says, whose clock is wrong by so much.
func reportOf(t *testing.T, name string, wrong time.Duration, clear bool) string {
	t.Helper()
	r := rotation.Report{Instance: name, At: time.Now().Add(wrong), Trusted: []string{"a"}}
	if clear {
		r.Clear = r.At.Add(-time.Minute)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// How old a report is does not depend on the clock of who wrote it.
func TestReportsOfInstancesWithOtherClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		store := s.open(t)
		report := func() map[string]rotation.Report {
			t.Helper()
			if err := store.Report(t.Context(), rotation.Report{At: time.Now(), Trusted: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			all, err := store.Reports(t.Context(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]rotation.Report{}
			for _, r := range all {
				out[r.Instance] = r
			}
			return out
		}
		report()
		if err := store.set(t.Context(), map[string]any{"slow": reportOf(t, "slow", -time.Hour, true), "fast": reportOf(t, "fast", time.Hour, true)}); err != nil {
			t.Fatal(err)
		}
		for name, r := range report() {
			if !r.At.Equal(time.Now()) || name != store.instance && !r.Clear.Equal(time.Now().Add(-time.Minute)) {
				t.Errorf("%s: reported at %s, clear since %s", name, r.At, r.Clear)
			}
		}
		first := time.Now()
		later(time.Minute)
		if got := report(); len(got) != 3 || !got["slow"].At.Equal(first) {
			t.Errorf("after a minute: %v", got)
		}
		later(reportKept)
		if got := report(); len(got) != 1 {
			t.Errorf("after 10 minutes: %v", got)
		}
		m, err := s.CoreV1().ConfigMaps(namespace).Get(t.Context(), Instances, metav1.GetOptions{})
		if err != nil || len(m.Data) != 1 {
			t.Errorf("the ConfigMap has %d reports, %v", len(m.Data), err)
		}
		if err := store.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		m, err = s.CoreV1().ConfigMaps(namespace).Get(t.Context(), Instances, metav1.GetOptions{})
		if err != nil || len(m.Data) != 0 {
			t.Errorf("the ConfigMap has %d reports, %v", len(m.Data), err)
		}
	})
}

// A report is written when it has changed, and otherwise each 15 s; one that was removed is written again.
func TestReportsAreWrittenSparingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		in := start(t, s)
		writes := func() (n int) {
			for _, a := range s.Actions() {
				if a.GetVerb() == "patch" {
					n++
				}
			}
			return n
		}
		before := writes()
		later(150 * time.Second)
		if n := writes() - before; n < 5 || n > 11 {
			t.Errorf("%d writes in 150 s, want at most one in 15 s", n)
		}
		if err := s.CoreV1().ConfigMaps(namespace).Delete(t.Context(), Instances, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		later(30 * time.Second)
		if m, err := s.CoreV1().ConfigMaps(namespace).Get(t.Context(), Instances, metav1.GetOptions{}); err != nil || len(m.Data) != 1 {
			t.Errorf("after it was removed: %v, %v", m, err)
		}
		in.stop()
	})
}
