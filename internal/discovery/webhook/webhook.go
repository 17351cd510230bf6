// Package webhook answers the API server's admission requests, and keeps the webhook configurations of this control plane true.
//
// Server has the handlers of /validate and /inject. They take part in nothing else that the control plane
// does: they need no lock of its loop and wait for none of its work. Each has a bound of its own on requests
// at a time, so that one cannot keep the other from answering. Patcher writes the CA's roots to the webhook
// configurations whose requests arrive here. Both are safe for concurrent use.
package webhook

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds of requests. The API server waits 10 s for a webhook by default.
const (
	// maxReviews is how many requests of one path are answered at a time; each may have admit.MaxBytes.
	maxReviews = 16
	// maxWait is how long a request waits for its turn.
	maxWait = 5 * time.Second
	// bodyTimeout is how long the body of a request may take.
	bodyTimeout = 5 * time.Second
)

// Options are what a Server needs.
type Options struct {
	Rules admit.Rules
	// Injector adds proxies to Pods; nil if there is none, and then /inject is not served.
	Injector Injector
	// Recorder is told of Pods that get no proxy; nil for nobody.
	Recorder Recorder
	// Metrics gets the collectors of the requests.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Server answers admission requests.
type Server struct {
	opts    Options
	metrics metrics
	// wait and body are maxWait and bodyTimeout, except in tests.
	wait, body time.Duration
}

// New creates a server. It panics if another one has registered its metrics with o.Metrics.
func New(o Options) *Server {
	s := &Server{opts: o, metrics: newMetrics(), wait: maxWait, body: bodyTimeout}
	o.Metrics.MustRegister(s.metrics.all()...)
	return s
}

// Handler serves the paths of the webhooks, and no others. [control-plane 1.1.6]
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/validate", s.path(s.validate, s.metrics.validationError))
	if s.opts.Injector != nil {
		inject := s.path(s.inject, s.metrics.injectionError)
		mux.Handle("/inject", inject)
		mux.Handle("/inject/", inject)
	}
	return mux
}

// httpError is an error that a client is told with a status.
type httpError struct {
	status int
	err    error
}

func (e httpError) Error() string { return e.err.Error() }

// answer answers one request. An error says that it cannot be answered.
type answer func(*http.Request, *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)

// path is the handler of one path; failed is told the status of each request that cannot be answered.
func (s *Server) path(decide answer, failed func(status int)) http.Handler {
	turns := make(chan struct{}, maxReviews)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := s.review(w, r, turns, decide)
		if err == nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(out) // the client has gone if it fails
			return
		}
		status := http.StatusBadRequest
		if e := (httpError{}); errors.As(err, &e) {
			status = e.status
		}
		failed(status)
		s.opts.Log.Warn("admission request not answered", "path", printable.Clip(r.URL.Path, 256), "from", r.RemoteAddr, "status", status, "error", err)
		http.Error(w, err.Error(), status)
	})
}

// review reads a request, waits for its turn, and returns the answer.
func (s *Server) review(w http.ResponseWriter, r *http.Request, turns chan struct{}, decide answer) (out []byte, err error) {
	if err := check(r); err != nil {
		return nil, err
	}
	wait := time.NewTimer(s.wait)
	defer wait.Stop()
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-wait.C:
		return nil, httpError{http.StatusTooManyRequests, fmt.Errorf("busy: %d requests have been answered at a time for %s", maxReviews, s.wait)}
	case <-r.Context().Done():
		return nil, httpError{http.StatusRequestTimeout, errors.New("the client has gone")}
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.body))
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, admit.MaxBytes))
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return nil, tooLarge()
	} else if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	defer func() {
		if v := recover(); v != nil {
			s.opts.Log.Error("admission request failed", "panic", v, "stack", string(debug.Stack()))
			err = httpError{http.StatusInternalServerError, errors.New("internal error: see the log of pilot-discovery")}
		}
	}()
	q, err := admit.Parse(text)
	if err != nil {
		return nil, err
	}
	response, err := decide(r, q)
	if err != nil {
		return nil, err
	}
	return admit.Encode(response), nil
}

// check returns what is wrong with the header of a request.
func check(r *http.Request) error {
	if r.Method != http.MethodPost {
		return httpError{http.StatusMethodNotAllowed, fmt.Errorf("invalid method %s: want POST", printable.Quote(r.Method, 32))}
	}
	given := r.Header.Get("Content-Type")
	if t, _, err := mime.ParseMediaType(given); err != nil || t != "application/json" {
		return httpError{http.StatusUnsupportedMediaType, fmt.Errorf("invalid Content-Type %s: want application/json", printable.Quote(given, 64))}
	}
	if r.ContentLength > admit.MaxBytes {
		return tooLarge()
	}
	return nil
}

func tooLarge() error {
	return httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("request too large: want at most %d bytes", admit.MaxBytes)}
}

// validate answers /validate. [control-plane 1.15.14]
func (s *Server) validate(_ *http.Request, q *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	d, err := s.opts.Rules.Decide(q)
	if err != nil {
		return nil, err
	}
	s.metrics.validated(q, d)
	if !d.Allowed {
		s.opts.Log.Info("object refused", "kind", q.Kind.Kind, "namespace", q.Namespace, "name", q.Name, "operation", q.Operation, "reason", d.Message)
	}
	return d.Response(q), nil
}
