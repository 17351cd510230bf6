package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// rotated is what /debug/ca says.
type rotated struct {
	Phase     string
	Roots     []struct{ SHA256, Role string }
	Instances []struct {
		Waiting int
		Names   []string
	}
	Problem string
}

// TestRootRotation rotates the root of a mesh under load, one of whose agents does not subscribe to trust bundles, as Istio's
// does not by default. Each request needs a handshake; none fails. At the end all trust the new root alone, and the agents
// connect to the control plane although their file has the old one.
func TestRootRotation(t *testing.T) {
	t.Parallel()
	const withoutPCDS = "echo-3.rotation"
	m, _ := startWith(t, "rotation", func(o *meshup.Options) {
		o.AgentEnv = []string{"SECRET_TTL=60s"}
		o.PodEnv = map[string][]string{withoutPCDS: {"PROXY_CONFIG_XDS_AGENT=false"}}
	})
	old := caStatus(t.Context(), t, m, http.MethodGet, "")
	if old.Phase != "stable" || len(old.Roots) != 1 {
		t.Fatalf("at first: %+v", old)
	}
	load := startHandshakes(t, m)
	begun := caStatus(t.Context(), t, m, http.MethodPost, "/rotate")
	t.Logf("begun: %+v", begun)
	await(t, "only "+withoutPCDS+" has not acknowledged the new root", func(ctx context.Context) error {
		s := caStatus(ctx, t, m, http.MethodGet, "")
		if s.Phase != "distributing" || len(s.Instances) != 1 || !slices.Equal(s.Instances[0].Names, []string{withoutPCDS}) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	var last rotated
	await(t, "the old root is not trusted any more", func(ctx context.Context) error {
		last = caStatus(ctx, t, m, http.MethodGet, "")
		if last.Phase != "stable" || last.Roots[0].SHA256 == old.Roots[0].SHA256 {
			return fmt.Errorf("%+v", last)
		}
		return nil
	})
	for _, p := range m.Pods() {
		await(t, p.Spec.Key()+" trusts the new root alone", func(ctx context.Context) error {
			return trusts(ctx, m, p, last.Roots[0].SHA256)
		})
	}
	load.end()
}

// await waits for what takes at most a few lifetimes of a leaf.
func await(t *testing.T, what string, cond func(context.Context) error) {
	t.Helper()
	began := time.Now()
	if err := meshup.Await(t.Context(), 6*time.Minute, what, cond); err != nil {
		t.Fatal(err)
	}
	t.Logf("after %v %s", time.Since(began).Round(time.Second), what)
}

// steady waits until a condition holds 20 times in a row. Each thread of an Envoy takes a new listener at its own time, and keeps
// its connections to one that is replaced for a while: one request says little about the next.
func steady(t *testing.T, what string, cond func(context.Context) error) {
	t.Helper()
	await(t, what, func(ctx context.Context) error {
		for range 20 {
			if err := cond(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// trusts returns an error unless the roots of a Pod's agent are the one with that digest, and its Envoy is connected.
func trusts(ctx context.Context, m *meshup.Mesh, p *meshup.Pod, want string) error {
	text, err := m.Get(ctx, p.Net, "http://127.0.0.1:15020/debug/status")
	if err != nil {
		return err
	}
	var page struct {
		Detail struct {
			Connected bool
			Roots     []struct{ SHA256 string } `json:"trusted_roots"`
		}
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return err
	}
	if d := page.Detail; !d.Connected || len(d.Roots) != 1 || d.Roots[0].SHA256 != want {
		return fmt.Errorf("%+v, want %s", d, want)
	}
	return nil
}

// caStatus requests a page about the CA.
func caStatus(ctx context.Context, t *testing.T, m *meshup.Mesh, method, page string) rotated {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, m.DiscoveryURL()+"/debug/ca"+page, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	c := &http.Client{Transport: &http.Transport{DialContext: m.Net.Host().Dial, DisableKeepAlives: true}, Timeout: 30 * time.Second}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s (%v)", method, r.URL, res.Status, text, err)
	}
	var s rotated
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}
