package fakeenvoy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/status"
)

// watched is an Envoy with a status server beside it, joined as the agent joins them.
type watched struct {
	*up
	url    string
	client http.Client
}

func watch(t *testing.T, u *up) *watched {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := status.New(status.Options{
		Listener: l, Proxy: u.Admin(), Lifecycle: u, Started: time.Now(), Log: slog.New(slog.DiscardHandler),
		Facts: func() status.Facts {
			s := u.State()
			return status.Facts{Envoy: status.Envoy{
				Running: s.Running, Live: s.Live, Draining: s.Draining, Ending: s.Ending, Restarts: s.Restarts, Left: s.Left, LastExit: s.LastExit,
			}}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &watched{up: u, url: "http://" + l.Addr().String(), client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// ask fails the test where there is no answer at all.
func (w *watched) ask(t *testing.T, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestAProbeIsAnsweredFromTheFirstToTheLast(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		w := watch(t, start(t, k))
		if code, body := w.ask(t, "GET", "/healthz/ready"); code != 200 {
			t.Errorf("live: %d %s", code, body)
		}
		w.cancel()
		var reasons []string
		await(t, "the end", func() bool {
			over := w.State().Over
			code, body := w.ask(t, "GET", "/healthz/ready")
			if code == http.StatusServiceUnavailable && !slices.Contains(reasons, body) {
				reasons = append(reasons, body)
			}
			return over
		})
		if !slices.Equal(reasons, []string{"the proxy is draining and about to end\n"}) {
			t.Errorf("while it drained: %q", reasons)
		}
	})
}

func TestReadinessFollowsACrash(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		// Time to look before another one serves, on a busy machine too.
		w := watch(t, start(t, k, func(o *envoy.Options) { o.Policy.Backoff = 2 * time.Second }))
		first := w.State().PID
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, "the reason", func() bool {
			code, body := w.ask(t, "GET", "/healthz/ready")
			return code == 503 && strings.HasPrefix(body, "Envoy killed by signal 9") && strings.Contains(body, "1 restarts so far, 9 left")
		})
		await(t, "readiness", func() bool {
			code, _ := w.ask(t, "GET", "/healthz/ready")
			return code == 200 && w.State().PID != first
		})
		if _, page := w.ask(t, "GET", "/metrics"); !strings.Contains(page, "\nistio_agent_envoy_restarts_total 1\n") || !strings.Contains(page, "\nenvoy_server_live{} 1\n") {
			t.Errorf("metrics:\n%.2000s", page)
		}
	})
}

func TestQuitOverHTTPIsAnswered(t *testing.T) {
	over(t, func(t *testing.T, k kind) {
		w := watch(t, start(t, k))
		if code, body := w.ask(t, "POST", "/drain"); code != 200 || body != "OK" {
			t.Errorf("drain: %d %s", code, body)
		}
		await(t, "the drain", func() bool { return w.State().Draining })
		if code, _ := w.ask(t, "GET", "/healthz/ready"); code != 200 || !w.serves() {
			t.Errorf("an announced end: %d", code)
		}
		if code, body := w.ask(t, "POST", "/quitquitquit"); code != 200 || body != "OK" {
			t.Errorf("quit: %d %s", code, body)
		}
		if err := w.end(t); err != nil {
			t.Error(err)
		}
	})
}
