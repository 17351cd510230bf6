package join

import (
	"encoding/base64"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

func testBundle(t testing.TB) *Bundle {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	template := pki.RootTemplate("cluster.local", pki.Validity{NotBefore: now, NotAfter: now.Add(time.Hour)})
	root, err := pki.Sign(template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &Bundle{
		Namespace: "shop", ServiceAccount: "legacy", Discovery: "mesh.example.com:15012", ServerName: "istiod.istio-system.svc",
		Roots: [][]byte{root.Raw}, Token: "a.b.c", Expires: now.Add(time.Hour), TrustDomain: "cluster.local", Cluster: "Kubernetes",
		Network: "vms", Group: "legacy", Labels: map[string]string{"app": "legacy", "service.istio.io/canonical-name": "legacy"},
		ProxyConfig: "concurrency: 2\n",
	}
}

func TestEncodeAndDecode(t *testing.T) {
	b := testBundle(t)
	text, err := Encode(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(text))
	for _, given := range []string{text, " " + text + "\n", text[:70] + "\r\n" + text[70:]} {
		got, err := Decode(given)
		if err != nil || !reflect.DeepEqual(got, b) {
			t.Errorf("%+v, %v, want %+v", got, err, b)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	text, err := Encode(testBundle(t))
	if err != nil {
		t.Fatal(err)
	}
	withSum := func(json string) string {
		s := prefix + base64.RawURLEncoding.EncodeToString([]byte(json))
		return s + "." + sum(s)
	}
	for want, given := range map[string]string{
		"it is empty":                 " \n",
		"does not begin with":         "eyJhbGciOiJFUzI1NiJ9.e30.AAAA",
		"version 2, want 1":           "phjoin2." + text[len(prefix):],
		"it is not whole":             text[:len(text)-100],
		"wrong checksum":              text[:40] + "A" + text[41:],
		"want at most 65536":          prefix + strings.Repeat("A", MaxBytes),
		"131072":                      strings.Repeat(" ", 2*MaxBytes) + text, // it says so without reading it
		"it is not base64url":         prefix + "+." + sum(prefix+"+"),
		`unknown field "x"`:           withSum(`{"x":1}`),
		"text behind":                 withSum(`{} {}`),
		"invalid address":             withSum(`{"ns":"a","discovery":"x"}`),
		`invalid port "0"`:            withSum(`{"ns":"a","discovery":"x:0"}`),
		"invalid cluster":             withSum(`{"cluster":"a'\n"}`),
		"0 root certificates, want 1": withSum(`{}`),
		"invalid token":               withSum(`{"token":"a b"}`),
	} {
		_, err := Decode(given)
		if want == "131072" {
			want = "want at most"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", given, err, want)
		}
		if err != nil && strings.Contains(err.Error(), text[20:60]) {
			t.Errorf("the message has the token: %v", err)
		}
	}
}

func TestEncodeChecks(t *testing.T) {
	for want, change := range map[string]func(*Bundle){
		"namespace":      func(b *Bundle) { b.Namespace = "../x" },
		"trust domain":   func(b *Bundle) { b.TrustDomain = "" },
		"network":        func(b *Bundle) { b.Network = "a b" },
		"label":          func(b *Bundle) { b.Labels = map[string]string{"a": "$(reboot)"} },
		"group":          func(b *Bundle) { b.Group = "a/b" },
		"of a CA":        func(b *Bundle) { b.Roots[0] = leaf(t) },
		"ProxyConfig of": func(b *Bundle) { b.ProxyConfig = strings.Repeat("#", maxConfig+1) },
	} {
		b := testBundle(t)
		change(b)
		if _, err := Encode(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func leaf(t *testing.T) []byte {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := pki.ServerTemplate([]string{"x"}, pki.Validity{NotAfter: time.Now().Add(time.Hour)})
	c, err := pki.Sign(template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return c.Raw
}

// What is decoded can be encoded, and is the same again.
func FuzzDecode(f *testing.F) {
	text, err := Encode(testBundle(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(prefix + "e30." + sum(prefix+"e30"))
	f.Fuzz(func(t *testing.T, body string) {
		for _, given := range []string{body, prefix + body + "." + sum(prefix+body)} {
			b, err := Decode(given)
			if err != nil {
				continue
			}
			again, err := Encode(b)
			if err != nil {
				t.Fatalf("%+v: %v", b, err)
			}
			c, err := Decode(again)
			if err != nil {
				t.Fatalf("%+v: %v", b, err)
			}
			if third, err := Encode(c); err != nil || third != again {
				t.Fatalf("%+v became %+v, %v", b, c, err)
			}
		}
	})
}
