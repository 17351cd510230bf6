package demo

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

func TestRequestsOfAClusterAreCounted(t *testing.T) {
	const page = `outbound|80||news.example.com::default_priority::max_connections::1024
outbound|80||news.example.com::10.0.0.1:80::rq_success::3
outbound|80||news.example.com::10.0.0.1:80::rq_total::4
outbound|80||news.example.com::10.0.0.2:80::rq_total::5
outbound|80||other::10.0.0.2:80::rq_total::7
`
	if n, err := requestsTo(page, "outbound|80||news.example.com"); n != 9 || err != nil {
		t.Errorf("%d, %v; want 9", n, err)
	}
	for _, bad := range []string{"", "outbound|80||news.example.com::10.0.0.1:80::rq_total::x\n"} {
		if _, err := requestsTo(bad, "outbound|80||news.example.com"); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Each Secret has another certificate, valid for the host and below one root, and its key; others cannot read the file.
func TestCertificateOfTheGateway(t *testing.T) {
	a, err := newAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{config: t.TempDir(), authority: a}
	if file, _, err := d.writeCertificate(); file != "" || err != nil {
		t.Errorf("a mesh without a gateway: %q, %v", file, err)
	}
	if err := os.WriteFile(filepath.Join(d.config, ingress), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 2 {
		file, serial, err := d.writeCertificate()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		part := func(key string) []byte {
			m := regexp.MustCompile(`(?m)^  ` + key + `: (\S+)$`).FindSubmatch(text)
			if m == nil {
				t.Fatalf("no %s in %s", key, text)
			}
			out, err := base64.StdEncoding.DecodeString(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		pair, err := tls.X509KeyPair(part(`tls\.crt`), part(`tls\.key`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pki.Pool([]*x509.Certificate{a.root}), DNSName: ingressHost}); err != nil {
			t.Error(err)
		}
		if pair.Leaf.SerialNumber.Cmp(serial) != 0 || seen[serial.String()] {
			t.Errorf("serial number %v, said %v, before %v", pair.Leaf.SerialNumber, serial, seen)
		}
		seen[serial.String()] = true
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
}
