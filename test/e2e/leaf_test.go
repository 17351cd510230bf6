package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/load"
)

// startForLeaves brings up a mesh whose certificates are renewed every 2 s: when 0.95 of 40 s are left.
func startForLeaves(t testing.TB) *meshup.Mesh {
	t.Helper()
	m, _ := startWith(t, "leaf", func(o *meshup.Options) {
		o.AgentEnv = []string{"SECRET_TTL=40s", "SECRET_GRACE_PERIOD_RATIO=0.95", "SECRET_GRACE_PERIOD_RATIO_JITTER=0"}
	})
	return m
}

// newestCertificate is when the last of the certificates that Envoy uses expires. Connections keep those that they were made with.
func newestCertificate(ctx context.Context, p *meshup.Pod) (time.Time, error) {
	text, err := p.Admin(ctx, "/certs")
	if err != nil {
		return time.Time{}, err
	}
	var page struct {
		Certificates []struct {
			Chain []struct {
				Expiration time.Time `json:"expiration_time"`
			} `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return time.Time{}, err
	}
	var newest time.Time
	for _, c := range page.Certificates {
		for _, leaf := range c.Chain {
			if leaf.Expiration.After(newest) {
				newest = leaf.Expiration
			}
		}
	}
	if newest.IsZero() {
		return newest, fmt.Errorf("the Envoy of %s has no certificate", p.Spec.Key())
	}
	return newest, nil
}

// handshakesOf counts the TLS handshakes of all Envoys, on both sides.
func handshakesOf(t testing.TB, m *meshup.Mesh) (n int64) {
	t.Helper()
	for _, p := range m.Pods() {
		stats, err := p.Stats(t.Context(), `ssl\.handshake$`)
		if err != nil {
			t.Fatal(err)
		}
		for _, count := range stats {
			n += count
		}
	}
	return n
}

// served sums the requests that the apps of the echoes have answered.
func servedByEchoes(t testing.TB, m *meshup.Mesh) (n int64) {
	t.Helper()
	for _, name := range []string{"echo-1.leaf", "echo-2.leaf"} {
		served, err := m.Pod(name).Served(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += served
	}
	return n
}

// rotateLeaves waits until each Envoy has used so many new certificates, under load.
func rotateLeaves(t testing.TB, m *meshup.Mesh, times int) load.Result {
	t.Helper()
	served, shaken := servedByEchoes(t, m), handshakesOf(t, m)
	before, err := m.ErrorStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := load.New(t.Context(), m.Pod("client-1.leaf").Net.Dial)
	l.KeepAlive("echo:9080", 6, 10*time.Millisecond)
	l.Churn("echo:9080", 4, 10*time.Millisecond)
	l.HTTP2("echo:9081", 4, 10*time.Millisecond)
	l.Streams("echo:9000", 6, 50*time.Millisecond)
	var tasks []run.Task
	for _, p := range m.Pods() {
		tasks = append(tasks, run.Task{Name: p.Spec.Key(), Run: func(ctx context.Context) error {
			last, err := newestCertificate(ctx, p)
			for i := 0; i < times && err == nil; i++ {
				err = meshup.Await(ctx, time.Minute, fmt.Sprintf("%s uses certificate %d", p.Spec.Key(), i+1), func(ctx context.Context) error {
					next, err := newestCertificate(ctx, p)
					if err == nil && !next.After(last) {
						err = fmt.Errorf("its newest certificate ends at %s, as before", next)
					}
					if err == nil {
						last = next
					}
					return err
				})
			}
			return err
		}})
	}
	if err := run.Group(t.Context(), tasks...); err != nil {
		t.Error(err)
	}
	r := l.Stop()
	after, err := m.ErrorStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := meshup.CompareErrorStats(before, after); err != nil {
		t.Error(err)
	}
	if len(r.Failures) > 0 || len(r.Ends) > 0 {
		t.Errorf("of %d requests failed: %v; streams that ended: %v", r.Sent, r.Failures, r.Ends)
	}
	if n := servedByEchoes(t, m) - served; n != r.Sent {
		t.Errorf("%d requests sent, %d served", r.Sent, n)
	}
	n := handshakesOf(t, m) - shaken
	if n < int64(times) {
		t.Errorf("%d TLS handshakes, fewer than certificates", n)
	}
	t.Logf("%d certificates of each of %d Envoys in %v: %d requests (%.0f/s), %d ends of TLS handshakes, answers %v",
		times, len(m.Pods()), r.Took.Round(time.Millisecond), r.Sent, r.Rate(), n, r.Answers)
	return r
}

// TestLeavesAreRenewedUnderLoad renews the certificates of three Envoys over and over.
func TestLeavesAreRenewedUnderLoad(t *testing.T) { rotateLeaves(t, startForLeaves(t), 5) }

// BenchmarkLeafRenewal is the same for a minute, 30 certificates of each Envoy.
func BenchmarkLeafRenewal(b *testing.B) {
	m := startForLeaves(b)
	for b.Loop() {
		r := rotateLeaves(b, m, 30)
		b.ReportMetric(r.Rate(), "requests/s")
		b.ReportMetric(float64(len(r.Failures)), "failures")
	}
}
