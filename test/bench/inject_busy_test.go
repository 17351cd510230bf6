package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	meshv1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/test/wait"
)

// injecting serves /inject with TLS in this process, next to the control plane, as pilot-discovery does. It returns the
// URL and a client.
func injecting(b *testing.B) (string, *http.Client) {
	b.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); {
		case q.Get("sendInitialEvents") == "true": // as a server that cannot stream lists
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"BadRequest","code":400}`)
		case q.Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case path.Base(r.URL.Path) == "nodes":
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"n"},"status":{"nodeInfo":{"kubeletVersion":"v1.34.1"}}}]}`)
		default:
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"1"},"items":[]}`)
		}
	}))
	log := slog.New(slog.DiscardHandler)
	in, err := webhook.NewClusterInjector(webhook.InjectorOptions{Config: &rest.Config{Host: api.URL}, Namespace: "istio-system", Ready: func() bool { return true }, Log: log})
	if err != nil {
		b.Fatal(err)
	}
	in.SetMesh(&meshv1.MeshConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	s := httptest.NewUnstartedServer(webhook.New(webhook.Options{Injector: in, Metrics: prometheus.NewRegistry(), Log: log}).Handler())
	s.EnableHTTP2 = true
	s.StartTLS()
	b.Cleanup(func() {
		s.Close()
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		api.CloseClientConnections()
		api.Close()
	})
	wait.Until(b, "the injector has read its configuration", func() bool { return in.Pending() == "" })
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	return s.URL, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}}
}

// reviewOf is the API server's request for a Pod.
func reviewOf(b *testing.B, pod *corev1.Pod) []byte {
	b.Helper()
	object, err := json.Marshal(pod)
	if err != nil {
		b.Fatal(err)
	}
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","namespace":%q,"resource":{"version":"v1","resource":"pods"},"object":%s}}`, pod.Namespace, object)
}

// injectOnce asks for one injection.
func injectOnce(client *http.Client, url string, body []byte) error {
	r, err := client.Post(url+"/inject?timeout=10s", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("JSONPatch")) {
		return fmt.Errorf("status %d: %.200s", r.StatusCode, text)
	}
	return nil
}

// BenchmarkInjectionWhileBusy asks for the injection of Pods, as many at a time as there are processors and with TLS, while
// ten proxies are connected to the control plane in the same process, and, in "busy", its configuration changes all the
// time: an endpoint, a route and a cluster in turn. One operation is one Pod. It reports how long the median and the slowest
// hundredth take, whose budget is 20 ms, the processor time of the process, that of the client and of the changes
// included, and how often proxies applied a change meanwhile.
func BenchmarkInjectionWhileBusy(b *testing.B) {
	z := standard
	p := newPlane(b, z)
	ids := make([]string, 10)
	for i := range ids {
		ids[i] = z.nodeID(i)
	}
	p.tell(b, command{Op: "connect", Addr: p.addr.GRPC, IDs: ids})
	url, client := injecting(b)
	body := reviewOf(b, benchPod())
	change := func(turn int) {
		n := turn / 3 % 2
		switch turn % 3 {
		case 0:
			p.write(b, "pod.yaml", z.pod(changed, 2, 1-n))
		case 1:
			p.write(b, "virtualservice.yaml", z.virtualService(changed, []int{50, 90}[n]))
		default:
			p.write(b, "destinationrule.yaml", z.destinationRule(changed, []int{200, 100}[n]))
		}
	}
	for _, name := range []string{"quiet", "busy"} {
		b.Run(name, func(b *testing.B) {
			stop, before := make(chan struct{}), p.applied(b)
			var changing sync.WaitGroup
			if name == "busy" {
				changing.Go(func() {
					for turn := 0; ; turn++ {
						select {
						case <-stop:
							return
						case <-time.After(20 * time.Millisecond):
							change(turn)
						}
					}
				})
			}
			var mu sync.Mutex
			var took []time.Duration
			used := cpu()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					start := time.Now()
					if err := injectOnce(client, url, body); err != nil {
						b.Error(err)
						return
					}
					d := time.Since(start)
					mu.Lock()
					took = append(took, d)
					mu.Unlock()
				}
			})
			used = cpu() - used
			close(stop)
			changing.Wait()
			slices.Sort(took)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
			b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
			b.ReportMetric(ms(used)/float64(len(took)), "cpu-ms/op")
			b.ReportMetric(float64(p.applied(b)-before), "applied")
		})
	}
}
