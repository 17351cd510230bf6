package webhook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	validService = `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"shop"},"spec":{"hosts":["a"],"http":[{"route":[{"destination":{"host":"a"}}]}]}}`
	pod          = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"app-"},"spec":{"containers":[{"name":"app"}]}}`
)

func review(op, resource, object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":%q,"namespace":"shop","resource":%s,"object":%s}}`, op, resource, object)
}

const (
	virtualServices = `{"group":"networking.istio.io","version":"v1","resource":"virtualservices"}`
	pods            = `{"group":"","version":"v1","resource":"pods"}`
)

// injector injects by the functions that a test gives.
type injector func(webhook.PodRequest) (webhook.Injection, error)

func (f injector) Inject(r webhook.PodRequest) (webhook.Injection, error) { return f(r) }

// recorder records what it is told.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, text)
}

func (r *recorder) Skipped(p *corev1.Pod, namespace, reason, message string) {
	r.add(namespace + "/" + p.GenerateName + " " + reason + ": " + message)
}

func (r *recorder) Failed(p *corev1.Pod, namespace string, err error) {
	r.add(namespace + "/" + p.GenerateName + " failed: " + err.Error())
}

type server struct {
	*httptest.Server
	t       *testing.T
	metrics *prometheus.Registry
}

// start starts a server that waits for requests as long as they may take on a busy machine.
func start(t *testing.T, o webhook.Options) server { return startWith(t, o, wait.Bound) }

// startWith is start with how long the body of a request may take.
func startWith(t *testing.T, o webhook.Options, body time.Duration) server {
	t.Helper()
	o.Metrics = prometheus.NewRegistry()
	o.Log = slog.New(slog.DiscardHandler)
	hook := webhook.New(o)
	hook.SetLimits(wait.Bound, body)
	s := server{httptest.NewServer(hook.Handler()), t, o.Metrics.(*prometheus.Registry)}
	t.Cleanup(s.Close)
	return s
}

func (s server) post(path, contentType, body string) (int, string) {
	s.t.Helper()
	r, err := s.Client().Post(s.URL+path, contentType, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// response posts a review that must be answered.
func (s server) response(path, body string) *admissionv1.AdmissionResponse {
	s.t.Helper()
	code, text := s.post(path, "application/json", body)
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(text), &out); code != 200 || err != nil || out.Response == nil || out.Response.UID != "u" {
		s.t.Fatalf("%d: %s, %v", code, text, err)
	}
	return out.Response
}

// counter returns the sum of a counter over its labels that contain want.
func (s server) counter(name, want string) (sum float64) {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && strings.Contains(fmt.Sprint(m.GetLabel()), want) {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func TestValidate(t *testing.T) {
	s := start(t, webhook.Options{})
	if r := s.response("/validate", review("CREATE", virtualServices, validService)); !r.Allowed {
		t.Errorf("%+v", r.Result)
	}
	if r := s.response("/validate", review("CREATE", virtualServices, strings.ReplaceAll(validService, `["a"]`, `["a b"]`))); r.Allowed || !strings.Contains(r.Result.Message, `spec.hosts[0]: invalid host "a b"`) {
		t.Errorf("%+v", r)
	}
	if r := s.response("/validate?timeout=10s", review("CREATE", `{"group":"apps","version":"v1","resource":"x\n"}`, `{"apiVersion":"apps/v1","kind":"X","metadata":{"name":"a"}}`)); !r.Allowed {
		t.Errorf("%+v", r)
	}
	if n := s.counter("galley_validation_passed", `value:"virtualservices"`); n != 1 {
		t.Errorf("%v passed, want 1", n)
	}
	if n := s.counter("galley_validation_passed", `value:"other"`); n != 1 {
		t.Errorf("%v others passed, want 1", n)
	}
	if n := s.counter("galley_validation_failed", `value:"virtualservices"`); n != 1 {
		t.Errorf("%v failed, want 1", n)
	}
}

func TestRequestsThatCannotBeAnswered(t *testing.T) {
	s := start(t, webhook.Options{})
	valid := review("CREATE", virtualServices, validService)
	for name, tt := range map[string]struct {
		path, contentType, body string
		status                  int
		want                    string
	}{
		"another path":        {"/validates", "application/json", valid, 404, ""},
		"no injector":         {"/inject", "application/json", valid, 404, ""},
		"text":                {"/validate", "text/plain", valid, 415, "want application/json"},
		"no content type":     {"/validate", "", valid, 415, "want application/json"},
		"not JSON":            {"/validate", "application/json", "x", 400, "parse AdmissionReview"},
		"v1beta1":             {"/validate", "application/json", strings.Replace(valid, "k8s.io/v1", "k8s.io/v1beta1", 1), 400, "want AdmissionReview of admission.k8s.io/v1"},
		"an object of half":   {"/validate", "application/json", strings.Replace(valid, validService, "7", 1), 400, "request.object"},
		"too large":           {"/validate", "application/json", strings.Repeat(" ", admit.MaxBytes+1), 413, "want at most"},
		"a charset is fine":   {"/validate", "application/json; charset=utf-8", valid, 200, ""},
		"what follows is not": {"/validate", "application/json", valid + "{}", 400, "parse AdmissionReview"},
	} {
		if code, text := s.post(tt.path, tt.contentType, tt.body); code != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %.200s; want %d, %q", name, code, text, tt.status, tt.want)
		}
	}
	r, err := s.Client().Post(s.URL+"/validate", "application/json", struct{ io.Reader }{bytes.NewReader(bytes.Repeat([]byte(" "), admit.MaxBytes+1))})
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of unknown size that is too large: %d, want 413", r.StatusCode)
	}
	if r, err = s.Client().Get(s.URL + "/validate"); err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d, want 405", r.StatusCode)
	}
	if n := s.counter("galley_validation_http_error", `value:"413"`); n != 2 {
		t.Errorf("%v requests with status 413, want 2", n)
	}
}

func TestInject(t *testing.T) {
	rec := &recorder{}
	var path string
	s := start(t, webhook.Options{Recorder: rec, Injector: injector(func(r webhook.PodRequest) (webhook.Injection, error) {
		path = r.Path
		switch {
		case r.Namespace != "shop" || r.Pod.Spec.Containers[0].Name != "app":
			return webhook.Injection{}, fmt.Errorf("unexpected %+v", r)
		case strings.HasSuffix(r.Path, "/skip"):
			return webhook.Injection{Skipped: "HostNetwork", Message: "the Pod has host networking"}, nil
		case strings.HasSuffix(r.Path, "/fail"):
			return webhook.Injection{}, errors.New("annotation x is invalid")
		case strings.HasSuffix(r.Path, "/panic"):
			panic("x")
		}
		return webhook.Injection{Patch: []byte(`[{"op":"add"}]`), Warnings: []string{"w"}}, nil
	})})
	r := s.response("/inject/cluster/east/net/n1", review("CREATE", pods, pod))
	if !r.Allowed || string(r.Patch) != `[{"op":"add"}]` || *r.PatchType != "JSONPatch" || r.Warnings[0] != "w" || path != "/inject/cluster/east/net/n1" {
		t.Errorf("%s: %+v", path, r)
	}
	if r := s.response("/inject/skip", review("CREATE", pods, pod)); !r.Allowed || r.Patch != nil || r.AuditAnnotations["reason"] != "HostNetwork" {
		t.Errorf("%+v", r)
	}
	if r := s.response("/inject/fail", review("CREATE", pods, pod)); r.Allowed || r.Result.Message != "annotation x is invalid" {
		t.Errorf("%+v", r)
	}
	if r := s.response("/inject", review("DELETE", pods, "null")); !r.Allowed || r.Patch != nil {
		t.Errorf("%+v", r)
	}
	if code, text := s.post("/inject/panic", "application/json", review("CREATE", pods, pod)); code != 500 || strings.Contains(text, "goroutine") {
		t.Errorf("%d %s; want 500 without a stack", code, text)
	}
	s.response("/inject/skip", strings.Replace(review("CREATE", pods, pod), `"uid"`, `"dryRun":true,"uid"`, 1))
	if got, want := strings.Join(rec.events, "; "), "shop/app- HostNetwork: the Pod has host networking; shop/app- failed: annotation x is invalid"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	for name, want := range map[string]float64{
		"sidecar_injection_requests_total": 6, "sidecar_injection_success_total": 1, "sidecar_injection_failure_total": 2, "sidecar_injection_skip_total": 3,
		"sidecar_injection_time_seconds": 6,
	} {
		if n := s.counter(name, ""); n != want {
			t.Errorf("%s is %v, want %v", name, n, want)
		}
	}
}

// most is how many requests of a path are answered at a time.
const most = 16

// While as many Pods are injected as can be, objects are validated.
func TestValidationDoesNotWaitForInjection(t *testing.T) {
	inside, release := make(chan bool, 2*most), make(chan bool)
	s := start(t, webhook.Options{Injector: injector(func(webhook.PodRequest) (webhook.Injection, error) {
		inside <- true
		<-release
		return webhook.Injection{Skipped: "Policy"}, nil
	})})
	var all sync.WaitGroup
	for range most + 4 {
		all.Go(func() { s.response("/inject", review("CREATE", pods, pod)) })
	}
	for range most {
		<-inside
	}
	if r := s.response("/validate", review("CREATE", virtualServices, validService)); !r.Allowed {
		t.Errorf("%+v", r.Result)
	}
	if len(inside) != 0 {
		t.Errorf("more than %d Pods are injected at a time", most)
	}
	close(release)
	all.Wait()
}

// While bodies of validation do not come, Pods are injected.
func TestInjectionDoesNotWaitForValidation(t *testing.T) {
	s := startWith(t, webhook.Options{Injector: injector(func(webhook.PodRequest) (webhook.Injection, error) {
		return webhook.Injection{Skipped: "Policy"}, nil
	})}, 2*time.Second)
	var all sync.WaitGroup
	slow, end := io.Pipe()
	defer func() { _ = end.Close() }()
	for range most {
		all.Go(func() {
			r, err := s.Client().Post(s.URL+"/validate", "application/json", slow)
			if err == nil {
				_ = r.Body.Close()
			}
		})
	}
	for range most {
		s.response("/inject", review("CREATE", pods, pod))
	}
	// The bodies time out: then there is a turn again.
	wait.NoError(t, "validation after slow bodies", func() error {
		if code, text := s.post("/validate", "application/json", review("CREATE", virtualServices, validService)); code != 200 {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	_ = end.Close()
	all.Wait()
}
