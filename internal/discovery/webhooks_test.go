package discovery

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

const brokenReview = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","namespace":"shop",
"resource":{"group":"networking.istio.io","version":"v1","resource":"virtualservices"},
"object":{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"shop"},"spec":{"hosts":["a b"],"http":[{"route":[{"destination":{"host":"a"}}]}]}}}}`

// withWebhooks has a plane serve the HTTPS port.
func withWebhooks(o *Options) {
	o.Ports.HTTPS = "127.0.0.1:0"
	o.Webhooks.Revision = "canary"
}

// validate posts a review to the HTTPS port, by a name that must be in its certificate, which the roots must verify.
func (p *plane) validate(name string, roots *x509.CertPool) (version, text string, err error) {
	c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}}}
	r, err := c.Post("https://"+p.addr.HTTPS+"/validate?timeout=10s", "application/json", strings.NewReader(brokenReview))
	if err != nil {
		return "", "", err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	return r.Proto, string(body), err
}

func TestWebhooksAreServedWithACertificateOfTheCA(t *testing.T) {
	p := start(t, withWebhooks)
	pool := pki.Pool(p.server.authority.State().Roots)
	for _, name := range []string{"istiod.istio-system.svc", "istiod-canary.istio-system.svc", "pilothouse.istio-system.svc", "127.0.0.1"} {
		version, text, err := p.validate(name, pool)
		if err != nil || version != "HTTP/2.0" || !strings.Contains(text, `invalid host`) || !strings.Contains(text, `"allowed":false`) {
			t.Errorf("%s: %s %s, %v", name, version, text, err)
		}
	}
	if _, _, err := p.validate("istiod.shop.svc", pool); err == nil {
		t.Error("the certificate is for a Service of another namespace")
	}
	if _, metrics := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(metrics, `galley_validation_failed{group="networking.istio.io",reason="invalid",resource="virtualservices",version="v1"} 4`) {
		t.Errorf("the refusals are not counted:\n%s", metrics)
	}
}

// The certificate follows the CA without a restart, and objects are validated while the source cannot be read.
func TestWebhooksFollowTheCA(t *testing.T) {
	p := start(t, withWebhooks)
	next, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	_, changed := p.server.servingRoots()
	wait.NoError(t, "a certificate of the new root", func() error {
		// The rotation, which begins at the start, may put its own root back.
		if err := p.server.servingAuthority.Replace(next, nil); err != nil {
			return err
		}
		_, text, err := p.validate("istiod.istio-system.svc", pki.Pool([]*x509.Certificate{next.Root()}))
		if err == nil && !strings.Contains(text, "invalid host") {
			err = fmt.Errorf("answer %s", text)
		}
		return err
	})
	<-changed // so that the bundle is patched
}

// writeServing writes a certificate for a name and its key, signed by a new root, to the files of a folder.
func writeServing(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	root, err := policy.NewRoot("files", "", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	approval, err := policy.Serving([]string{name}, key.Public(), time.Hour, root.Validity(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := root.Sign(approval)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := pki.EncodeKey(key, true)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{"tls.crt": pki.EncodeCerts(leaf), "tls.key": keyPEM, "ca.crt": pki.EncodeCerts(root.Root())} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pki.Pool([]*x509.Certificate{root.Root()})
}

func TestWebhooksAreServedWithTheCertificateOfFiles(t *testing.T) {
	dir := t.TempDir()
	pool := writeServing(t, dir, "first.example.com")
	p := start(t, withWebhooks, func(o *Options) {
		o.Webhooks.CertFile, o.Webhooks.KeyFile, o.Webhooks.CAFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	})
	if _, text, err := p.validate("first.example.com", pool); err != nil || !strings.Contains(text, "invalid host") {
		t.Fatalf("%s, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.validate("first.example.com", pool); err != nil {
		t.Errorf("a key that cannot be read: %v", err)
	}
	pool = writeServing(t, dir, "second.example.com")
	wait.NoError(t, "the new certificate", func() error {
		_, text, err := p.validate("second.example.com", pool)
		if err == nil && !strings.Contains(text, "invalid host") {
			err = fmt.Errorf("answer %s", text)
		}
		return err
	})
}

func TestCertificateFilesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	writeServing(t, dir, "a.example.com")
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, tt := range map[string]struct {
		cert, key, ca, want string
	}{
		"no key":     {path("tls.crt"), "", "", "want both --tlsCertFile and --tlsKeyFile"},
		"no file":    {path("none"), path("tls.key"), "", path("none")},
		"not a key":  {path("tls.crt"), path("tls.crt"), "", "tls.crt"},
		"not a root": {path("tls.crt"), path("tls.key"), path("tls.key"), "no certificate in PEM"},
	} {
		o := Options{
			ConfigDir: dir, StateDir: wait.Folder(t), Names: Names{Domain: "cluster.local", Namespace: "istio-system"}, Log: slog.New(slog.DiscardHandler),
			Ports: Ports{HTTPS: "127.0.0.1:0"}, Webhooks: WebhookOptions{CertFile: tt.cert, KeyFile: tt.key, CAFile: tt.ca},
		}
		if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want an error with %q", name, err, tt.want)
		}
	}
}

func TestWebhooksAreOffWithoutAnAddress(t *testing.T) {
	p := start(t)
	if p.addr.HTTPS != "" {
		t.Errorf("the HTTPS port is open at %s", p.addr.HTTPS)
	}
	if _, err := net.Dial("tcp", p.addr.HTTPS); err == nil {
		t.Error("something answers at no address")
	}
}
