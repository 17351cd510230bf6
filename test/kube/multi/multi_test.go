package multi_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// answer is what a workload answers: its name, its cluster as its version, and the identity of its caller.
type answer struct {
	Service, Version, Peer string
}

// client returns one that sends requests from the only Pod of a workload.
func client(t *testing.T, c *clusterup.Cluster, workload string) *http.Client {
	t.Helper()
	pods, err := c.Client.CoreV1().Pods(shop).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + workload})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("the Pods of %s: %v, %d", workload, err, len(pods.Items))
	}
	name := pods.Items[0].Name
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return c.Node.DialFrom(ctx, shop, name, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: bound}
}

// call sends a request; an answer with another status than 200 is an error.
func call(ctx context.Context, c *http.Client, at, host string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", nil)
	if err != nil {
		return a, err
	}
	req.Host = host
	res, err := c.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s answers %s", host, res.Status)
	}
	return a, json.NewDecoder(res.Body).Decode(&a)
}

// until waits until look returns nil.
func until(t *testing.T, what string, look func() error) {
	t.Helper()
	if err := meshup.Await(t.Context(), bound, what, func(context.Context) error { return look() }); err != nil {
		t.Fatal(err)
	}
}

// awaitAnswers waits until a host is answered by exactly these clusters: in a row of requests each of them answers.
func awaitAnswers(t *testing.T, c *http.Client, host string, clusters ...string) {
	t.Helper()
	until(t, fmt.Sprintf("%s is answered by %q", host, clusters), func() error {
		seen := map[string]bool{}
		for range 20 {
			a, err := call(t.Context(), c, host, host)
			if err != nil {
				return err
			}
			seen[a.Version] = true
		}
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, clusters) {
			return fmt.Errorf("it is by %q", got)
		}
		return nil
	})
}

const callerOfAll = "spiffe://cluster.local/ns/shop/sa/client"

// Requests for a service of both clusters are answered by both; each endpoint sees the identity of the caller, from
// another network too.
func TestBothClustersAnswer(t *testing.T) {
	s := start(t)
	c := client(t, s.one, "client")
	awaitAnswers(t, c, "api", "one", "two")
	count := map[string]int{}
	for range 200 {
		a, err := call(t.Context(), c, "api", "api")
		if err != nil {
			t.Fatal(err)
		}
		if a.Service != "api" || a.Peer != callerOfAll {
			t.Fatalf("the answer is %+v, want the caller %s", a, callerOfAll)
		}
		count[a.Version]++
	}
	if len(count) != 2 || count["one"] < 50 || count["two"] < 50 {
		t.Errorf("answers by cluster: %v, want about 100 of each", count)
	}
	// The other way.
	awaitAnswers(t, client(t, s.two, "far"), "api", "one", "two")
}

// A service whose endpoints are all in the other network is reached there; one that does not even exist here is by its
// name, if the request finds a way into the mesh.
func TestServicesOfTheOtherCluster(t *testing.T) {
	s := start(t)
	c := client(t, s.one, "client")
	awaitAnswers(t, c, "far", "two")
	for at, host := range map[string]string{"far": "far", "api": "only.shop.svc.cluster.local"} {
		service, _, _ := strings.Cut(host, ".")
		until(t, host+" is answered", func() error {
			a, err := call(t.Context(), c, at, host)
			if err == nil && (a.Service != service || a.Version != "two" || a.Peer != callerOfAll) {
				t.Errorf("the answer is %+v, want one of %s in cluster two, with the caller %s", a, service, callerOfAll)
			}
			return err
		})
	}
}

// There is no other way between the networks than the gateways, and these forward the mesh's mutual TLS only.
func TestNothingElsePasses(t *testing.T) {
	s := start(t)
	awaitAnswers(t, client(t, s.one, "client"), "far", "two")
	pods, err := s.two.Client.CoreV1().Pods(shop).List(t.Context(), metav1.ListOptions{LabelSelector: "app=far"})
	if err != nil || len(pods.Items) != 1 {
		t.Fatal(err, len(pods.Items))
	}
	host := s.one.Network.Mesh.Host()
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if conn, err := host.Dial(short, "tcp", pods.Items[0].Status.PodIP+":8081"); err == nil {
		_ = conn.Close()
		t.Error("a Pod of the other network is reached directly")
	}
	const sni = "outbound_.80_._.far.shop.svc.cluster.local"
	for what, config := range map[string]*tls.Config{
		"plaintext":                                  nil,
		"TLS of another client":                      {ServerName: sni, NextProtos: []string{"h2", "http/1.1"}},
		"the mesh's TLS without a certificate":       {ServerName: sni, NextProtos: []string{"istio"}},
		"the mesh's TLS for a host without endpoint": {ServerName: "outbound_.80_._.nobody.shop.svc.cluster.local", NextProtos: []string{"istio"}},
		"the mesh's TLS for a cluster of the proxy":  {ServerName: "outbound|80||far.shop.svc.cluster.local", NextProtos: []string{"istio"}},
		"the mesh's TLS without a name":              {NextProtos: []string{"istio"}},
	} {
		conn, err := host.Dial(t.Context(), "tcp", netip.AddrPortFrom(s.one.Network.Gateway(), 15443).String())
		if err != nil {
			t.Fatal(err)
		}
		if config != nil {
			config.InsecureSkipVerify = true // what counts is what the other side does
			conn = tls.Client(conn, config)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: far\r\nConnection: close\r\n\r\n")
		var answer []byte
		if err == nil {
			answer, err = io.ReadAll(conn)
		}
		_ = conn.Close()
		var timeout net.Error
		if len(answer) > 0 || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: answer %q, error %v; want a closed connection", what, answer, err)
		}
	}
}

// load sends requests until stop is called, which returns how many there were, the clusters that have answered, and the
// errors.
func load(t *testing.T, c *http.Client, host string) (stop func() (map[string]int, []error)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var group sync.WaitGroup
	var mu sync.Mutex
	count := map[string]int{}
	var errs []error
	for range 3 {
		group.Go(func() {
			for ctx.Err() == nil {
				a, err := call(context.WithoutCancel(ctx), c, host, host)
				mu.Lock()
				if count[a.Version]++; err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	once := sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(once)
	return func() (map[string]int, []error) { once(); return count, errs }
}

// scale sets how many Pods of a workload there are, and waits until that is so.
func scale(t *testing.T, c *clusterup.Cluster, workload string, to int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, to)
	if _, err := c.Client.AppsV1().Deployments(shop).Patch(t.Context(), workload, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, fmt.Sprintf("%s has %d Pods", workload, to), func() error {
		pods, err := c.Client.CoreV1().Pods(shop).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + workload})
		if err == nil && len(pods.Items) != to {
			err = fmt.Errorf("it has %d", len(pods.Items))
		}
		return err
	})
}

// With locality failover requests stay in the region of the client while there are endpoints. When those end, requests
// move to the other network, and back when there are some again; none fails.
func TestRequestsMoveToTheOtherNetwork(t *testing.T) {
	s := start(t)
	for region, c := range map[string]*clusterup.Cluster{"r1": s.one, "r2": s.two} {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"topology.kubernetes.io/region":%q}}}`, region)
		if _, err := c.Client.CoreV1().Nodes().Patch(t.Context(), c.Node.Name(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.one.Apply(t, shop, `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: api, namespace: shop}
spec: {host: api.shop.svc.cluster.local, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 100}}}
`)
	c := client(t, s.one, "client")
	awaitAnswers(t, c, "api", "one")
	stop := load(t, c, "api")
	scale(t, s.one, "api", 0)
	awaitAnswers(t, c, "api", "two")
	scale(t, s.one, "api", 1)
	awaitAnswers(t, c, "api", "one")
	noneFailed(t, stop)
}

// An API server that has ended holds nothing up: requests reach its cluster, and changes of the other are applied. When
// it is back, so are its changes.
func TestAPIServerOfTheOtherClusterEnds(t *testing.T) {
	s := start(t)
	c := client(t, s.one, "client")
	awaitAnswers(t, c, "api", "one", "two")
	s.two.StopAPIServer(t)
	ended := true
	t.Cleanup(func() {
		if ended {
			_ = s.two.RestartAPIServer(context.Background())
		}
	})
	stop := load(t, c, "api")
	s.one.Apply(t, shop, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: far, namespace: shop}
spec: {hosts: [far.shop.svc.cluster.local], http: [{directResponse: {status: 200, body: {string: '{"service": "far", "version": "changed"}'}}}]}
`)
	awaitAnswers(t, c, "far", "changed")
	awaitAnswers(t, c, "api", "one", "two")
	if err := s.two.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended = false
	scale(t, s.one, "api", 2)
	noneFailed(t, stop)
	scale(t, s.two, "api", 0)
	awaitAnswers(t, c, "api", "one")
	scale(t, s.two, "api", 1)
	awaitAnswers(t, c, "api", "one", "two")
	scale(t, s.one, "api", 1)
}

// noneFailed ends a load.
func noneFailed(t *testing.T, stop func() (map[string]int, []error)) {
	t.Helper()
	count, errs := stop()
	t.Logf("answers by cluster: %v", count)
	if len(errs) > 0 {
		t.Errorf("%d requests failed, the first: %v", len(errs), errs[0])
	}
	if len(count) == 0 {
		t.Error("there were no requests")
	}
}

// unread returns nil if the control plane says that it cannot read a cluster.
func (s *site) unread(t *testing.T, cluster string) error {
	pods, err := s.one.Client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app=istiod"})
	if err != nil || len(pods.Items) != 1 {
		return fmt.Errorf("the Pods of the control plane: %w, %d", err, len(pods.Items))
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return s.one.Node.DialFrom(ctx, system, pods.Items[0].Name, network, addr)
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost:8080/debug/clusterz", nil)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	var list []struct{ ID, SyncStatus, BehindSince string }
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		return err
	}
	for _, c := range list {
		if c.ID == cluster && (c.SyncStatus != "synced" || c.BehindSince != "") {
			return nil
		}
	}
	return fmt.Errorf("it says %+v", list)
}

// A cluster whose Secret is changed so that it cannot be read stays as it was; one whose Secret is removed has no
// endpoints; when it is added again, it has.
func TestClusterIsChangedRemovedAndAdded(t *testing.T) {
	s := start(t)
	c := client(t, s.one, "client")
	awaitAnswers(t, c, "far", "two")
	stop := load(t, c, "api")
	text, err := s.remoteSecret(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dead := strings.Replace(text, fmt.Sprintf(":%d", remotePort), ":1", 1)
	if dead == text {
		t.Fatalf("no port in the Secret:\n%s", text)
	}
	if _, err := s.one.ApplyYAML(t.Context(), "", dead); err != nil {
		t.Fatal(err)
	}
	until(t, "the control plane says that the cluster cannot be read", func() error { return s.unread(t, "two") })
	awaitAnswers(t, c, "far", "two")
	awaitAnswers(t, c, "api", "one", "two")
	noneFailed(t, stop)
	secrets := s.one.Client.CoreV1().Secrets(system)
	if err := secrets.Delete(t.Context(), "istio-remote-secret-two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.addRemote(context.Background()) })
	until(t, "far has no endpoint", func() error {
		if a, err := call(t.Context(), c, "far", "far"); err == nil {
			return fmt.Errorf("it answers %+v", a)
		}
		return nil
	})
	awaitAnswers(t, c, "api", "one")
	if err := s.addRemote(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitAnswers(t, c, "far", "two")
	awaitAnswers(t, c, "api", "one", "two")
	if a, err := call(t.Context(), c, "far", "far"); err != nil || a.Peer != callerOfAll {
		t.Errorf("far answers %+v, %v; want the caller %s", a, err, callerOfAll)
	}
}
