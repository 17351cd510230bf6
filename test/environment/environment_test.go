package environment_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	"github.com/pilothouse/pilothouse/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// watch runs a directory source into an adapter.
func watch(t *testing.T, top string) proxy.Environment {
	t.Helper()
	source, err := dir.New(dir.Options{Dir: top})
	if err != nil {
		t.Fatal(err)
	}
	d := newDirectory()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- source.Run(ctx, d.take) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return d.environment()
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestTheSampleIsAnEnvironment(t *testing.T) {
	env, ctx := watch(t, "../../samples/bookshop"), within(t)

	services, err := env.Services(ctx)
	if i := slices.IndexFunc(services, func(s proxy.Service) bool { return s.Host == "reviews.bookshop.svc.cluster.local" }); err != nil || i < 0 ||
		len(services[i].Addresses) != 1 || services[i].Ports[0] != (proxy.Port{Name: "http", Number: 9080, Protocol: "http"}) {
		t.Errorf("services %+v, error %v", services, err)
	}
	endpoints, err := env.Endpoints(ctx, "productpage.bookshop.svc.cluster.local", "http")
	if err != nil || len(endpoints) != 1 || endpoints[0].Address.String() != "10.99.0.11:9080" || !endpoints[0].Ready {
		t.Errorf("endpoints %v, error %v", endpoints, err)
	}
	if none, err := env.Endpoints(ctx, "nobody.bookshop.svc.cluster.local", "http"); len(none) > 0 || err != nil {
		t.Errorf("endpoints of an unknown service: %v, error %v", none, err)
	}
	accounts, err := env.Accounts(ctx, "productpage.bookshop.svc.cluster.local")
	if err != nil || !slices.Equal(accounts, []string{"bookshop/productpage"}) {
		t.Errorf("accounts %v, error %v", accounts, err)
	}
	routes, err := env.List(ctx, "VirtualService", "bookshop")
	if err != nil || len(routes) == 0 {
		t.Fatalf("virtual services %v, error %v", routes, err)
	}
	one, ok, err := env.Get(ctx, "VirtualService", "bookshop", routes[0].Name)
	if _, is := one.Spec.(*networking.VirtualService); !ok || err != nil || !is {
		t.Errorf("%v %v, error %v", one, ok, err)
	}
	m, err := env.MeshConfig(ctx)
	if err != nil || m.GetDefaultHttpRetryPolicy().GetAttempts() != 0 || m.GetTrustDomain() != "cluster.local" {
		t.Errorf("mesh configuration %v, error %v", m, err)
	}
}

func TestSecretsAndDefaultsOfADirectory(t *testing.T) {
	top := t.TempDir()
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: shop, namespace: n}\ntype: kubernetes.io/tls\nstringData: {tls.crt: C, tls.key: K}\n"
	if err := os.WriteFile(filepath.Join(top, "secret.yaml"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	env, ctx := watch(t, top), within(t)
	s, ok, err := env.TLSSecret(ctx, "n", "shop")
	if string(s.Certificate) != "C" || string(s.PrivateKey) != "K" || !ok || err != nil {
		t.Errorf("ok %v, error %v", ok, err)
	}
	if _, ok, err := env.TLSSecret(ctx, "n", "none"); ok || err != nil {
		t.Errorf("a secret that is not there: %v, error %v", ok, err)
	}
	m, err := env.MeshConfig(ctx)
	if want := proxy.DefaultMeshConfig(); err != nil || m.GetTrustDomain() != want.GetTrustDomain() {
		t.Errorf("mesh configuration %v, error %v", m, err)
	}
}
