package discovery

import (
	"bytes"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// with are the lines that have a text.
func (l *lines) with(text string) (out []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// A new root and a new key for tokens are announced with their fingerprints, once.
func TestNewKeysAreAnnounced(t *testing.T) {
	first, second := &lines{}, &lines{}
	folder := ""
	p := start(t, func(o *Options) { o.Log, folder = slog.New(slog.NewTextHandler(first, nil)), o.StateDir })
	root := pki.Fingerprint(p.server.authority.State().Issuer.Root())
	if got := first.with("a new root was made"); len(got) != 1 || !strings.Contains(got[0], "sha256="+root) || !strings.Contains(got[0], "root-cert.pem") {
		t.Errorf("the root: %q", got)
	}
	if got := first.with("a new key was made that signs tokens"); len(got) != 1 || !regexp.MustCompile(`fingerprint=[0-9a-f]{16}`).MatchString(got[0]) {
		t.Errorf("the key: %q", got)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	start(t, func(o *Options) { o.Log, o.StateDir = slog.New(slog.NewTextHandler(second, nil)), folder })
	if got := slices.Concat(second.with("a new root"), second.with("a new key")); len(got) != 0 {
		t.Errorf("what was there is announced: %q", got)
	}
}

// An accepted edit is one line; Pods come and go without one.
func TestAnEditIsOneLine(t *testing.T) {
	log := &lines{}
	p := start(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
	service := func(name string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: " + name + ", namespace: shop}, spec: {ports: [{name: http, port: 80}]}}\n---\n"
	}
	p.emit(service("a"), true)
	if got := log.with("configuration changed"); len(got) != 0 {
		t.Errorf("the first read: %q", got)
	}
	p.emit(service("b")+service("c"), false)
	got := log.with("configuration changed")
	if len(got) != 1 || !regexp.MustCompile(`msg="configuration changed" generation=\d+ objects="Service shop/b, Service shop/c" proxies=0 ms=\d+$`).MatchString(got[0]) {
		t.Errorf("%q", got)
	}
	p.emit("{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, status: {podIP: 10.0.0.1}}", false)
	if got := log.with("configuration changed"); len(got) != 1 {
		t.Errorf("a Pod has a line: %q", got)
	}
	var many []acceptedChange
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		many = append(many, acceptedChange{key: object.Key{Kind: object.Service, Namespace: "shop", Name: name}, removed: name == "a"})
	}
	if got := strings.Join(edited(many), ", "); got != "Service shop/a (removed), Service shop/b, Service shop/c, Service shop/d, Service shop/e and 2 more" {
		t.Errorf("%q", got)
	}
}

// The certificate of the secure port has this machine's own addresses.
func TestTheServingCertificateHasOwnAddresses(t *testing.T) {
	p := start(t)
	cert, err := p.server.serving.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range ownAddresses() {
		if !slices.ContainsFunc(cert.Leaf.IPAddresses, net.ParseIP(a).Equal) {
			t.Errorf("it lacks %s: %v", a, cert.Leaf.IPAddresses)
		}
	}
	if want := len(ownAddresses()) + 2; len(cert.Leaf.IPAddresses) != want {
		t.Errorf("%d addresses, want %d with the loopback ones: %v", len(cert.Leaf.IPAddresses), want, cert.Leaf.IPAddresses)
	}
	if names := ca.ServingNames("istio-system", ""); !slices.Contains(cert.Leaf.DNSNames, names[0]) {
		t.Errorf("names %v", cert.Leaf.DNSNames)
	}
}
