package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
)

const goarch = runtime.GOARCH

// servingTLS makes the certificate of the kubelet's API. Callers need one of the CA that signed the API server's.
func servingTLS(config *rest.Config) (*tls.Config, error) {
	ca := config.CAData
	if len(ca) == 0 && config.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("read the CA of the API server: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("serve the kubelet's API: the configuration of the API server has no CA, which authenticates callers")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "kubelet"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool,
		// Upgraded connections are HTTP/1.1.
		NextProtos: []string{"http/1.1"},
	}, nil
}

// api is the kubelet's API, as the API server calls it.
func (n *Node) api() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	m.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.serveLogs)
	m.HandleFunc("/exec/{namespace}/{pod}/{container}", n.serveExec)
	m.HandleFunc("/portForward/{namespace}/{pod}", n.servePortForward)
	m.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "attach is not supported by the node of the test: containers have no stdin", http.StatusNotImplemented)
	})
	return m
}

// podNamed is the worker of the Pod that a request names, or nil after a response that says that there is none.
func (n *Node) podNamed(w http.ResponseWriter, r *http.Request) *worker {
	found := n.workerOf(r.PathValue("namespace"), r.PathValue("pod"))
	if found == nil {
		http.Error(w, fmt.Sprintf("Pod %s/%s is not on Node %s", r.PathValue("namespace"), r.PathValue("pod"), n.o.Name), http.StatusNotFound)
	}
	return found
}

// workerOf is the worker of a Pod, or nil. Of two with the name, it is the one that has not ended.
func (n *Node) workerOf(namespace, name string) *worker {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found *worker
	for _, p := range n.workers {
		pod := p.podNow()
		if pod.Namespace != namespace || pod.Name != name {
			continue
		}
		if found == nil || found.podNow().CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = p
		}
	}
	return found
}

func (n *Node) serveLogs(w http.ResponseWriter, r *http.Request) {
	p := n.podNamed(w, r)
	if p == nil {
		return
	}
	o, err := parseLogOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := r.PathValue("container")
	if specOf(p.podNow(), name) == nil {
		http.Error(w, fmt.Sprintf("container %q is not in Pod %q", name, r.PathValue("pod")), http.StatusNotFound)
		return
	}
	log := p.logOf(name, r.URL.Query().Get("previous") == "true")
	if log == nil {
		http.Error(w, fmt.Sprintf("container %q in Pod %q has not been started", name, r.PathValue("pod")), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	flush := func() { _ = http.NewResponseController(w).Flush() }
	flush()
	if err := log.copyTo(r.Context(), w, flush, o); err != nil && r.Context().Err() == nil {
		n.o.Log.Debug("copy a log", "pod", r.PathValue("pod"), "error", err)
	}
}

func parseLogOptions(r *http.Request) (logOptions, error) {
	q := r.URL.Query()
	o := logOptions{follow: q.Get("follow") == "true", timestamps: q.Get("timestamps") == "true", tail: -1, limit: -1}
	for name, to := range map[string]*int64{"tailLines": &o.tail, "limitBytes": &o.limit} {
		if text := q.Get(name); text != "" {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil || v < 0 {
				return o, fmt.Errorf("invalid %s %q: want a number from 0", name, text)
			}
			*to = v
		}
	}
	if text := q.Get("sinceSeconds"); text != "" {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < 1 {
			return o, fmt.Errorf("invalid sinceSeconds %q: want a number from 1", text)
		}
		o.since = time.Now().Add(-time.Duration(v) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return o, fmt.Errorf("invalid sinceTime %q: %w", text, err)
		}
		o.since = at
	}
	switch q.Get("stream") {
	case "", "All":
	case "Stdout":
		o.stream = "stdout"
	case "Stderr":
		o.stream = "stderr"
	default:
		return o, fmt.Errorf("invalid stream %q: want All, Stdout or Stderr", q.Get("stream"))
	}
	return o, nil
}

func (n *Node) serveExec(w http.ResponseWriter, r *http.Request) {
	p := n.podNamed(w, r)
	if p == nil {
		return
	}
	a := p.attemptOf(r.PathValue("container"))
	if a == nil {
		http.Error(w, fmt.Sprintf("container %q of Pod %q does not run", r.PathValue("container"), r.PathValue("pod")), http.StatusNotFound)
		return
	}
	q := r.URL.Query()
	if q.Get("tty") == "1" || q.Get("tty") == "true" {
		http.Error(w, "the node of the test has no terminals: exec without tty", http.StatusBadRequest)
		return
	}
	on := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	err := execStreams(w, r, wanted{stdin: on("input"), stdout: on("output"), stderr: on("error")}, func(ctx context.Context, in io.Reader, out, errs io.Writer) (int, error) {
		return a.run(ctx, q["command"], in, out, errs)
	})
	if err != nil {
		n.o.Log.Debug("exec", "pod", r.PathValue("pod"), "error", err)
	}
}

func (n *Node) servePortForward(w http.ResponseWriter, r *http.Request) {
	p := n.podNamed(w, r)
	if p == nil {
		return
	}
	s := p.sandboxNow()
	if s == nil {
		http.Error(w, fmt.Sprintf("Pod %q does not run", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	// As the kubelet does, in the Pod's namespace: servers that listen on its loopback are reached, too.
	dial := func(ctx context.Context, port uint16) (net.Conn, error) {
		return s.pod.Dial(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
	}
	if err := forwardStreams(w, r, dial); err != nil {
		n.o.Log.Debug("port-forward", "pod", r.PathValue("pod"), "error", err)
	}
}
