package webhook_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/test/wait"
)

// skips leaves all Pods alone.
func skips(webhook.PodRequest) (webhook.Injection, error) {
	return webhook.Injection{Skipped: "Policy"}, nil
}

// Small texts can become large structures, so the values of a request are bounded, too; what is in a string is not one.
func TestValuesAreBounded(t *testing.T) {
	s := start(t, webhook.Options{Injector: injector(skips)})
	many := func(n int) string {
		return strings.Replace(pod, `{"name":"app"}`, `{"name":"app"}`+strings.Repeat(",null", n), 1)
	}
	annotated := strings.Replace(pod, `"metadata":{`, `"metadata":{"annotations":{"a":"`+strings.Repeat(`,{[\"`, 60_000)+`"},`, 1)
	for name, tt := range map[string]struct {
		path, resource, object string
		status                 int
		want                   string
	}{
		"a Pod with few":    {"/inject", pods, many(1000), 200, ""},
		"a Pod with many":   {"/inject", pods, many(50_000), 413, "values: want at most 50000"},
		"in a text":         {"/inject", pods, annotated, 200, ""},
		"an object":         {"/validate", virtualServices, many(100_000), 200, ""},
		"one with too many": {"/validate", virtualServices, many(500_000), 413, "values: want at most 500000"},
	} {
		if code, text := s.post(tt.path, "application/json", review("CREATE", tt.resource, tt.object)); code != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %.200s; want %d %s", name, code, text, tt.status, tt.want)
		}
	}
}

// The bytes that are held are bounded by what has arrived: a client that announces much and sends little takes no room from
// others, one that sends much is refused.
func TestHeldBytesAreBounded(t *testing.T) {
	s := start(t, webhook.Options{Injector: injector(skips)})
	send := func(size, announced int) (end func()) {
		t.Helper()
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		fmt.Fprintf(c, "POST /inject HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", announced, strings.Repeat(" ", size))
		return func() { _ = c.Close() }
	}
	for range 200 {
		send(100, admit.MaxBytes)
	}
	if r := s.response("/inject", review("CREATE", pods, pod)); !r.Allowed {
		t.Errorf("%+v", r)
	}
	// As many as there is room for: were there more, they could grow at the same time until each is refused, and leave room.
	var end []func()
	for range 9 {
		end = append(end, send(admit.MaxBytes-1, admit.MaxBytes))
	}
	refused := false
	wait.Until(t, "a request is refused that is one too many", func() bool {
		code, text := s.post("/inject", "application/json", review("CREATE", pods, strings.Replace(pod, `"spec"`, strings.Repeat(" ", 4<<20)+`"spec"`, 1)))
		refused = code == http.StatusTooManyRequests && strings.Contains(text, "busy")
		return refused
	})
	if code, text := s.post("/validate", "application/json", review("CREATE", virtualServices, validService)); code != 200 {
		t.Errorf("the other path: %d %s", code, text)
	}
	for _, f := range end {
		f()
	}
	wait.Until(t, "requests are answered when there is room", func() bool {
		code, _ := s.post("/inject", "application/json", review("CREATE", pods, pod))
		return code == 200
	})
}

// A request waits for its turn as long as its client waits for the answer.
func TestTimeoutOfTheClient(t *testing.T) {
	inside, release := make(chan bool, 2*most), make(chan bool)
	s := start(t, webhook.Options{Injector: injector(func(webhook.PodRequest) (webhook.Injection, error) {
		inside <- true
		<-release
		return webhook.Injection{Skipped: "Policy"}, nil
	})})
	var all sync.WaitGroup
	for range most {
		all.Go(func() { s.response("/inject?timeout=30s", review("CREATE", pods, pod)) })
	}
	for range most {
		<-inside
	}
	if code, text := s.post("/inject?timeout=50ms", "application/json", review("CREATE", pods, pod)); code != http.StatusTooManyRequests || !strings.Contains(text, "busy") {
		t.Errorf("%d %s; want 429 when the client no longer waits", code, text)
	}
	all.Go(func() { s.response("/inject?timeout=soon", review("CREATE", pods, pod)) })
	close(release)
	all.Wait()
}

// A body that does not come is given up, with the client's timeout if that is earlier.
func TestSlowBodiesAreCut(t *testing.T) {
	s := startWith(t, webhook.Options{Injector: injector(skips)}, wait.Bound)
	slow, end := io.Pipe()
	defer func() { _ = end.Close() }()
	r, err := s.Client().Post(s.URL+"/inject?timeout=100ms", "application/json", slow)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d, want 408", r.StatusCode)
	}
}

// Connections that send nothing, before their handshake or after it, do not keep out those that do.
func TestConnectionsAreBounded(t *testing.T) {
	o := webhook.Options{Injector: injector(skips), Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
	s := httptest.NewUnstartedServer(webhook.New(o).Handler())
	s.StartTLS() // for its certificate and its client
	defer s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s.Config.Handler, ConnState: webhook.NewConnections().Follow, ReadHeaderTimeout: wait.Bound, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	go func() { _ = srv.Serve(tls.NewListener(l, s.TLS)) }()
	defer func() { _ = srv.Close() }()
	var silent []net.Conn
	for range 300 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		silent = append(silent, c)
	}
	client := s.Client()
	r, err := client.Post("https://"+l.Addr().String()+"/inject", "application/json", strings.NewReader(review("CREATE", pods, pod)))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("a request next to silent connections: %v, %v", r, err)
	}
	_ = r.Body.Close()
	_ = silent[0].SetReadDeadline(time.Now().Add(wait.Bound))
	if _, err := bufio.NewReader(silent[0]).ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest silent connection: %v; want it closed", err)
	}
	_ = silent[299].SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := silent[299].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the youngest one: %v; want it open", err)
	}
}

// FuzzRequests sends any text to both paths: each answer is one to a request, or an error without more than the mistake.
func FuzzRequests(f *testing.F) {
	config, err := inject.New(inject.Options{})
	if err != nil {
		f.Fatal(err)
	}
	hook := webhook.New(webhook.Options{
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Injector: injector(func(r webhook.PodRequest) (webhook.Injection, error) {
			in := inject.Request{Pod: r.Pod, Namespace: r.Namespace}
			if d := config.Decide(in); !d.Inject {
				return webhook.Injection{Skipped: string(d.Reason)}, nil
			}
			out, err := config.Inject(in)
			if err != nil {
				return webhook.Injection{}, err
			}
			return webhook.Injection{Patch: out.Patch, Warnings: out.Warnings}, nil
		}),
	})
	h := hook.Handler()
	for _, text := range []string{review("CREATE", pods, pod), review("CREATE", virtualServices, validService), review("UPDATE", pods, "null"), "{}", "[", `{"request":{"object":[[[[`} {
		f.Add(text, "10s", true)
		f.Add(text, "-1", false)
	}
	f.Fuzz(func(t *testing.T, text, timeout string, injects bool) {
		path := "/validate"
		if injects {
			path = "/inject"
		}
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(text))
		r.URL.RawQuery = "timeout=" + timeout
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 200 && (w.Code < 400 || w.Code >= 500) || w.Body.Len() > 64<<10+20*len(text) {
			t.Errorf("%d, %d bytes: %.200s", w.Code, w.Body.Len(), w.Body)
		}
	})
}
