// Package probe runs the probes and hooks of the application for the kubelet, at the agent's status port.
//
// The kubelet has no certificate for a workload that takes mutual TLS only, so injection lets it ask the agent, which asks the
// application past Envoy: captured traffic is told apart by its source address [agent H11]. Anybody may request a path of the
// status port, so that a request only chooses one of the probes of ISTIO_KUBE_APP_PROBERS: where it goes and what it sends is
// defined there, but for User-Agent and Accept. Each probe has at most maxRunning connections to the application.
//
// A probe that fails is answered with 500 and the reason. Changes of the result are logged.
package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/httpguard"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// maxRunning is how many requests of one probe run at a time; others wait, within the probe's timeout.
	maxRunning = 4
	// maxWaiting is how many requests of one probe wait.
	maxWaiting = 64
	// maxBody is how much of the application's response is passed on, in bytes.
	maxBody = 10 << 10
	// maxHeader bounds the header of the application's response, in bytes.
	maxHeader = 64 << 10
	// maxRedirects is how many redirects are followed, as the kubelet does.
	maxRedirects = 10
	// idleTimeout is how long a kept connection is idle before it is closed.
	idleTimeout = 90 * time.Second
)

// The source addresses of connections that capture leaves alone.
var (
	source4 = netip.MustParseAddr(mesh.PassthroughSource)
	source6 = netip.MustParseAddr(mesh.PassthroughSourceV6)
)

// Options configure a Handler. All fields are required.
type Options struct {
	Probes spec.Probes
	// Pod is the Pod's primary address.
	Pod netip.Addr
	// StatusPort is the agent's own port.
	StatusPort int
	// TLS limits versions, ciphers and curves of probes over HTTPS.
	TLS pki.TLSPolicy
	Log *slog.Logger
}

// Handler answers /app-health/ and /app-lifecycle/. It is safe for concurrent use.
type Handler struct {
	o         Options
	probes    map[string]*probe
	transport *http.Transport
	// hosts are the application's addresses, in the order in which they are tried.
	hosts []netip.Addr
}

// probe is one probe or hook.
type probe struct {
	spec.Prober
	running chan struct{}
	waiting atomic.Int32
	// last is the last error, empty for none; nil before the first request.
	last atomic.Pointer[string]
}

// New returns a handler. Close it after its last request.
func New(o Options) *Handler {
	h := &Handler{o: o, probes: map[string]*probe{}, hosts: []netip.Addr{o.Pod}}
	if o.Probes.Localhost {
		h.hosts = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	for path, p := range o.Probes.Probers {
		h.probes[path] = &probe{Prober: p, running: make(chan struct{}, maxRunning)}
	}
	// As the kubelet: a probe asks whether the application answers, not who it is.
	config := &tls.Config{InsecureSkipVerify: true}
	o.TLS.Apply(config)
	h.transport = &http.Transport{
		DialContext:            h.dial,
		TLSClientConfig:        config,
		ForceAttemptHTTP2:      o.Probes.HTTP2,
		DisableKeepAlives:      !o.Probes.KeepAlive,
		DisableCompression:     true,
		MaxIdleConns:           2 * max(1, len(h.probes)),
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
	}
	return h
}

// Close closes the connections that are kept open.
func (h *Handler) Close() error {
	h.transport.CloseIdleConnections()
	return nil
}

// Check runs a probe for the agent itself, by its path. [agent X9]
func (h *Handler) Check(ctx context.Context, path string) error {
	p := h.probes[path]
	if p == nil {
		return fmt.Errorf("unknown probe %s", printable.Quote(path, 200))
	}
	r := (&http.Request{Header: http.Header{"User-Agent": {"istio-probe/1.0"}}}).WithContext(ctx)
	out, err := h.run(r, p)
	if err == nil && out.code >= http.StatusBadRequest {
		err = fmt.Errorf("status %d: want 200–399", out.code)
	}
	return err
}

// response is what the client gets.
type response struct {
	code        int
	contentType string
	body        []byte
}

// ServeHTTP runs the probe of the request's path.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := h.probes[r.URL.Path]
	switch {
	case p == nil:
		http.Error(w, "unknown probe "+printable.Quote(r.URL.Path, 200)+": want a key of ISTIO_KUBE_APP_PROBERS", http.StatusBadRequest)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	}
	// The timeout of a probe, and that of a hook's client, may be longer than the server's.
	httpguard.Unlimited(func(w http.ResponseWriter, r *http.Request) {
		out, err := h.run(r, p)
		h.note(r, p, out, err)
		if err != nil {
			http.Error(w, "probe "+r.URL.Path+": "+err.Error(), http.StatusInternalServerError)
			return
		}
		if out.contentType != "" {
			w.Header().Set("Content-Type", out.contentType)
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(out.code)
		_, _ = w.Write(out.body)
	})(w, r)
}

// run runs a probe within its timeout.
func (h *Handler) run(r *http.Request, p *probe) (response, error) {
	ctx := r.Context()
	if p.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("no result within %v, its timeoutSeconds", p.Timeout))
		defer cancel()
	}
	out, err := func() (response, error) {
		if err := p.acquire(ctx); err != nil {
			return response{}, err
		}
		defer func() { <-p.running }()
		switch {
		case p.HTTP != nil:
			return h.get(ctx, r, p.HTTP)
		case p.GRPC != nil:
			return response{code: http.StatusOK}, h.check(ctx, r.UserAgent(), p.GRPC)
		}
		c, err := h.dial(ctx, "tcp", net.JoinHostPort(h.hosts[0].String(), strconv.Itoa(p.TCPPort)))
		if err != nil {
			return response{}, err
		}
		return response{code: http.StatusOK}, c.Close()
	}()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}

// acquire waits until the probe may have one more connection. A nil error obliges the caller to receive from p.running.
func (p *probe) acquire(ctx context.Context) error {
	if p.waiting.Add(1) > maxWaiting {
		p.waiting.Add(-1)
		return fmt.Errorf("more than %d requests at once", maxWaiting)
	}
	defer p.waiting.Add(-1)
	select {
	case p.running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// note logs a result that differs from the one before. A client that went away is no result.
func (h *Handler) note(r *http.Request, p *probe, out response, err error) {
	if r.Context().Err() != nil {
		return
	}
	text := ""
	switch {
	case err != nil:
		text = err.Error()
	case out.code >= http.StatusBadRequest:
		text = "status " + strconv.Itoa(out.code)
	}
	last := p.last.Swap(&text)
	switch {
	case text != "" && (last == nil || *last != text):
		h.o.Log.Warn("a probe of the application fails", "path", r.URL.Path, "error", text)
	case text == "" && last != nil && *last != "":
		h.o.Log.Info("a probe of the application succeeds again", "path", r.URL.Path)
	}
}

// dial opens a connection to a port of the application. The host of the address is not used, so that no redirect and no
// response can choose another one.
func (h *Handler) dial(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var errs error
	for _, host := range h.hosts {
		c, err := dialFrom(ctx, host, port)
		if err == nil {
			return c, nil
		}
		errs = errors.Join(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errs
}

// dialFrom connects from the address that capture leaves alone. An IPv6 host without that address has no capture.
func dialFrom(ctx context.Context, host netip.Addr, port string) (net.Conn, error) {
	source := source4
	if host.Unmap().Is6() {
		source = source6
	}
	address := net.JoinHostPort(host.String(), port)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source.AsSlice()}}
	c, err := d.DialContext(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRNOTAVAIL) && source == source6 {
		d.LocalAddr = nil
		c, err = d.DialContext(ctx, "tcp", address)
	}
	return c, err
}

// get sends a GET and follows redirects as the kubelet does: on the same host, and any other one is a success. [agent H11]
func (h *Handler) get(ctx context.Context, r *http.Request, p *spec.HTTPProbe) (response, error) {
	req, err := h.request(ctx, r, p)
	if err != nil {
		return response{}, err
	}
	client := http.Client{Transport: h.transport, CheckRedirect: h.redirect}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // it repeats what GET says below
			err = u.Err
		}
		return response{}, fmt.Errorf("GET %s: %w", req.URL, err)
	}
	defer resp.Body.Close()
	out := response{code: resp.StatusCode, contentType: resp.Header.Get("Content-Type")}
	switch {
	case out.code < 200:
		return response{}, fmt.Errorf("GET %s: invalid status %d: want 200–599", req.URL, out.code)
	case out.code >= 300 && out.code < 400:
		out.code = http.StatusOK
	}
	// The status decides. A body that ends early is a response nevertheless.
	var body bytes.Buffer
	_, _ = io.Copy(&body, io.LimitReader(resp.Body, maxBody))
	out.body = body.Bytes()
	return out, ctx.Err()
}

// request makes the request to the application: what the kubelet would send.
func (h *Handler) request(ctx context.Context, r *http.Request, p *spec.HTTPProbe) (*http.Request, error) {
	scheme, port := "http", strconv.Itoa(p.Port)
	if p.TLS {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(h.o.Pod.String(), port)+p.Target, http.NoBody)
	if err != nil {
		return nil, err
	}
	if p.Host != "" {
		req.Host = net.JoinHostPort(strings.Trim(p.Host, "[]"), port)
	}
	for _, name := range []string{"User-Agent", "Accept"} {
		if v := r.Header.Values(name); len(v) > 0 {
			req.Header[name] = v
		}
	}
	for _, f := range p.Headers {
		req.Header.Del(f.Name)
	}
	for _, f := range p.Headers {
		if strings.EqualFold(f.Name, "Host") || f.Name == ":authority" {
			req.Host = f.Value
			continue
		}
		req.Header.Add(f.Name, f.Value)
	}
	return req, nil
}

func (h *Handler) redirect(next *http.Request, via []*http.Request) error {
	switch {
	case next.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case next.URL.Port() == strconv.Itoa(h.o.StatusPort) && spec.IsProberPath(next.URL.Path):
		return fmt.Errorf("redirect to %s, a probe of the agent", printable.Quote(next.URL.String(), 200))
	case len(via) >= maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}
