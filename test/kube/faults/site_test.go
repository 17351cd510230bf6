package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/load"
)

// site is the cluster with the mesh.
type site struct{ *clusterup.Cluster }

// proxies is the number of Pods with one.
const proxies = 4

// pod is a Pod that runs.
type pod struct {
	site
	namespace, name string
}

// Dial implements meshup.Dialer: it makes connections from the Pod.
func (p pod) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return p.Node.DialFrom(ctx, p.namespace, p.name, network, addr)
}

// inspector asks the Pod's Envoy.
func (p pod) inspector() meshup.Inspector {
	return meshup.Inspector{Name: p.name, From: p, AppPort: "8080"}
}

// get asks a page of a program of the Pod on its loopback, and returns its text whatever the status says.
func (p pod) get(ctx context.Context, port int, page string) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, page), nil)
	if err != nil {
		return 0, "", err
	}
	c := &http.Client{Transport: &http.Transport{DialContext: p.Dial, DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// await waits until look returns nil.
func (s site) await(ctx context.Context, what string, look func(context.Context) error) error {
	return meshup.Await(ctx, bound, what, look)
}

// until is await for a test, and returns how long it took.
func until(t *testing.T, what string, look func(context.Context) error) time.Duration {
	t.Helper()
	began := time.Now()
	if err := meshup.Await(t.Context(), bound, what, look); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// pods lists the Pods of an app that are not being deleted.
func (s site) pods(ctx context.Context, namespace, app string) ([]corev1.Pod, error) {
	list, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// areReady returns an error if an app has not so many Pods, or one of them is not ready.
func (s site) areReady(ctx context.Context, namespace, app string, want int) error {
	list, err := s.pods(ctx, namespace, app)
	if err != nil {
		return err
	}
	have := 0
	for _, p := range list {
		if ready(&p) {
			have++
		}
	}
	if have != want || len(list) != want {
		return fmt.Errorf("%d of %d Pods of %s are ready: want %d", have, len(list), app, want)
	}
	return nil
}

// bothReady returns an error if not both replicas are, for their readiness probes and by their own word.
func (s site) bothReady(ctx context.Context) error {
	if err := s.areReady(ctx, system, "istiod", 2); err != nil {
		return err
	}
	all, err := s.replicas(ctx)
	for _, r := range all {
		status, text, e := r.get(ctx, 8080, "/ready")
		if e == nil && (status != http.StatusOK || strings.Contains(text, "may be missing")) {
			e = fmt.Errorf("%s: %s", r.name, text)
		}
		err = errors.Join(err, e)
	}
	return err
}

// replicas are the Pods of pilot-discovery.
func (s site) replicas(ctx context.Context) ([]pod, error) { return s.named(ctx, system, "istiod") }

func (s site) named(ctx context.Context, namespace, app string) ([]pod, error) {
	list, err := s.pods(ctx, namespace, app)
	out := make([]pod, 0, len(list))
	for _, p := range list {
		out = append(out, pod{s, namespace, p.Name})
	}
	return out, err
}

// two are the replicas, of which there must be two.
func (s site) two(t *testing.T) [2]pod {
	t.Helper()
	all, err := s.replicas(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%d replicas, error %v", len(all), err)
	}
	return [2]pod(all)
}

// kill ends a replica's process without a warning; the Node starts another one in the same Pod.
func (p pod) kill(t *testing.T) {
	t.Helper()
	pid := 0
	until(t, "pilot-discovery runs in "+p.name, func(context.Context) (err error) {
		pid, err = p.Node.PID(p.namespace, p.name, "discovery")
		return err
	})
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
}

// metric reads a metric of a replica that has no labels.
func (p pod) metric(ctx context.Context, name string) (float64, error) {
	status, text, err := p.get(ctx, 15014, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("status %d, without the metric %s", status, name)
}

// streams counts the proxies that are connected to a replica, and have what it has for them.
func (p pod) streams(ctx context.Context) (int, error) {
	_, text, err := p.get(ctx, 8080, "/debug/syncz")
	if err != nil {
		return 0, err
	}
	var all []struct {
		Proxy               string
		Generation, Applied uint64
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return 0, fmt.Errorf("read /debug/syncz of %s: %w: %.200s", p.name, err, text)
	}
	for _, one := range all {
		if one.Applied != one.Generation {
			return 0, fmt.Errorf("%s has applied %d of %d", one.Proxy, one.Applied, one.Generation)
		}
	}
	return len(all), nil
}

// servesAll returns an error unless every proxy is connected to this replica.
func (p pod) servesAll(ctx context.Context) error {
	n, err := p.streams(ctx)
	if err == nil && n != proxies {
		err = fmt.Errorf("it has %d streams", n)
	}
	return err
}

// connected returns an error unless every proxy is connected to one of the replicas, and to each replica at least least.
func (s site) connected(ctx context.Context, least int) error {
	all, err := s.replicas(ctx)
	if err != nil {
		return err
	}
	sum, counts := 0, []int{}
	for _, r := range all {
		n, err := r.streams(ctx)
		if err != nil {
			return err
		}
		sum += n
		counts = append(counts, n)
	}
	if sum != proxies || slices.Min(counts) < least {
		return fmt.Errorf("the replicas have %v streams: want %d, and %d for each", counts, proxies, least)
	}
	return nil
}

// leadsToBoth returns an error unless the Service of pilot-discovery leads to both replicas, and to nothing else. If it led to one of
// them alone, or to one that is gone, that would show when the other one ends.
func (s site) leadsToBoth(ctx context.Context) error {
	pods, err := s.pods(ctx, system, "istiod")
	if err != nil {
		return err
	}
	var want, have []string
	for _, p := range pods {
		want = append(want, p.Status.PodIP)
	}
	backends, err := s.Network.Backends("istiod." + system + ":15012")
	for _, b := range backends {
		have = append(have, b.Addr().String())
	}
	slices.Sort(want)
	slices.Sort(have)
	if len(want) != 2 || !slices.Equal(have, want) {
		err = errors.Join(err, fmt.Errorf("it leads to %v, the replicas are %v", have, want))
	}
	return err
}

// settled waits until the replicas and the workloads are ready, the Service leads to both replicas, every proxy is connected, and
// every Envoy has the web's endpoints.
func (s site) settled(t *testing.T) {
	t.Helper()
	until(t, "the replicas are ready", s.bothReady)
	until(t, "the Service leads to both replicas", s.leadsToBoth)
	for _, app := range []string{"web", "shopper"} {
		until(t, "the Pods of "+app+" are ready", func(ctx context.Context) error { return s.areReady(ctx, shop, app, 2) })
	}
	until(t, "every proxy is connected", func(ctx context.Context) error { return s.connected(ctx, 0) })
	until(t, "every Envoy has the web's endpoints", func(ctx context.Context) error {
		for _, p := range s.envoys(t) {
			text, err := p.inspector().Admin(ctx, "/clusters")
			if err != nil {
				return err
			}
			n := 0
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "outbound|8080||web."+shop+".svc.cluster.local::") && strings.Contains(line, "::health_flags::healthy") {
					n++
				}
			}
			if n != 2 {
				return fmt.Errorf("%s has %d: want 2", p.name, n)
			}
		}
		return nil
	})
}

// envoys are the Pods with a proxy.
func (s site) envoys(t *testing.T) []pod {
	t.Helper()
	var out []pod
	for _, app := range []string{"web", "shopper"} {
		all, err := s.named(t.Context(), shop, app)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, all...)
	}
	return out
}

// removals are what Envoys count of clusters and listeners that they have removed.
const removals = "(cluster_manager.cluster_removed|listener_manager.listener_removed|update_rejected)"

// traffic is load on the web by way of both shoppers: over connections that stay, and over new ones.
type traffic struct {
	site  site
	loads []*load.Load
	// served is what the web's apps had served when it began, removed what the Envoys had removed.
	served  int64
	envoys  []pod
	removed map[string]int64
}

// load starts traffic. At the end of the test, if that has not ended it before, it is stopped.
func (s site) load(t *testing.T) *traffic {
	t.Helper()
	l := &traffic{site: s, envoys: s.envoys(t)}
	l.served, l.removed = l.count(t), l.stats(t)
	for _, p := range l.envoys {
		if !strings.HasPrefix(p.name, "shopper") {
			continue
		}
		one := load.New(context.WithoutCancel(t.Context()), p.Dial)
		// The app in the shopper's Pod calls the web once for each of these; its connections stay. What the tests break would take
		// seconds to be whole again: requests need not be many to notice.
		one.KeepAlive("127.0.0.1:8080", 3, 100*time.Millisecond)
		// These are redirected to the shopper's Envoy.
		one.Churn("web:8080", 2, 100*time.Millisecond)
		l.loads = append(l.loads, one)
	}
	t.Cleanup(func() {
		for _, one := range l.loads {
			one.Stop()
		}
	})
	return l
}

// count is the number of requests that the web's apps have served.
func (l *traffic) count(t *testing.T) int64 {
	t.Helper()
	sum := int64(0)
	for _, p := range l.envoys {
		if strings.HasPrefix(p.name, "web") {
			n, err := p.inspector().Served(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// stats reads what all Envoys have removed and refused.
func (l *traffic) stats(t *testing.T) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, p := range l.envoys {
		stats, err := p.inspector().Stats(t.Context(), removals)
		if err != nil {
			t.Fatal(err)
		}
		for name, n := range stats {
			out[p.name+": "+name] = n
		}
	}
	return out
}

// stop ends the traffic. Every request must have been answered, and served once; no Envoy may have removed or refused
// anything meanwhile.
func (l *traffic) stop(t *testing.T) {
	t.Helper()
	l.answered(t)
	for name, n := range l.stats(t) {
		if n != l.removed[name] {
			t.Errorf("%s went from %d to %d", name, l.removed[name], n)
		}
	}
}

// answered ends the traffic. Every request must have been answered, and served once.
func (l *traffic) answered(t *testing.T) {
	t.Helper()
	sent := int64(0)
	for _, one := range l.loads {
		result := one.Stop()
		answered := int64(0)
		for _, n := range result.Answers {
			answered += n
		}
		if len(result.Failures) > 0 || answered != result.Sent {
			t.Errorf("%d requests, %d answered; failed: %v", result.Sent, answered, result.Failures)
		}
		sent += result.Sent
	}
	l.loads = nil
	if n := l.count(t) - l.served; n != sent {
		t.Errorf("the web has served %d requests: want %d", n, sent)
	}
	if sent < 100 {
		t.Errorf("%d requests only", sent)
	}
	t.Logf("%d requests, 0 failed", sent)
}

var changes atomic.Int64

// change applies a new object of Istio's and returns the name that an Envoy's cluster has by it. The object stays, so that
// nothing is removed.
func (s site) change(ctx context.Context) (cluster string, err error) {
	host := fmt.Sprintf("change-%d.example.com", changes.Add(1))
	_, err = s.ApplyYAML(ctx, shop, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s}
spec: {hosts: [%s], resolution: STATIC, location: MESH_EXTERNAL, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.1}]}
`, strings.TrimSuffix(host, ".example.com"), host))
	return "outbound|80||" + host, err
}

// arrives makes a change and waits until every Envoy has it. It returns how long that took.
func (s site) arrives(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	var cluster string
	// The webhook that validates it may have no endpoint for a moment.
	until(t, "the change is stored", func(ctx context.Context) (err error) {
		cluster, err = s.change(ctx)
		return err
	})
	stored := time.Since(began)
	s.have(t, cluster)
	t.Logf("a change was stored after %v, and was at all proxies after %v", stored.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return time.Since(began)
}

// have waits until every Envoy has all of the clusters.
func (s site) have(t *testing.T, clusters ...string) {
	t.Helper()
	for _, p := range s.envoys(t) {
		until(t, p.name+" has the clusters of all changes", func(ctx context.Context) error {
			text, err := p.inspector().Admin(ctx, "/config_dump?resource=dynamic_active_clusters")
			if err != nil {
				return err
			}
			for _, c := range clusters {
				if !strings.Contains(string(text), `"`+c+`"`) {
					return errors.New("it has not " + c)
				}
			}
			return nil
		})
	}
}

// holder is the identity of the replica that has the Lease.
func (s site) holder(ctx context.Context) (string, error) {
	l, err := s.Client.CoordinationV1().Leases(system).Get(ctx, "pilothouse-leader", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", errors.New("nobody has the Lease")
	}
	return *l.Spec.HolderIdentity, nil
}

// podOf is the Pod's name in an identity.
func podOf(identity string) string { return identity[:max(0, strings.LastIndexByte(identity, '_'))] }

// leader waits until somebody leads, and returns its identity and both replicas, that one first.
func (s site) leader(t *testing.T) (identity string, leads, follows pod) {
	t.Helper()
	until(t, "one replica leads, and has the Lease", func(ctx context.Context) (err error) {
		if identity, err = s.holder(ctx); err != nil {
			return err
		}
		all, err := s.replicas(ctx)
		if err != nil || len(all) != 2 {
			return errors.Join(err, fmt.Errorf("%d replicas", len(all)))
		}
		leads, follows = all[0], all[1]
		if podOf(identity) == follows.name {
			leads, follows = follows, leads
		}
		if podOf(identity) != leads.name {
			return fmt.Errorf("%s has the Lease, the replicas are %s and %s", identity, leads.name, follows.name)
		}
		a, err := leads.metric(ctx, "pilothouse_leader")
		b, err2 := follows.metric(ctx, "pilothouse_leader")
		if err := errors.Join(err, err2); err != nil || a != 1 || b != 0 {
			return errors.Join(err, fmt.Errorf("pilothouse_leader is %v at %s, %v at the other", a, identity, b))
		}
		return nil
	})
	return identity, leads, follows
}
