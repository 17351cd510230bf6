package traffic

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

func vector(series ...string) string {
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(series, ",") + `]}}`
}

func one(reporter, workload, host, value string) string {
	return fmt.Sprintf(`{"metric":{"reporter":%q,"source_workload":%q,"source_workload_namespace":"shop","destination_service":%q},"value":[1,%q]}`, reporter, workload, host, value)
}

// prometheus answers the queries of all requests and of those that fail.
func prometheus(t *testing.T, all, failed string, asked *atomic.Int32) *url.URL {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		q := r.FormValue("query")
		if r.Method != http.MethodPost || r.URL.Path != "/prom/api/v1/query" || !strings.Contains(q, "rate(istio_requests_total") || !strings.Contains(q, "["+Window+"]") {
			t.Errorf("%s %s: %s", r.Method, r.URL, q)
		}
		text := all
		if strings.Contains(q, `response_code=~"5.."`) {
			text = failed
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	u, err := ParseURL(s.URL + "/prom/")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// run runs an asker until the end of the test.
func run(t *testing.T, u *url.URL, l Limits) *Asker {
	t.Helper()
	a := New(u, l)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return a
}

// What a client reports counts before what the server does; what is no number, or has no host, is left out.
func TestEdgesOfAnAnswer(t *testing.T) {
	var asked atomic.Int32
	a := run(t, prometheus(t,
		vector(one("source", "web", "Cart.shop.svc", "5"), one("destination", "web", "cart.shop.svc", "4"), one("destination", "unknown", "cart.shop.svc", "2"),
			one("source", "web", "", "3"), one("source", "web", "x", "NaN"), one("source", "idle", "x", "0")),
		vector(one("source", "web", "cart.shop.svc", "1.5"), one("destination", "unknown", "cart.shop.svc", "9")), &asked), Limits{})
	want := []Edge{{Workload{"shop", "unknown"}, "cart.shop.svc", 2, 2}, {Workload{"shop", "web"}, "cart.shop.svc", 5, 1.5}}
	wait.Until(t, "the answer", func() bool { return reflect.DeepEqual(a.Latest().Edges, want) })
	if a.Latest().Problem != "" || asked.Load() != 2 {
		t.Errorf("problem %q, %d queries", a.Latest().Problem, asked.Load())
	}
}

// Without somebody who looks nothing is asked.
func TestNothingIsAskedUnlessWanted(t *testing.T) {
	var asked atomic.Int32
	a := run(t, prometheus(t, vector(), vector(), &asked), Limits{Every: time.Millisecond})
	if n := asked.Load(); n != 0 {
		t.Errorf("%d queries before anybody has looked", n)
	}
	a.Latest()
	wait.Until(t, "a query", func() bool { return !a.state0().Known.IsZero() })
	before := asked.Load()
	wait.Until(t, "another one, when somebody looks again", func() bool { a.Latest(); return asked.Load() > before })
}

// state0 is the state, without that anybody looks.
func (a *Asker) state0() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// What goes wrong is told; what was known before is shown until it is old.
func TestFailuresAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"an error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(422)
			_, _ = w.Write([]byte(`{"status":"error","error":"too many samples"}`))
		}, "the query failed: too many samples"},
		"a status": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "status 503"},
		"a page":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "not that of Prometheus's API"},
		"a matrix": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"matrix"}}`))
		}, "not a vector"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}, "redirects, which is not followed"},
		"a long text": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 3000)) }, "more than 2000 bytes"},
		"a slow one":  {func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm(); <-r.Context().Done() }, "no answer within 200ms"},
		"hostile text": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"status":"error","error":"a\u001b[2Jb"}`))
		}, `a\x1b[2Jb`},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(c.answer)
			defer s.Close()
			u, err := ParseURL(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			a := run(t, u, Limits{Timeout: 200 * time.Millisecond, Bytes: 2000})
			wait.Until(t, "the problem", func() bool { return strings.Contains(a.Latest().Problem, c.want) })
			if !strings.HasPrefix(a.Latest().Problem, "Prometheus at "+s.URL) {
				t.Errorf("%q does not say where", a.Latest().Problem)
			}
		})
	}
	if _, err := decode([]byte(vector(strings.TrimSuffix(strings.Repeat("{},", maxSeries+1), ",")))); err == nil || !strings.Contains(err.Error(), "at most 50000") {
		t.Errorf("too many series: %v", err)
	}
	a := New(&url.URL{}, Limits{})
	a.state = State{Edges: []Edge{{}}, Known: time.Now().Add(-2 * time.Minute)}
	if a.Latest().Edges != nil {
		t.Error("what is old is shown")
	}
}

func TestURLs(t *testing.T) {
	for _, good := range []string{"http://prometheus:9090", "https://metrics.example/prom/"} {
		if _, err := ParseURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"prometheus:9090", "file:///etc/passwd", "http://", "http://u:secret@p", "http://p/?a=b", "http://p/#a", ":"} {
		if _, err := ParseURL(bad); err == nil || !strings.Contains(err.Error(), "want a URL") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
