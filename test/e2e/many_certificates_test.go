package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// TestOneCertificateOfMany changes one certificate, again and again, of a gateway that has a hundred, each of a server of its own, under new
// connections as fast as they go: one secret moves, nothing else, and no connection fails.
func TestOneCertificateOfMany(t *testing.T) { manyCertificates(t, 100) }

// BenchmarkCertificatesOfAGateway reports what 2,000 hosts with certificates of their own cost on one gateway, and one that changes.
func BenchmarkCertificatesOfAGateway(b *testing.B) {
	for b.Loop() {
		manyCertificates(b, 2000)
	}
}

// rotations is how often the certificate of one host is changed.
const rotations = 10

// manyCertificates has a gateway serve that many hosts, and changes the certificate of one again and again.
func manyCertificates(t testing.TB, hosts int) {
	m, config := startWith(t, "gateway", func(*meshup.Options) {})
	ca := newAuthority(t)
	secrets, routes, total := filepath.Join(config, "certificates"), &strings.Builder{}, 0
	if err := os.Mkdir(secrets, 0o755); err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return fmt.Sprintf("h%04d", i) }
	write := func(i int) *big.Int {
		t.Helper()
		cert, files, _ := ca.issue(t, name(i)+".example.com")
		text := secretText("istio-system", name(i), map[string][]byte{"tls.crt": files[0], "tls.key": files[1]})
		total += len(text)
		path := filepath.Join(secrets, name(i)+".yaml")
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
		return cert.SerialNumber
	}
	fmt.Fprint(routes, "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: many, namespace: gateway}\nspec:\n  selector: {istio: ingressgateway}\n  servers:\n")
	for i := range hosts {
		write(i)
		fmt.Fprintf(routes, "  - {port: {number: 8443, name: https-%[1]s, protocol: HTTPS}, hosts: [%[1]s.example.com], tls: {mode: SIMPLE, credentialName: %[1]s}}\n", name(i))
	}
	fmt.Fprint(routes, "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: many, namespace: gateway}\nspec:\n  gateways: [many]\n  hosts: [\"*.example.com\"]\n  http: [{route: [{destination: {host: echo, port: {number: 9080}}}]}]\n")
	before := costsOf(t, m)
	began := time.Now()
	if err := os.WriteFile(filepath.Join(config, "many.yaml"), []byte(routes.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	wait := func(what string, cond func(context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), 4*time.Minute, what, cond); err != nil {
			t.Fatal(err)
		}
	}
	serves := func(ctx context.Context, i int) (*big.Int, error) {
		state, err := getTLS(ctx, m, ca.pool, name(i)+".example.com", nil)
		if err != nil {
			return nil, err
		}
		return state.PeerCertificates[0].SerialNumber, nil
	}
	wait("the gateway has all certificates", func(ctx context.Context) error {
		list, err := activeSecrets(ctx, m)
		if err == nil && len(list) != hosts {
			err = fmt.Errorf("%d of %d", len(list), hosts)
		}
		return err
	})
	for _, i := range []int{0, hosts / 2, hosts - 1} {
		wait(name(i)+" is served", func(ctx context.Context) error { _, err := serves(ctx, i); return err })
	}
	loaded, after := time.Since(began), costsOf(t, m)
	old, err := activeSecrets(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	changed := hosts / 2
	began = time.Now()
	requests := 0
	for range rotations {
		serial := write(changed)
		wait("the new certificate is served, without a failed connection", func(ctx context.Context) error {
			for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); requests++ {
				got, err := serves(ctx, changed)
				switch {
				case err != nil:
					return meshup.Final(err)
				case got.Cmp(serial) == 0:
					return nil
				}
			}
			return fmt.Errorf("the old certificate is served")
		})
	}
	took := time.Since(began)
	last := costsOf(t, m)
	now, err := activeSecrets(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	var moved []string
	for key, at := range now {
		if old[key] != at {
			moved = append(moved, key)
		}
	}
	if len(moved) != 1 || !strings.HasSuffix(moved[0], "/"+name(changed)) || len(now) != len(old) {
		t.Errorf("%d secrets moved, %.5q: want that of %s", len(moved), moved, name(changed))
	}
	if last.listeners != after.listeners || last.routes != after.routes || last.clusters != after.clusters {
		t.Errorf("listeners, routes and clusters were updated with one certificate: %+v, then %+v", after, last)
	}
	t.Logf("%d hosts, %d kB of YAML: loaded after %v; discovery %.2f s and %.0f MB more, Envoy %.2f s and %.1f MB more; %d new certificates of one host: %v, %d connections (%.0f/s), none failed, discovery %.2f s, Envoy %.2f s",
		hosts, total/1000, loaded.Round(time.Millisecond), after.discovery-before.discovery, after.discoveryMB-before.discoveryMB, after.envoy-before.envoy, after.envoyMB-before.envoyMB,
		rotations, took.Round(time.Millisecond), requests, float64(requests)/took.Seconds(), last.discovery-after.discovery, last.envoy-after.envoy)
	if b, ok := t.(*testing.B); ok {
		b.ReportMetric(loaded.Seconds(), "s/load")
		b.ReportMetric(after.discovery-before.discovery, "discovery-cpu-s/load")
		b.ReportMetric(after.discoveryMB-before.discoveryMB, "discovery-MB")
		b.ReportMetric(after.envoy-before.envoy, "envoy-cpu-s/load")
		b.ReportMetric(after.envoyMB-before.envoyMB, "envoy-MB")
		b.ReportMetric(took.Seconds()/rotations, "s/change")
		b.ReportMetric((last.discovery-after.discovery)/rotations, "discovery-cpu-s/change")
		b.ReportMetric(float64(requests)/took.Seconds(), "connections/s")
	}
}

// costs are processor time in seconds and memory of discovery and of the gateway's Envoy, and how often that was updated.
type costs struct {
	discovery, envoy, discoveryMB, envoyMB float64
	listeners, routes, clusters            int64
}

func costsOf(t testing.TB, m *meshup.Mesh) (c costs) {
	t.Helper()
	gateway := m.Pod("ingress-1.istio-system")
	text, err := m.Get(t.Context(), gateway.Net, "http://127.0.0.1:15000/stats?usedonly")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		stat, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch {
		case stat == "listener_manager.lds.update_success":
			c.listeners = n
		case stat == "cluster_manager.cds.update_success":
			c.clusters = n
		case strings.HasPrefix(stat, "http.") && strings.HasSuffix(stat, ".config_reload"):
			c.routes += n
		}
	}
	pid, err := gateway.EnvoyPID()
	if err != nil {
		t.Fatal(err)
	}
	c.envoy, c.envoyMB = usage(t, pid)
	c.discovery, c.discoveryMB = usage(t, m.DiscoveryPID())
	return c
}

// usage returns the processor time in seconds and the resident memory in MB of a process.
func usage(t testing.TB, pid int) (seconds, megabytes float64) {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	ticks := func(i int) float64 { n, _ := strconv.ParseFloat(f[i], 64); return n / 100 }
	pages, _ := strconv.ParseFloat(f[21], 64)
	return ticks(11) + ticks(12), pages * float64(os.Getpagesize()) / 1e6
}

// activeSecrets returns when each of the secrets was updated that the gateway's Envoy has from discovery, by name.
func activeSecrets(ctx context.Context, m *meshup.Mesh) (map[string]string, error) {
	text, err := m.Get(ctx, m.Pod("ingress-1.istio-system").Net, "http://127.0.0.1:15000/config_dump?resource=dynamic_active_secrets&mask=name,last_updated")
	if err != nil {
		return nil, err
	}
	var page struct {
		Configs []struct {
			Name    string
			Updated string `json:"last_updated"`
		}
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, s := range page.Configs {
		if strings.HasPrefix(s.Name, "kubernetes://") {
			out[s.Name] = s.Updated
		}
	}
	return out, nil
}
