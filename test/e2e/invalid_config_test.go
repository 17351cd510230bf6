package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
)

const (
	strictPolicy = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: broken}\nspec: {mtls: {mode: STRICT}}\n"
	// A bracket is missing, so that the kind of the document is unknown.
	brokenPolicy        = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: broken}\nspec: {mtls: {mode: STRICT}\n"
	brokenAuthorization = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: nobody, namespace: broken}\nspec: {action: DENY, rules: [{}]\n"
	brokenServices      = "apiVersion: v1\nkind: Service\nmetadata: {name: echo, namespace: broken}\nspec: {clusterIP: 10.96.50.1, selector: {app: echo\n"
)

// invalidMesh is a mesh whose configuration a test breaks.
type invalidMesh struct {
	t      *testing.T
	m      *meshup.Mesh
	config string
}

func startInvalid(t *testing.T) *invalidMesh {
	t.Helper()
	m, config := startWith(t, "broken", func(o *meshup.Options) {
		o.ProxyConfig = meshup.CountFailures + "\ndrainDuration: " + restartDrain.String()
	})
	return &invalidMesh{t: t, m: m, config: config}
}

// put replaces a file by a rename; an empty text removes it.
func (b *invalidMesh) put(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.config, name)
	err := os.Remove(path)
	if text != "" {
		err = errors.Join(os.WriteFile(path+".next", []byte(text), 0o644), os.Rename(path+".next", path))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
}

// plaintext calls the server from the Pod without a sidecar, and reports whether it answered.
func (b *invalidMesh) plaintext(ctx context.Context) bool {
	a, err := meshup.Post(ctx, meshup.Client(b.m.Pod("legacy-1.broken").Net, 0), "http://10.99.0.11:9080/", nil)
	return err == nil && a.Status == http.StatusOK
}

// inMesh calls the server from the Pod with a sidecar, over a connection of its own.
func (b *invalidMesh) inMesh(ctx context.Context) bool {
	c := meshup.Client(b.m.Pod("client-1.broken").Net, 0)
	defer c.CloseIdleConnections()
	a, err := meshup.Post(ctx, c, "http://echo:9080/", nil)
	return err == nil && a.FirstFailure() == ""
}

// until waits until a call is answered, or is not.
func (b *invalidMesh) until(what string, call func(context.Context) bool, answered bool) {
	b.t.Helper()
	if err := meshup.Await(b.t.Context(), time.Minute, what, func(ctx context.Context) error {
		if call(ctx) != answered {
			return fmt.Errorf("answered: %v", !answered)
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
}

// page reads a page of pilot-discovery.
func (b *invalidMesh) page(ctx context.Context, path string) string {
	b.t.Helper()
	text, err := b.m.Get(ctx, b.m.Net.Host(), b.m.DiscoveryURL()+path)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// awaitProblems waits until pilot-discovery lists n problems.
func (b *invalidMesh) awaitProblems(n int) {
	b.t.Helper()
	if err := meshup.Await(b.t.Context(), time.Minute, "the problems are told", func(ctx context.Context) error {
		var all []any
		if err := json.Unmarshal([]byte(b.page(ctx, "/debug/objectz")), &all); err != nil {
			return meshup.Final(err)
		}
		if len(all) != n {
			return fmt.Errorf("%d of %d are: %v", len(all), n, all)
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
}

// saved waits until the state folder keeps an object of a kind, which is within a second.
func (b *invalidMesh) saved(kind string) {
	b.t.Helper()
	b.until("the state folder keeps the "+kind, func(context.Context) bool {
		text, err := os.ReadFile(filepath.Join(b.m.StateDir(), "configuration.saved"))
		return err == nil && strings.Contains(string(text), kind)
	}, true)
}

// inSync waits until both proxies have applied what pilot-discovery says.
func (b *invalidMesh) inSync() {
	b.t.Helper()
	if err := meshup.Await(b.t.Context(), time.Minute, "both proxies are in sync", func(ctx context.Context) error {
		var all []struct {
			Proxy               string
			Generation, Applied uint64
		}
		if err := json.Unmarshal([]byte(b.page(ctx, "/debug/syncz")), &all); err != nil {
			return meshup.Final(err)
		}
		for _, p := range all {
			if p.Applied == 0 || p.Applied != p.Generation {
				return fmt.Errorf("%s has applied %d of %d", p.Proxy, p.Applied, p.Generation)
			}
		}
		if len(all) != 2 {
			return fmt.Errorf("%d are connected", len(all))
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
}

// traffic starts requests inside the mesh; stop ends them, and none may have failed.
func (b *invalidMesh) traffic() (stop func()) {
	l := load.New(b.t.Context(), b.m.Pod("client-1.broken").Net.Dial)
	l.KeepAlive("echo:9080", 6, 10*time.Millisecond)
	l.Churn("echo:9080", 4, 10*time.Millisecond)
	return func() {
		b.t.Helper()
		r := l.Stop()
		if len(r.Failures) > 0 || r.Sent == 0 {
			b.t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
		}
		b.t.Logf("%d requests in %v", r.Sent, r.Took.Round(time.Millisecond))
	}
}

// TestInvalidConfigKeepsLastGoodValue: a STRICT policy and the services are
// in files that do not parse any more, and pilot-discovery is killed and started over.
func TestInvalidConfigKeepsLastGoodValue(t *testing.T) {
	b := startInvalid(t)
	b.until("a plaintext caller is answered before there is a policy", b.plaintext, true)
	b.put("policy.yaml", strictPolicy)
	b.until("the plaintext caller is refused", b.plaintext, false)
	b.inSync()
	b.saved("PeerAuthentication")
	stop := b.traffic()

	// The legacy caller tries all the time, from now to the end.
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	var legacy sync.WaitGroup
	var tries, answered atomic.Int64
	legacy.Go(func() {
		for ctx.Err() == nil {
			if tries.Add(1); b.plaintext(ctx) {
				answered.Add(1)
			}
		}
	})
	b.put("policy.yaml", brokenPolicy)
	b.put("services.yaml", brokenServices)
	b.awaitProblems(2)
	for range 2 {
		if err := b.m.KillDiscovery(); err != nil {
			t.Fatal(err)
		}
		if err := b.m.StartDiscovery(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.inSync()
		before := tries.Load()
		b.until("the legacy caller has tried again", func(context.Context) bool { return tries.Load() > before+3 }, true)
	}
	stop()
	// A new Envoy has nothing but what pilot-discovery knows after the restarts.
	if _, err := b.m.Pod("client-1.broken").KillEnvoy(); err != nil {
		t.Fatal(err)
	}
	b.until("the client's new Envoy knows the server", b.inMesh, true)
	enough()
	legacy.Wait()
	if answered.Load() > 0 {
		t.Errorf("of %d requests in plaintext %d were answered, although the policy is STRICT", tries.Load(), answered.Load())
	}

	b.put("services.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: echo, namespace: broken}\nspec: {clusterIP: 10.96.50.1, selector: {app: echo}, ports: [{name: http, port: 9080}]}\n")
	b.put("policy.yaml", "")
	b.awaitProblems(0)
	b.until("the plaintext caller is answered once the policy is gone", b.plaintext, true)
	b.until("the mesh is whole", b.inMesh, true)
}

// TestInvalidPolicyDeniesWhatItMightSelect: policies that are broken from the start come
// while traffic flows.
func TestInvalidPolicyDeniesWhatItMightSelect(t *testing.T) {
	b := startInvalid(t)
	b.until("a plaintext caller is answered", b.plaintext, true)
	stop := b.traffic()
	b.put("policy.yaml", brokenPolicy)
	b.until("the plaintext caller is refused", b.plaintext, false)
	b.inSync()
	b.put("policy.yaml", "")
	b.until("the plaintext caller is answered again", b.plaintext, true)
	stop() // a PeerAuthentication cannot refuse mutual TLS, so none of this did

	b.put("policy.yaml", brokenAuthorization)
	b.until("nobody is answered: in plaintext", b.plaintext, false)
	b.until("nobody is answered: over mutual TLS", b.inMesh, false)
	b.put("policy.yaml", "")
	b.until("the plaintext caller is answered in the end", b.plaintext, true)
	b.until("the client is answered in the end", b.inMesh, true)
}
