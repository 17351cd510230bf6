// Package status is the agent's own HTTP server: readiness that says why not, the orders to drain and to quit, and metrics.
//
// ready.go decides, from facts alone; the rest is the edge. The server holds no state of the proxy: it
// asks for the facts at every request. It must be kept running for as long as Envoy runs,
// drains included, so that a probe is answered and never refused: run it until the supervisor has returned.
//
//	GET  /healthz/ready                 200, or 503 and a sentence that says why; then, in either case, a
//	                                    line for each problem that does not matter to readiness
//	POST /drain, /quitquitquit, /restart  from this machine only (403); other methods 405
//	GET  /metrics, /stats/prometheus    the agent's metrics, then Envoy's
//	GET  /debug/status, /debug/pprof/   from this machine only
//
// All addresses of the loopback interface are "this machine", of IPv6 too, except the
// ones under which Envoy passes on connections from elsewhere.
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
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Proxy is Envoy's admin interface as far as it is asked here.
type Proxy interface {
	// Stats returns the counters and gauges whose names match a regular expression.
	Stats(ctx context.Context, filter string) (map[string]uint64, error)
	// Scrape writes Envoy's metrics as Prometheus text; query is Envoy's own.
	Scrape(ctx context.Context, query string, w io.Writer) error
}

// Lifecycle takes orders about Envoy's end. Both return at once.
type Lifecycle interface {
	// Drain announces the end: Envoy drains and goes on.
	Drain()
	// Quit ends Envoy, and the agent, without a drain.
	Quit()
}

// Options are what a Server is made from. All but the last six are needed.
type Options struct {
	Listener  net.Listener
	Proxy     Proxy
	Lifecycle Lifecycle
	// Facts gathers what is known without asking Envoy; the Admin part is filled in here. It
	// is called by many goroutines and does not block.
	Facts func() Facts
	Log   *slog.Logger
	// Started is when the agent was started, for the metric of how long it took to be ready.
	Started time.Time
	// FirstReady, unless nil, is called once, when readiness is first found. It does not block.
	FirstReady func()
	// Collect adds the metrics of the agent's other parts.
	Collect []func(*Page)
	// Detail is whatever /debug/status shows besides; it must encode as JSON.
	Detail func() any
	// Restart has Envoy replaced by a new one, by a hot restart where that can be; nil: nobody may ask.
	Restart func()
	// Profiling serves /debug/pprof/.
	Profiling bool
	// LocalMetrics refuses metrics to other machines (METRICS_LOCALHOST_ACCESS_ONLY).
	LocalMetrics bool
}

// Server answers. Make it with New and call Run once.
type Server struct {
	o        Options
	startup  atomic.Int64           // nanoseconds from the start until the first ready answer; 0 before
	told     atomic.Pointer[string] // the reason that was logged last
	scrapes  atomic.Int64
	failures atomic.Int64
}

// New makes a server that answers once it runs.
func New(o Options) *Server { return &Server{o: o} }

// goodbye bounds what a request in flight may hold up the end.
const goodbye = time.Second

// Run answers requests until ctx ends, lets those in flight finish, and closes the listener.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.o.Listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve status on %s: %w", s.o.Listener.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close() // somebody takes too long; there is nobody to tell
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve status on %s: %w", s.o.Listener.Addr(), err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz/ready", s.ready)
	mux.HandleFunc("/drain", s.order("drain", s.o.Lifecycle.Drain))
	mux.HandleFunc("/quitquitquit", s.order("quitquitquit", s.o.Lifecycle.Quit))
	if s.o.Restart != nil {
		mux.HandleFunc("/restart", s.order("restart", s.o.Restart))
	}
	mux.HandleFunc("/debug/status", local(s.debug))
	metrics := s.metrics
	if s.o.LocalMetrics {
		metrics = local(metrics)
	}
	mux.HandleFunc("/metrics", metrics)
	mux.HandleFunc("/stats/prometheus", metrics)
	if s.o.Profiling {
		mux.HandleFunc("/debug/pprof/", local(pprof.Index))
		mux.HandleFunc("/debug/pprof/cmdline", local(pprof.Cmdline))
		mux.HandleFunc("/debug/pprof/profile", local(pprof.Profile))
		mux.HandleFunc("/debug/pprof/symbol", local(pprof.Symbol))
		mux.HandleFunc("/debug/pprof/trace", local(pprof.Trace))
	}
	return mux
}

// isLocal says whether a request comes from this machine. Envoy passes on what comes from
// elsewhere under addresses of its own, one of which is a loopback address.
func isLocal(remote string) bool {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	addr := from.Addr().Unmap()
	return addr.IsLoopback() && addr.String() != mesh.PassthroughSource
}

// local refuses requests from other machines.
func local(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.RemoteAddr) {
			http.Error(w, "only requests from localhost are allowed", http.StatusForbidden)
			return
		}
		next(w, r)
	}
}

// order is a POST from this machine that has something done.
func (s *Server) order(name string, do func()) http.HandlerFunc {
	return local(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
			return
		}
		s.o.Log.Info("asked over HTTP", "order", name, "from", r.RemoteAddr)
		do()
		_, _ = io.WriteString(w, "OK")
	})
}

// whatReadinessAsks are the stats that Ready is decided from.
const whatReadinessAsks = `^(cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected)$|^server\.state$|^listener_manager\.workers_started$`

// livedBefore stands for what an Envoy would say that was live and cannot be asked.
var livedBefore = Admin{Live: true, Workers: true, Known: true}

// facts are the facts with what Envoy says.
func (s *Server) facts(ctx context.Context) Facts {
	f := s.o.Facts()
	switch {
	case !f.Envoy.Running:
		return f // whoever answers at its address now is somebody else
	case f.Envoy.Handover:
		f.Admin = livedBefore
		return f
	}
	stats, err := s.o.Proxy.Stats(ctx, whatReadinessAsks)
	// The interface may have changed hands meanwhile.
	if state, known := stats["server.state"]; err != nil || !known || state != 0 {
		if later := s.o.Facts(); later.Envoy.Handover {
			later.Admin = livedBefore
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

// verdict decides, keeps the time of the first readiness and logs what is new.
func (s *Server) verdict(f Facts) Verdict {
	v := Ready(f, time.Now())
	if v.Ready && !s.o.Started.IsZero() {
		first := s.startup.CompareAndSwap(0, int64(max(1, time.Since(s.o.Started))))
		if first && s.o.FirstReady != nil {
			s.o.FirstReady()
		}
	}
	if was := s.told.Swap(&v.Reason); was == nil || *was != v.Reason {
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
		http.Error(w, v.Reason, http.StatusServiceUnavailable)
	}
	for _, problem := range f.Files {
		_, _ = fmt.Fprintln(w, "note:", problem) // the prober may have gone
	}
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
	_ = enc.Encode(page) // the caller may have gone
}
