// Package webhook answers the API server's admission requests, and keeps the webhook configurations of this control plane true.
//
// Server has the handlers of /validate and /inject. They take part in nothing else that the control plane
// does: they need no lock of its loop and wait for none of its work. Each has bounds of its own on the bytes of
// requests that are held and decided at a time, so that one cannot keep the other from answering. Patcher writes the CA's roots to the webhook
// configurations whose requests arrive here. Both are safe for concurrent use.
package webhook

import (
	"context"
	"errors"
	"fmt"
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
	// wait and body are maxTimeout and bodyTimeout, except in tests.
	wait, body time.Duration
}

// New creates a server. It panics if another one has registered its metrics with o.Metrics.
func New(o Options) *Server {
	s := &Server{opts: o, metrics: newMetrics(), wait: maxTimeout, body: bodyTimeout}
	o.Metrics.MustRegister(s.metrics.all()...)
	return s
}

// Handler serves the paths of the webhooks, and no others. [control-plane 1.1.6]
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/validate", s.path(maxValues, s.validate, s.metrics.validationError))
	if s.opts.Injector != nil {
		inject := s.path(maxPodValues, s.inject, s.metrics.injectionError)
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
func (s *Server) path(values int, decide answer, failed func(status int)) http.Handler {
	b := newBounds(values)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := s.review(w, r, b, decide)
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

// review reads a request, waits for its turn, and returns the answer. It waits no longer than the client does.
func (s *Server) review(w http.ResponseWriter, r *http.Request, b *bounds, decide answer) (out []byte, err error) {
	if err := check(r); err != nil {
		return nil, err
	}
	timeout := timeoutOf(r, s.wait)
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(min(s.body, timeout)))
	text, release, err := b.read(r.Body, r.ContentLength, admit.MaxBytes)
	defer release()
	if err != nil {
		return nil, err
	}
	weight, err := b.weigh(text)
	if err != nil {
		return nil, err
	}
	if err := b.turn(ctx, weight); err != nil {
		return nil, err
	}
	defer b.decided.Release(weight)
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
