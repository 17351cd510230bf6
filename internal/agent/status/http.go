// Package status is the agent's HTTP server: readiness with its reason, requests to drain, quit and restart, and metrics.
//
// ready.go is pure and decides from facts. The server keeps no state of the proxy: it collects the
// facts for every request. Run it until Envoy has exited, so that probes are answered during a drain.
//
//	GET  /healthz/ready                 200, or 503 and the reason; then a line for each problem that
//	                                    does not affect readiness
//	POST /drain, /quitquitquit, /restart  from this machine only (else 403); other methods 405
//	GET  /metrics, /stats/prometheus    the metrics of the agent, of Envoy, and of the application
//	GET  /app-health/, /app-lifecycle/  the probes and hooks of the application
//	GET  /debug, /debug/status, /debug/pprof/, /debug/xds/
//	                                    from this machine only
//	GET, POST /debug/log-level          from this machine only
//	GET  /debug/ndsz                    the names of the mesh; from this machine only
//
// Requests from this machine are those from loopback addresses, IPv4 and IPv6, except the source
// addresses that Envoy uses for forwarded connections, and except those that a web page in a browser on
// this machine may have made. Probes come from anywhere, by Envoy from loopback, too: their response has no
// paths of files; the log and /debug/status have.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/logging"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/httpguard"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Proxy is the part of Envoy's admin interface that the server needs. Its methods must allow concurrent calls.
type Proxy interface {
	// Stats returns the counters and gauges whose names match a regular expression.
	Stats(ctx context.Context, filter string) (map[string]uint64, error)
	// Scrape writes Envoy's metrics in the Prometheus text format. The query is passed to Envoy's
	// /stats/prometheus.
	Scrape(ctx context.Context, query string, w io.Writer) error
}

// Lifecycle drains and stops Envoy. Its methods must not block, and must allow concurrent calls.
type Lifecycle interface {
	// Drain drains Envoy without stopping it.
	Drain()
	// Quit stops Envoy and the agent without a drain.
	Quit()
}

// Options configure a Server. The fields up to Log are required.
type Options struct {
	Listener  net.Listener
	Proxy     Proxy
	Lifecycle Lifecycle
	// Facts returns all facts except Admin, which the server adds. It must not block, and must allow
	// concurrent calls.
	Facts func() Facts
	Log   *slog.Logger
	// Version is the version of this program, for the metric istio_build.
	Version string
	// Started is when the agent was started, for the metric startup_duration_seconds.
	Started time.Time
	// FirstReady, unless nil, is called once, when the proxy is ready for the first time. It must not
	// block.
	FirstReady func()
	// Collect are functions that add the metrics of the agent's other parts.
	Collect []func(*Page)
	// Detail, unless nil, returns more data for /debug/status, which must encode as JSON.
	Detail func() any
	// ControlPlane, unless nil, answers what is below ControlPlanePages, to this machine.
	ControlPlane http.Handler
	// Names, unless nil, returns the names of the mesh that /debug/ndsz shows, which must encode as JSON; nil for none.
	Names func() any
	// Levels, unless nil, are the log levels that /debug/log-level shows and changes.
	Levels *logging.Levels
	// Restart restarts Envoy, by a hot restart if possible. It must not block. If it is nil, there is
	// no /restart.
	Restart func()
	// Probes, unless nil, answers /app-health/ and /app-lifecycle/.
	Probes http.Handler
	// Profiling enables /debug/pprof/.
	Profiling bool
	// LocalMetrics restricts metrics to this machine (METRICS_LOCALHOST_ACCESS_ONLY).
	LocalMetrics bool
	// Targets are where the application's metrics are, on this host.
	Targets []spec.Target
	// Port is that of the Listener, of which no metrics are scraped.
	Port int
}

// Server is the HTTP server. Make it with New and call Run once.
type Server struct {
	o          Options
	startup    atomic.Int64           // nanoseconds from the start until the proxy was ready; 0 before
	lastReason atomic.Pointer[string] // that was logged
	scrapes    atomic.Int64
	scraping   chan struct{}
	envoy, app source
	client     *http.Client // of the application
}

// New returns a server. It serves nothing before Run.
func New(o Options) *Server {
	return &Server{
		o: o, scraping: make(chan struct{}, maxScrapes), client: newClient(&o),
		envoy: source{name: "Envoy", log: o.Log}, app: source{name: "the application", log: o.Log},
	}
}

// ControlPlanePages is the path below which the control plane's pages are.
const ControlPlanePages = "/debug/xds/"

// maxLevels bounds the body of a change of log levels, in bytes.
const maxLevels = 4096

// shutdownTimeout bounds the wait for requests in flight.
const shutdownTimeout = time.Second

// Run serves until ctx ends, waits at most a second for requests in flight, closes the listener and
// returns nil. It returns an error if serving fails.
func (s *Server) Run(ctx context.Context) error {
	server := httpguard.Server(s.handler())
	server.ErrorLog = slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.o.Listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve status on %s: %w", s.o.Listener.Addr(), err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(shutdown) != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve status on %s: %w", s.o.Listener.Addr(), err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz/ready", s.ready)
	mux.HandleFunc("/drain", s.post("drain", s.o.Lifecycle.Drain))
	mux.HandleFunc("/quitquitquit", s.post("quitquitquit", s.o.Lifecycle.Quit))
	if s.o.Restart != nil {
		mux.HandleFunc("/restart", s.post("restart", s.o.Restart))
	}
	mux.HandleFunc("/debug", local(s.debug))
	mux.HandleFunc("/debug/status", local(s.debug))
	if s.o.ControlPlane != nil {
		mux.HandleFunc(ControlPlanePages, local(s.o.ControlPlane.ServeHTTP))
	}
	mux.HandleFunc("/debug/ndsz", local(s.names))
	if s.o.Levels != nil {
		mux.HandleFunc("/debug/log-level", local(s.logLevel))
	}
	if s.o.Probes != nil {
		mux.Handle("/app-health/", s.o.Probes)
		mux.Handle("/app-lifecycle/", s.o.Probes)
	}
	metrics := s.metrics
	if s.o.LocalMetrics {
		metrics = local(metrics)
	}
	mux.HandleFunc("/metrics", metrics)
	mux.HandleFunc("/stats/prometheus", metrics)
	if s.o.Profiling {
		mux.HandleFunc("/debug/pprof/", local(pprof.Index))
		mux.HandleFunc("/debug/pprof/cmdline", local(pprof.Cmdline))
		mux.HandleFunc("/debug/pprof/profile", local(httpguard.Unlimited(pprof.Profile)))
		mux.HandleFunc("/debug/pprof/symbol", local(pprof.Symbol))
		mux.HandleFunc("/debug/pprof/trace", local(httpguard.Unlimited(pprof.Trace)))
	}
	return mux
}

// Local refuses requests of other machines and of web pages.
func Local(next http.HandlerFunc) http.HandlerFunc { return local(next) }

// local refuses requests of other machines and of web pages.
func local(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !httpguard.FromLoopback(r) {
			http.Error(w, "only requests from localhost are allowed", http.StatusForbidden)
			return
		}
		if err := httpguard.CheckPage(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next(w, r)
	}
}

// post returns a handler that calls action for a POST from this machine.
func (s *Server) post(name string, action func()) http.HandlerFunc {
	return local(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
			return
		}
		s.o.Log.Info("requested over HTTP", "action", name, "from", r.RemoteAddr)
		action()
		_, _ = io.WriteString(w, "OK")
	})
}

// readinessStats matches the stats that Ready needs.
const readinessStats = `^(cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected)$|^server\.state$|^listener_manager\.workers_started$`

// wasLive is the Admin of an Envoy that was live and whose admin interface cannot be reached.
var wasLive = Admin{Live: true, Workers: true, Known: true}

// facts returns the facts with Admin.
func (s *Server) facts(ctx context.Context) Facts {
	f := s.o.Facts()
	switch {
	case !f.Envoy.Running:
		return f // another process may have the address of its admin interface
	case f.Envoy.Handover:
		f.Admin = wasLive
		return f
	}
	stats, err := s.o.Proxy.Stats(ctx, readinessStats)
	// The admin interface may belong to another epoch by now.
	if state, known := stats["server.state"]; err != nil || !known || state != 0 {
		if later := s.o.Facts(); later.Envoy.Handover {
			later.Admin = wasLive
			return later
		}
	}
	if err != nil {
		f.Admin = Admin{Problem: err.Error()}
		return f
	}
	state, known := stats["server.state"]
	f.Admin = Admin{
		CDS:     Updates{stats["cluster_manager.cds.update_success"], stats["cluster_manager.cds.update_rejected"]},
		LDS:     Updates{stats["listener_manager.lds.update_success"], stats["listener_manager.lds.update_rejected"]},
		Live:    known && state == 0,
		Workers: stats["listener_manager.workers_started"] == 1,
		Known:   f.Envoy.Epoch > 0 && f.Envoy.Live && state == 0,
	}
	return f
}

// verdict calls Ready, records when the proxy is ready for the first time, and logs changes.
func (s *Server) verdict(f Facts) Verdict {
	v := Ready(f, time.Now())
	if v.Ready && !s.o.Started.IsZero() {
		first := s.startup.CompareAndSwap(0, int64(max(1, time.Since(s.o.Started))))
		if first && s.o.FirstReady != nil {
			s.o.FirstReady()
		}
	}
	if last := s.lastReason.Swap(&v.Reason); last == nil || *last != v.Reason {
		if v.Ready {
			s.o.Log.Info("Envoy proxy is ready")
		} else {
			s.o.Log.Warn("Envoy proxy is NOT ready", "reason", v.Reason)
		}
	}
	return v
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	f := s.facts(r.Context())
	if v := s.verdict(f); !v.Ready {
		reason := withoutPaths(v.Reason)
		if text := refusal(f); text != "" && asksHere(r) {
			reason += ": " + printable.Escape(printable.Clip(text, maxRefusal))
		}
		http.Error(w, reason, http.StatusServiceUnavailable)
	}
	if note := f.Upstream.note(time.Now()); note != "" {
		_, _ = fmt.Fprintln(w, "note:", withoutPaths(note))
	}
	for _, problem := range f.Files {
		_, _ = fmt.Fprintln(w, "note:", withoutPaths(problem))
	}
}

// maxRefusal bounds what is shown of Envoy's text, in bytes.
const maxRefusal = 4 << 10

// asksHere reports whether a probe was made on this machine: not by another one, also not through Envoy's port, whose requests come
// from loopback and have headers that Envoy always adds.
func asksHere(r *http.Request) bool {
	return httpguard.FromLoopback(r) && r.Header.Get("X-Forwarded-Proto") == "" && r.Header.Get("X-Request-Id") == ""
}

// logLevel shows the log levels, and changes them by POST.
func (s *Server) logLevel(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLevels))
		if err == nil {
			err = s.o.Levels.Set(string(text))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.o.Log.Info("log levels changed", "levels", string(text))
	}
	_, _ = io.WriteString(w, s.o.Levels.String())
}

// names writes the names of the mesh. Without any the status is 404, as that of Istio's agent. [agent N17]
func (s *Server) names(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var table any
	if s.o.Names != nil {
		table = s.o.Names()
	}
	if table == nil {
		w.WriteHeader(http.StatusNotFound)
		table = struct{}{}
	}
	_ = json.NewEncoder(w).Encode(table)
}

func (s *Server) debug(w http.ResponseWriter, r *http.Request) {
	f := s.facts(r.Context())
	page := struct {
		Verdict
		Facts  Facts `json:"facts"`
		Detail any   `json:"detail,omitempty"`
	}{Verdict: s.verdict(f), Facts: f}
	if s.o.Detail != nil {
		page.Detail = s.o.Detail()
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(page)
}
