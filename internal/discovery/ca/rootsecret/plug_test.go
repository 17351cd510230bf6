package rootsecret

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// newFiles makes a CA as it is read from files.
func newFiles(t *testing.T, name string) *policy.Plugged {
	t.Helper()
	issuer, err := policy.NewRoot(name, "", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return &policy.Plugged{Issuer: issuer, Roots: pki.Normalize(pemOf(t, pki.EncodeCerts(issuer.Root())))}
}

func idOf(p *policy.Plugged) string { return pki.Fingerprint(p.Issuer.Root()) }

// selfSigned makes a root with its key, which is an hour old.
func selfSigned(t *testing.T) ca.StoredRoot {
	t.Helper()
	s := newAPIServer()
	used(t, s)
	return ca.StoredRoot{Cert: s.data()["ca-cert.pem"], Key: s.data()["ca-key.pem"]}
}

// has expects the Secret to have the keys in want, and private keys in those in private.
func (s *apiServer) has(t *testing.T, when string, want, private []string) {
	t.Helper()
	t.Helper()
	data := s.data()
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(data)); !slices.Equal(got, want) {
		t.Errorf("%s: the Secret has the keys %q, want %q", when, got, want)
	}
	for key, text := range data {
		if bytes.Contains(text, []byte("PRIVATE KEY")) != slices.Contains(private, key) {
			t.Errorf("%s: private keys: %s", when, key)
		}
	}
}

func (in *instance) plug(p *policy.Plugged) {
	in.t.Helper()
	if err := in.rotator.Plug(in.t.Context(), *p); err != nil {
		in.t.Fatal(err)
	}
}

// Two replicas with a CA that is plugged in, and no Secret at first. They get other files one after the other, and wait for each other; the
// overlap outlives a restart of both. No key of the CA is written.
func TestPluggedInRootsAreInTheSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		a, b := newFiles(t, "a"), newFiles(t, "b")
		x, y := startWith(t, s, a), startWith(t, s, a)
		x.expect("at first", rotation.Stable, 1, idOf(a))
		s.has(t, "at first", []string{otherCertName(idOf(a)), "root-cert.pem", ca.RotationKey}, nil)
		y.wait("echo")
		x.plug(b)
		later(rotation.HoldFiles + time.Minute)
		x.expect("a proxy of the other has not acknowledged", rotation.Distributing, 2, idOf(a))
		y.expect("the other distributes it", rotation.Distributing, 2, idOf(a))
		y.plug(b)
		y.wait()
		later(rotation.HoldFiles + time.Minute)
		x.expect("all have acknowledged", rotation.Overlap, 2, idOf(b))
		y.expect("the other", rotation.Overlap, 2, idOf(b))
		s.has(t, "in the overlap", []string{otherCertName(idOf(a)), otherCertName(idOf(b)), "root-cert.pem", ca.RotationKey}, nil)
		x.stop()
		y.stop()
		x = startWith(t, s, b)
		x.expect("after a restart", rotation.Overlap, 2, idOf(b))
		if got := pemOf(t, s.data()["root-cert.pem"]); len(got) != 2 {
			t.Errorf("root-cert.pem has %d roots", len(got))
		}
		later(time.Hour)
		x.expect("the old root's last leaf has ended", rotation.Stable, 1, idOf(b))
		s.has(t, "at the end", []string{otherCertName(idOf(b)), "root-cert.pem", ca.RotationKey}, nil)
		x.stop()
	})
}

// A CA is plugged in while a self-signed root signs, which keeps its names while it is trusted. When the files are gone, another self-signed root
// signs, and the one of the files is trusted.
func TestFilesReplaceTheSelfSignedRoot(t *testing.T) {
	for name, names := range map[string]policy.FileNames{"Istio's": policy.IstioNames, "kubernetes.io/tls": policy.TLSNames} {
		synctest.Test(t, func(t *testing.T) {
			s, root := newAPIServer(), selfSigned(t)
			s.put(map[string][]byte{names.Cert: root.Cert, names.Key: root.Key})
			files := newFiles(t, "plugged")
			x := startWith(t, s, files)
			self := pki.Fingerprint(pemOf(t, root.Cert)[0])
			x.expect(name+": a root without a state has signed", rotation.Overlap, 2, idOf(files))
			x.stop()
			s.put(map[string][]byte{names.Cert: root.Cert, names.Key: root.Key}) // as if the CA had never been plugged in
			x = start(t, s)
			x.stop()
			x = startWith(t, s, files)
			x.expect(name+": the self-signed root goes on", rotation.Distributing, 2, self)
			s.has(t, name, []string{names.Cert, names.Key, names.Roots, otherCertName(idOf(files)), ca.RotationKey}, []string{names.Key})
			later(time.Hour)
			x.expect(name+": the root of the files signs", rotation.Stable, 1, idOf(files))
			want := []string{names.Roots, otherCertName(idOf(files)), ca.RotationKey}
			if names == policy.TLSNames { // a Secret of that type must have them
				want = append(want, names.Cert, names.Key)
			}
			s.has(t, name+": without a self-signed root", want, nil)
			// A replica without the files makes a root, which one that has them removes, since it is not in the state yet.
			store := s.open(t)
			first, err := ca.OpenStore(t.Context(), store, "cluster.local", 1000*time.Hour, "")
			if err != nil {
				t.Fatal(err)
			}
			later(time.Minute)
			s.has(t, name+": looked at by another replica", want, nil)
			x.stop()
			if _, err := ca.OpenRotator(t.Context(), first, ca.RotatorOptions{Store: store, Log: store.log}); err != nil {
				t.Errorf("%s: a root that was removed: %v", name, err)
			}
			y := start(t, s)
			y.expect(name+": without the files", rotation.Overlap, 2, pki.Fingerprint(first.State().Issuer.Root()))
			s.has(t, name+": without the files", []string{names.Cert, names.Key, names.Roots, otherCertName(idOf(files)), ca.RotationKey}, []string{names.Key})
			y.stop()
		})
	}
}

// A Secret that is removed while a replica runs is a problem, also if its CA is plugged in; a start makes it anew.
func TestARemovedSecretOfAPluggedInCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		files := newFiles(t, "plugged")
		x := startWith(t, s, files)
		s.mu.Lock()
		delete(s.secrets, DefaultSecret)
		s.mu.Unlock()
		later(time.Minute)
		if got := x.rotator.Status().Problem; !strings.Contains(got, "has been removed: restore it") || len(s.secrets) != 0 {
			t.Errorf("problem %q, %d Secrets", got, len(s.secrets))
		}
		x.stop()
		x = startWith(t, s, files)
		x.expect("after a restart", rotation.Stable, 1, idOf(files))
		x.stop()
	})
}

// The state of a plugged-in CA that is lost is an error: it would be forgotten which roots are trusted.
func TestPluggedInWithoutTheState(t *testing.T) {
	s := newAPIServer()
	files := newFiles(t, "plugged")
	a, err := ca.NewAuthority(files.Issuer)
	if err != nil {
		t.Fatal(err)
	}
	store := s.open(t)
	o := ca.RotatorOptions{Store: store, Plugged: files, Log: store.log}
	if _, err := ca.OpenRotator(t.Context(), a, o); err != nil {
		t.Fatal(err)
	}
	data := s.data()
	delete(data, ca.RotationKey)
	s.put(data)
	if _, err := ca.OpenRotator(t.Context(), a, o); err == nil || !strings.Contains(err.Error(), "restore what is missing") {
		t.Errorf("without the state: %v", err)
	}
}

// What is asked of a replica while it stops does not bring its report back, which others would wait for.
func TestAReplicaThatHasLeftDoesNotReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		used(t, s)
		x := start(t, s)
		x.stop()
		if err := x.rotator.Rotate(t.Context()); err != nil {
			t.Error(err)
		}
		y := start(t, s)
		defer y.stop()
		if got := y.rotator.Status(); len(got.Instances) != 1 || got.Phase != rotation.Distributing {
			t.Errorf("%d instances, %s; want one, and the rotation that was requested", len(got.Instances), got.Phase)
		}
	})
}
