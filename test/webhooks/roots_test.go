package webhooks_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// caller has the API server ask the webhooks all the time, and verifies the certificates of replicas with the bundles that it has.
type caller struct {
	m        *mesh
	replicas []string // addresses
	stop     func()

	mu           sync.Mutex
	calls, dials int
	failures     []string
	seen         map[string]bool // fingerprints of roots in the bundles
}

func (c *caller) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failures) < 20 {
		c.failures = append(c.failures, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// call begins. Each call must be refused by the webhooks; each handshake must succeed.
func (m *mesh) call(replicas ...string) *caller {
	c := &caller{m: m, replicas: replicas, seen: map[string]bool{}}
	ctx, cancel := context.WithCancel(m.t.Context())
	var both sync.WaitGroup
	c.stop = sync.OnceFunc(func() {
		cancel()
		both.Wait()
	})
	m.t.Cleanup(c.stop)
	both.Go(func() {
		objects := m.objects()
		for ctx.Err() == nil {
			_, err := objects.Create(ctx, m.virtualService("broken", badHost), metav1.CreateOptions{})
			if ctx.Err() == nil && !apierrors.IsInvalid(err) {
				c.fail("a call: %v", err)
			}
			c.mu.Lock()
			c.calls++
			c.mu.Unlock()
			pause(ctx)
		}
	})
	both.Go(func() {
		for ctx.Err() == nil {
			c.handshakes(ctx)
			pause(ctx)
		}
	})
	return c
}

// pause leaves the machine to others for a moment.
func pause(ctx context.Context) {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
}

// handshakes verifies each replica with the bundle of each webhook, as an API server does that connects anew.
func (c *caller) handshakes(ctx context.Context) {
	all, err := c.m.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: "istio.io/rev=" + c.m.namespace})
	if err != nil {
		if ctx.Err() == nil {
			c.fail("list: %v", err)
		}
		return
	}
	for _, v := range all.Items {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(v.Webhooks[0].ClientConfig.CABundle) {
			c.fail("%s has no bundle", v.Name)
		}
		list, _ := pki.ParseBundle(v.Webhooks[0].ClientConfig.CABundle) // reported above
		c.mu.Lock()
		for _, r := range list {
			c.seen[pki.Fingerprint(r)] = true
		}
		c.mu.Unlock()
		for _, a := range c.replicas {
			d := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}}
			conn, err := d.DialContext(ctx, "tcp", a)
			if err == nil {
				_ = conn.Close()
			} else if ctx.Err() == nil {
				c.fail("a handshake with %s: %v", a, err)
			}
			c.mu.Lock()
			c.dials++
			c.mu.Unlock()
		}
	}
}

// finish ends the calls and reports what has failed.
func (c *caller) finish() {
	c.m.t.Helper()
	wait.Until(c.m.t, "some more calls", func() func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		from := c.calls
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.calls > from+20
		}
	}())
	c.stop()
	c.m.t.Logf("%d admission calls, %d handshakes, %d roots in the bundles", c.calls, c.dials, len(c.seen))
	if len(c.failures) > 0 || c.calls < 20 || c.dials < 20 {
		c.m.t.Errorf("%d calls and %d handshakes with failures:\n%s", c.calls, c.dials, strings.Join(c.failures, "\n"))
	}
}

// bundle waits until all webhooks have exactly these roots in their bundles.
func (m *mesh) bundle(what string, roots ...*x509.Certificate) {
	m.t.Helper()
	want := pki.EncodeCerts(pki.Normalize(roots)...)
	wait.NoError(m.t, what, func() error {
		all, err := m.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(m.t.Context(), metav1.ListOptions{LabelSelector: "istio.io/rev=" + m.namespace})
		if err != nil {
			return err
		}
		for _, v := range all.Items {
			h := v.Webhooks[0]
			if !bytes.Equal(h.ClientConfig.CABundle, want) || *h.FailurePolicy != admissionregistrationv1.Fail {
				return fmt.Errorf("%s, failurePolicy %s, has the bundle\n%s\nwant\n%s", v.Name, *h.FailurePolicy, h.ClientConfig.CABundle, want)
			}
		}
		return nil
	})
}

// roots are those in the bundle of the webhook of the first replica.
func (m *mesh) roots() []*x509.Certificate {
	m.t.Helper()
	list, err := pki.ParseBundle(m.configuration().Webhooks[0].ClientConfig.CABundle)
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}

// two starts two replicas of a control plane, each of which validates all objects.
func two(t *testing.T, change func(*discovery.Options)) (m *mesh, addresses []string) {
	t.Helper()
	m = start(t, change)
	second, _ := m.replica("istiod-2", func(o *discovery.Options) {
		o.StateDir = t.TempDir()
		if change != nil {
			change(o)
		}
	})
	m.cluster.Apply(t, "", m.replaced(validator, "POLICY", "Ignore"))
	other := strings.ReplaceAll(strings.Replace(validator, "istio-validator-", "second-", 1), "rev.validation", "second.validation")
	m.cluster.Apply(t, "", strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(other, "ADDRESS", second.HTTPS), "REVISION", m.namespace), "POLICY", "Ignore"))
	m.becomes(admissionregistrationv1.Fail, 1)
	return m, []string{m.addresses.HTTPS, second.HTTPS}
}

// replaces waits until the mesh, and then the bundles, have another root only. The old one is trusted until every replica
// knows that it does not sign any more, for rotation.ReportTTL.
func (m *mesh) replaces(before *x509.Certificate) {
	m.t.Helper()
	for _, what := range []string{"signs: ", "is not trusted any more: "} {
		wait.Until(m.t, "a root "+what, func() bool { return strings.Contains(m.log.String(), what) })
	}
	wait.Until(m.t, "only the new root is in the bundles", func() bool {
		now := m.roots()
		return len(now) == 1 && !now[0].Equal(before)
	})
}

// While the root is rotated, with two replicas of which one leads, no admission call fails: the bundles have the new root before a
// replica serves below it, and the old one until none does.
func TestNoAdmissionCallFailsWhileTheRootIsRotated(t *testing.T) {
	m, addresses := two(t, nil)
	before := m.roots()
	m.bundle("all webhooks work", before...)
	calls := m.call(addresses...)
	r, err := http.Post("http://"+m.addresses.HTTP+"/debug/ca/rotate", "application/json", nil)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("rotate the root: %v, %v", r, err)
	}
	_ = r.Body.Close()
	m.replaces(before[0])
	m.bundle("all webhooks have the new root", m.roots()...)
	calls.finish()
	if len(calls.seen) != 2 {
		t.Errorf("%d roots have been in the bundles, want 2", len(calls.seen))
	}
}

// writeCA writes another CA to a folder, as a mounted Secret cacerts is replaced, and returns its root.
func writeCA(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	root, err := policy.NewRoot("plugged in", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := root.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.MkdirTemp(dir, "..")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"ca-cert.pem", "root-cert.pem", "ca-key.pem"} {
		text := pki.EncodeCerts(root.Root())
		if f == "ca-key.pem" {
			text = key
		}
		if err := os.WriteFile(filepath.Join(version, f), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := filepath.Join(dir, "..next")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"ca-cert.pem", "root-cert.pem", "ca-key.pem"} {
		if err := os.Symlink(filepath.Join("..data", f), filepath.Join(dir, f)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	return root.Root()
}

// The CA in files is replaced by one without a root in common, at the same time for both replicas.
func TestNoAdmissionCallFailsWhileTheCAIsSwapped(t *testing.T) {
	dir := t.TempDir()
	before := writeCA(t, dir)
	m, addresses := two(t, func(o *discovery.Options) { o.CA.Directory = dir })
	m.bundle("all webhooks work", before)
	calls := m.call(addresses...)
	next := writeCA(t, dir)
	m.replaces(before)
	m.bundle("all webhooks have the new root only", next)
	calls.finish()
	if len(calls.seen) != 2 || !calls.seen[pki.Fingerprint(before)] || !calls.seen[pki.Fingerprint(next)] {
		t.Errorf("%d roots have been in the bundles, want 2", len(calls.seen))
	}
}
