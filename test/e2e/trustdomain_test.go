package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
)

// The trust domain is changed in the steps of docs/trust-domain.md, while new connections are made all the
// time: no request fails, and at the end nothing has the old name.
func TestTrustDomainIsChangedUnderLoad(t *testing.T) {
	m, config := startWith(t, "trustdomain", func(o *meshup.Options) {
		// Each Pod has its own time of renewal, so that identities of both trust domains meet.
		o.AgentEnv = []string{"SECRET_TTL=20s", "SECRET_GRACE_PERIOD_RATIO=0.5", "SECRET_GRACE_PERIOD_RATIO_JITTER=0.3"}
	})
	client, echo := m.Pod("client-1.shop"), m.Pod("echo-1.shop")
	set := func(text string) {
		t.Helper()
		path := filepath.Join(config, "config.yaml")
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(old), "    trustDomain:")
		if err := errors.Join(os.WriteFile(path+".new", []byte(head+"    "+strings.ReplaceAll(text, "\n", "\n    ")+"\n"), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	// page waits until an admin page of both Envoys has one text, and lacks another, "" for none.
	page := func(path, has, lacks string) {
		t.Helper()
		for _, p := range []*meshup.Pod{client, echo} {
			err := meshup.Await(t.Context(), 2*time.Minute, p.Spec.Key()+" has "+has+" in "+path, func(ctx context.Context) error {
				text, err := p.Admin(ctx, path)
				switch {
				case err != nil:
					return err
				case !strings.Contains(string(text), has):
					return fmt.Errorf("%s lacks %s", path, has)
				case lacks != "" && strings.Contains(string(text), lacks):
					return fmt.Errorf("%s still has %s", path, lacks)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	caller := func() string {
		t.Helper()
		a, err := meshup.Post(t.Context(), meshup.Client(client.Net, 0), "http://echo:9080/", nil)
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("request: %+v, %v", a, err)
		}
		return a.Peer
	}
	if got := caller(); got != "spiffe://old.example/ns/shop/sa/client" {
		t.Fatalf("the caller is %q at the start", got)
	}
	served, err := echo.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := errorStats(t, m)
	l := load.New(t.Context(), client.Net.Dial)
	l.KeepAlive("echo:9080", 2, 20*time.Millisecond)
	l.Churn("echo:9080", 4, 20*time.Millisecond)

	set("trustDomain: old.example\ntrustDomainAliases: [new.example]")
	page("/config_dump", "spiffe://new.example/", "")
	if err := m.KillDiscovery(); err != nil {
		t.Fatal(err)
	}
	set("trustDomain: new.example\ntrustDomainAliases: [old.example]")
	if err := m.StartDiscovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	page("/certs", "spiffe://new.example/", "spiffe://old.example/")
	set("trustDomain: new.example")
	page("/config_dump?resource=dynamic_listeners", "spiffe://new.example/", "spiffe://old.example/")
	page("/config_dump?resource=dynamic_active_clusters", "spiffe://new.example/", "spiffe://old.example/")

	r := l.Stop()
	if len(r.Failures) > 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	if now, err := echo.Served(t.Context()); err != nil || now-served != r.Sent {
		t.Errorf("%d requests sent, %d served, error %v", r.Sent, now-served, err)
	}
	if err := meshup.CompareErrorStats(before, ofReplacedClusters(errorStats(t, m))); err != nil {
		t.Error(err)
	}
	if got := caller(); got != "spiffe://new.example/ns/shop/sa/client" {
		t.Errorf("the caller is %q at the end", got)
	}
	t.Logf("%d requests in %v", r.Sent, r.Took.Round(time.Millisecond))
}
