package trust

import (
	"context"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// source is a Source that a test changes.
type source struct {
	secret *pki.Secret
	next   chan struct{}
}

func (s *source) Current() (*pki.Secret, <-chan struct{}) { return s.secret, s.next }

// roots makes named roots with a common subject, as those of one CA have.
func roots(t *testing.T, names ...string) map[string]*x509.Certificate {
	t.Helper()
	out := map[string]*x509.Certificate{}
	for _, name := range names {
		key, err := pki.GenerateKey("")
		if err != nil {
			t.Fatal(err)
		}
		out[name], err = pki.Sign(pki.RootTemplate("cluster.local", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}), nil, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

type fixture struct {
	t     *testing.T
	certs map[string]*x509.Certificate
}

func (f fixture) of(names string) (out []*x509.Certificate) {
	for _, n := range strings.Fields(names) {
		out = append(out, f.certs[n])
	}
	return out
}

func (f fixture) pems(names string) (out []string) {
	for _, c := range f.of(names) {
		out = append(out, string(pki.EncodeCerts(c)))
	}
	return out
}

func (f fixture) ids(names string) (out []string) {
	for _, c := range f.of(names) {
		out = append(out, pki.Fingerprint(c))
	}
	return out
}

// names returns the names of the certificates, sorted.
func (f fixture) names(certs []*x509.Certificate) string {
	var out []string
	for _, c := range certs {
		for _, name := range slices.Sorted(maps.Keys(f.certs)) {
			if f.certs[name].Equal(c) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (f fixture) secret(names string) *pki.Secret {
	return &pki.Secret{Key: []byte("k"), Chain: []byte("c"), Roots: pki.EncodeCerts(f.of(names)...), Version: "answer " + names}
}

func (f fixture) current(s *Store) string {
	secret, _ := s.Current()
	return f.names(parse(secret))
}

func TestMerge(t *testing.T) {
	f := fixture{t, roots(t, "old", "new", "peer")}
	src := &source{next: make(chan struct{})}
	s := New(Options{Source: src})
	if err := s.SetBundle(f.pems("peer old"), nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Current(); got != nil {
		t.Error("there is a secret before the CA's answer")
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	_, changed := s.Current()
	src.secret = f.secret("old")
	close(src.next)
	src.next = make(chan struct{})
	go func() { ended <- s.Run(ctx) }()
	<-changed
	if got := f.current(s); got != "old peer" {
		t.Errorf("trusted are %q, want old peer", got)
	}
	before, changed := s.Current()
	// In another order, with duplicates and text between.
	texts := f.pems("old peer old")
	texts[0] = "# a comment\n" + strings.TrimSpace(texts[0]) + "\n\n"
	if err := s.SetBundle(texts, nil); err != nil {
		t.Fatal(err)
	}
	if after, _ := s.Current(); after != before {
		t.Error("the same roots are a new value")
	}
	if err := s.SetBundle(f.pems("new old"), nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("SetBundle returned before the value changed")
	}
	if got := f.current(s); got != "new old" {
		t.Errorf("trusted are %q, want new old", got)
	}
	for _, bad := range [][]string{{"nonsense"}, {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, slices.Repeat(f.pems("new"), maxRoots+1), {leafPEM(t)}} {
		if err := s.SetBundle(bad, nil); err == nil || !strings.HasPrefix(err.Error(), "trust bundle: ") {
			t.Errorf("a bundle of %d: %v", len(bad), err)
		}
		if got := f.current(s); got != "new old" {
			t.Errorf("after an error %q are trusted", got)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func leafPEM(t *testing.T) string {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "td", Namespace: "a", ServiceAccount: "b"}, pki.Validity{NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.Sign(template, nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pki.EncodeCerts(leaf))
}

// Each row is a history: answers of the CA, files that take over from it, and bundles ("own roots/other roots"), then which roots verify the control plane with a file.
func TestControlPlane(t *testing.T) {
	f := fixture{t, roots(t, "r1", "r2", "r3", "corp", "peer")}
	for _, tt := range []struct {
		name    string
		o       Options
		history []string
		file    string
		want    string
	}{
		{"nothing is known", Options{AnswerVerified: true}, nil, "r1", "r1"},
		{"a new root in the answer", Options{AnswerVerified: true}, []string{"answer r1", "answer r1 r2"}, "r1", "r1 r2"},
		{"a new root in the bundle", Options{BundleVerified: true}, []string{"bundle r1 r2"}, "r1", "r1 r2"},
		{"roots of peers", Options{BundleVerified: true}, []string{"bundle r1 / peer"}, "r1", "r1"},
		{"the old root is retired", Options{BundleVerified: true}, []string{"bundle r1", "bundle r1 r2", "bundle r2"}, "r1", "r2"},
		{"two rotations since the file", Options{AnswerVerified: true, BundleVerified: true}, []string{"answer r1", "bundle r1 r2", "answer r2", "bundle r2 r3", "answer r3", "bundle r3"}, "r1", "r3"},
		{"the answer still has the old root", Options{AnswerVerified: true, BundleVerified: true}, []string{"answer r1 r2", "bundle r2"}, "r1", "r1 r2"},
		{"the file has another root too", Options{BundleVerified: true}, []string{"bundle r1 r2", "bundle r2"}, "r1 corp", "corp r2"},
		{"a control plane of another CA", Options{AnswerVerified: true, BundleVerified: true}, []string{"answer r1", "bundle r1 r2"}, "corp", "corp"},
		{"an answer over plaintext", Options{BundleVerified: true}, []string{"answer r1 r2"}, "r1", "r1"},
		{"a bundle over plaintext", Options{AnswerVerified: true}, []string{"answer r1", "bundle r1 r2"}, "r1", "r1"},
		{"files take over", Options{AnswerVerified: true, BundleVerified: true}, []string{"answer r1", "files r1 peer"}, "r1", "r1"},
		{"files take over from a rotated CA", Options{AnswerVerified: true}, []string{"answer r1", "answer r1 r2", "answer r2", "files r2 peer"}, "r1", "r2"},
		{"a rotation after files have taken over", Options{AnswerVerified: true, BundleVerified: true}, []string{"bundle r1", "answer r1", "files peer", "bundle r1 r2", "bundle r2"}, "r1", "r2"},
		{"files take over from an answer over plaintext", Options{}, []string{"answer r1", "files r1 peer"}, "r1", "r1"},
		{"files take over before the first answer", Options{AnswerVerified: true}, []string{"files r1 peer"}, "r1", "r1"},
		{"a CA that is not related", Options{BundleVerified: true}, []string{"bundle r1", "bundle r2"}, "r1", "r1"},
	} {
		src := &source{next: make(chan struct{})}
		replaced := false
		tt.o.Source, tt.o.Replaced = src, func() bool { return replaced }
		s := New(tt.o)
		for _, h := range tt.history {
			kind, names, _ := strings.Cut(h, " ")
			if kind == "answer" || kind == "files" {
				replaced = kind == "files"
				src.secret = f.secret(names)
				s.mu.Lock()
				s.read()
				s.mu.Unlock()
				continue
			}
			own, others, _ := strings.Cut(names, "/")
			if err := s.SetBundle(f.pems(own+others), f.ids(own)); err != nil {
				t.Fatal(err)
			}
		}
		if got := f.names(s.ControlPlane(f.of(tt.file))); got != tt.want {
			t.Errorf("%s: verified with %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestRunFollowsTheSource(t *testing.T) {
	f := fixture{t, roots(t, "old", "new")}
	src := &source{secret: f.secret("old"), next: make(chan struct{})}
	s := New(Options{Source: src})
	if got := f.current(s); got != "old" {
		t.Errorf("trusted are %q, want old", got)
	}
	_, changed := s.Current()
	done := src.next
	src.secret, src.next = f.secret("new"), make(chan struct{})
	close(done)
	go func() { _ = s.Run(t.Context()) }()
	<-changed
	wait.Until(t, "the new root is trusted", func() bool { return f.current(s) == "new" })
}
