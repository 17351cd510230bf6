package discovery

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

const meshMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"%\"}\n"

func meshMapOf(text string) string { return strings.Replace(meshMap, "%", text, 1) }

// write replaces a file at once.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// place has the paths that a test's control plane reads.
type place struct{ dir, mesh, state string }

func newPlace(t *testing.T) place {
	t.Helper()
	p := place{t.TempDir(), filepath.Join(t.TempDir(), "mesh"), wait.Folder(t)}
	write(t, filepath.Join(p.dir, "shop.yaml"), shop)
	return p
}

func (p place) options(trustDomain string, log *slog.Logger) Options {
	any := "127.0.0.1:0"
	return Options{
		ConfigDir: p.dir, MeshFile: p.mesh, StateDir: p.state, Names: Names{Domain: "cluster.local", TrustDomain: trustDomain, Namespace: "istio-system"},
		Ports: Ports{HTTP: any, GRPC: any, SecureGRPC: any, Monitoring: any}, HTTP: HTTPOptions{Shutdown: time.Second}, Version: "test", Log: log,
	}
}

// up runs a control plane as the command makes it.
func up(t *testing.T, o Options) *plane {
	t.Helper()
	srv, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	p := &plane{t: t, server: srv, addr: srv.Addresses()}
	wait.Until(t, "configuration is read", func() bool { code, _ := p.get(p.addr.HTTP, "/ready"); return code == 200 })
	return p
}

// domains returns the trust domains of the root, of an authenticated caller, and of the peers that
// proxies accept.
func (p *plane) domains() (root, identity, accepted string) {
	p.t.Helper()
	certs, err := pki.ParseBundle([]byte(p.root()))
	if err != nil {
		p.t.Fatal(err)
	}
	root = strings.Join(certs[0].Subject.Organization, ",")
	c := p.dial(p.token("shop", "default"), p.root()).open()
	c.expect("LDS", "virtualInbound")
	_, rest, _ := strings.Cut(c.text("virtualInbound"), "spiffe://")
	accepted, _, _ = strings.Cut(rest, "/")
	var all []syncEntry
	_, body := p.get(p.addr.HTTP, "/debug/syncz")
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all) == 0 {
		p.t.Fatalf("%v: %s", err, body)
	}
	identity, _, _ = strings.Cut(strings.TrimPrefix(all[0].Identity, "spiffe://"), "/")
	return root, identity, accepted
}

func TestTrustDomainAppliesEverywhere(t *testing.T) {
	for name, c := range map[string]struct{ option, file, object, want string }{
		"nowhere":               {"", "", "", "cluster.local"},
		"as an option":          {"a.example", "", "", "a.example"},
		"in the mesh file":      {"", "trustDomain: b.example\n", "", "b.example"},
		"in the ConfigMap":      {"", "", "trustDomain: c.example", "c.example"},
		"the ConfigMap counts":  {"", "trustDomain: b.example\n", "trustDomain: c.example", "c.example"},
		"everywhere":            {"a.example", "trustDomain: a.example\n", "trustDomain: a.example", "a.example"},
		"mesh without a domain": {"a.example", "connectTimeout: 1s\n", "connectTimeout: 2s", "a.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newPlace(t)
			if c.file != "" {
				write(t, at.mesh, c.file)
			}
			if c.object != "" {
				write(t, filepath.Join(at.dir, "mesh.yaml"), meshMapOf(c.object))
			}
			p := up(t, at.options(c.option, slog.New(slog.DiscardHandler)))
			if root, identity, accepted := p.domains(); root != c.want || identity != c.want || accepted != c.want {
				t.Errorf("root of %q, callers of %q, proxies accept %q; want %q everywhere", root, identity, accepted, c.want)
			}
		})
	}
}

// If mesh configuration is invalid at a restart, the trust domain is that of its last valid version.
func TestTrustDomainOfInvalidMeshConfigIsRemembered(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	for name, broken := range map[string]string{
		"a file that cannot be parsed": "kind: [",
		"a text that cannot be parsed": meshMapOf("trustDomain: ["),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newPlace(t)
			object := filepath.Join(at.dir, "mesh.yaml")
			write(t, object, meshMapOf("trustDomain: a.example"))
			ctx, stop := context.WithCancel(t.Context())
			first, err := New(t.Context(), at.options("", quiet))
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- first.Run(ctx) }()
			one := &plane{t: t, server: first, addr: first.Addresses()}
			wait.Until(t, "configuration is read", func() bool { code, _ := one.get(one.addr.HTTP, "/ready"); return code == 200 })
			stop() // a graceful end saves it
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			write(t, object, broken)
			p := up(t, at.options("", quiet))
			if root, identity, accepted := p.domains(); root != "a.example" || identity != "a.example" || accepted != "a.example" {
				t.Errorf("root of %q, callers of %q, proxies accept %q; want a.example everywhere", root, identity, accepted)
			}
		})
	}
}

func TestConflictingTrustDomainsFailAtStart(t *testing.T) {
	for name, prepare := range map[string]func(place){
		"file":      func(p place) { write(t, p.mesh, "trustDomain: b.example\n") },
		"ConfigMap": func(p place) { write(t, filepath.Join(p.dir, "mesh.yaml"), meshMapOf("trustDomain: b.example")) },
	} {
		at := newPlace(t)
		prepare(at)
		_, err := New(t.Context(), at.options("a.example", slog.New(slog.DiscardHandler)))
		if err == nil || !strings.Contains(err.Error(), `"a.example"`) || !strings.Contains(err.Error(), `"b.example"`) || !strings.Contains(err.Error(), "the same in both") {
			t.Errorf("%s: %v, want an error with both and the remedy", name, err)
		}
		if left, _ := os.ReadDir(at.state); len(left) != 0 {
			t.Errorf("%s: a root was made", name)
		}
	}
}

// An edit of the trust domain is rejected with all other fields of the edit, and reported.
func TestEditOfTheTrustDomainIsRejected(t *testing.T) {
	at, log := newPlace(t), &wait.Output{}
	object := filepath.Join(at.dir, "mesh.yaml")
	write(t, object, meshMapOf("trustDomain: a.example"))
	p := up(t, at.options("", slog.New(slog.NewTextHandler(log, nil))))
	c := p.dial(p.token("shop", "default"), p.root()).open()
	c.until("9080", "allow_any")
	write(t, object, meshMapOf("{trustDomain: b.example, outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"))
	wait.Until(t, "the verdict", func() bool { return len(p.objects()) == 1 })
	got := p.objects()[0]
	if got.Severity != "error" || got.Object != "ConfigMap istio-system/istio" || got.Field != "data.mesh.trustDomain" ||
		!strings.Contains(got.Text, `"b.example"`) || !strings.Contains(got.Text, `"a.example"`) || !strings.Contains(got.Text, "restart") {
		t.Errorf("verdict %+v", got)
	}
	if !strings.Contains(log.String(), "b.example") {
		t.Errorf("the log does not tell:\n%s", log.String())
	}
	if root, identity, accepted := p.domains(); root != "a.example" || identity != "a.example" || accepted != "a.example" {
		t.Errorf("root of %q, callers of %q, proxies accept %q; want a.example everywhere", root, identity, accepted)
	}
	write(t, object, meshMapOf("{trustDomain: a.example, outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"))
	c.until("9080", "block_all")
	if strings.Contains(strings.Join(c.seen, " "), "b.example") {
		t.Error("another trust domain reached a proxy")
	}
	if got := p.objects(); len(got) != 0 {
		t.Errorf("after the repair: %+v", got)
	}
}

// A ConfigMap "istio" of another namespace changes nothing, before the start or after it, and one line of
// the log tells its owner.
func TestMeshConfigOfAnotherNamespaceIsNotUsed(t *testing.T) {
	for _, late := range []bool{false, true} {
		at, log := newPlace(t), &wait.Output{}
		add := func() {
			write(t, filepath.Join(at.dir, "team.yaml"), strings.Replace(meshMapOf("{trustDomain: evil.example, outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"), "namespace: istio-system", "namespace: a-team", 1))
		}
		if !late {
			add()
		}
		p := up(t, at.options("", slog.New(slog.NewTextHandler(log, nil))))
		if late {
			add()
		}
		wait.Until(t, "the verdict", func() bool { return len(p.objects()) == 1 })
		got := p.objects()[0]
		if got.Severity != "warning" || got.Object != "ConfigMap a-team/istio" || got.Field != "data.mesh" || !strings.Contains(got.Text, "istio-system") {
			t.Errorf("verdict %+v", got)
		}
		if n := strings.Count(log.String(), "ConfigMap a-team/istio: data.mesh"); n != 1 {
			t.Errorf("%d lines of the log name it, want one:\n%s", n, log.String())
		}
		if root, identity, accepted := p.domains(); root != "cluster.local" || identity != "cluster.local" || accepted != "cluster.local" {
			t.Errorf("root of %q, callers of %q, proxies accept %q; want cluster.local everywhere", root, identity, accepted)
		}
		c := p.dial(p.token("shop", "default"), p.root()).open()
		if c.until("9080", "allow_any"); strings.Contains(c.text("9080"), "block_all") {
			t.Error("its traffic policy is in force")
		}
	}
}
