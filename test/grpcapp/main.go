// Command grpcapp is an application of gRPC for tests, whose library may be its proxy.
//
// It serves gRPC's health service, with the credentials that the control plane decides (-xds) or in plaintext, and its answers say
// who answers and whom. GET /ask on -control calls a target and returns what came back, a line for each call.
package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

// Answer is the result of one call.
type Answer struct {
	// Server is who answered, Client whom it saw: the SPIFFE URI in the certificate or in Envoy's header; empty for nobody.
	Server, Client string
	// Peer is the SPIFFE URI of the server's certificate; empty if the connection is in plaintext.
	Peer string
	// Ends is when the server's certificate ends.
	Ends string
	// Error is the status of a call that failed.
	Error string
}

func main() {
	name := flag.String("name", "", "name of this server in answers")
	listen := flag.String("listen", "", "address of the gRPC server; empty for none")
	useXDS := flag.Bool("xds", false, "get the credentials of the server from the control plane")
	control := flag.String("control", "127.0.0.1:9999", "address of the HTTP server")
	flag.Parse()
	if err := run(*name, *listen, *useXDS, *control); err != nil {
		fmt.Fprintln(os.Stderr, "grpcapp:", err)
		os.Exit(1)
	}
}

func run(name, listen string, useXDS bool, control string) error {
	failed := make(chan error, 2)
	h := &health{name: name}
	if listen != "" {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return err
		}
		serve, err := server(h, useXDS)
		if err != nil {
			return err
		}
		go func() { failed <- serve(l) }()
	}
	c := &clients{open: map[string]*grpc.ClientConn{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/ask", c.ask)
	mux.HandleFunc("/fail", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		h.setFailures(n)
	})
	s := &http.Server{Addr: control, Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { failed <- s.ListenAndServe() }()
	return <-failed
}

// server returns what serves.
func server(h *health, useXDS bool) (func(net.Listener) error, error) {
	if !useXDS {
		s := grpc.NewServer()
		healthpb.RegisterHealthServer(s, h)
		return s.Serve, nil
	}
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return nil, err
	}
	s, err := xds.NewGRPCServer(grpc.Creds(creds), xds.ServingModeCallback(func(a net.Addr, m xds.ServingModeChangeArgs) {
		fmt.Fprintln(os.Stderr, "serving mode of", a, "is", m.Mode, m.Err)
	}))
	if err != nil {
		return nil, err
	}
	healthpb.RegisterHealthServer(s, h)
	return s.Serve, nil
}

// health answers calls.
type health struct {
	healthpb.UnimplementedHealthServer
	name string

	mu    sync.Mutex // guards fails
	fails int
}

func (h *health) setFailures(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fails = n
}

// Check fails as often as it was asked to, and then says who answers, and whom.
func (h *health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.mu.Lock()
	fail := h.fails > 0
	if fail {
		h.fails--
	}
	h.mu.Unlock()
	if fail {
		return nil, status.Error(codes.Unavailable, "for this once")
	}
	caller := ""
	if p, ok := peer.FromContext(ctx); ok {
		caller = identity(p.AuthInfo)
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok && caller == "" {
		for _, part := range strings.Split(strings.Join(md.Get("x-forwarded-client-cert"), ""), ";") {
			if uri, ok := strings.CutPrefix(part, "URI="); ok {
				caller = uri
			}
		}
	}
	return &healthpb.HealthCheckResponse{}, grpc.SetHeader(ctx, metadata.Pairs("answered-by", h.name, "caller", caller))
}

// identity is the SPIFFE URI of the other side's certificate; empty if it has none.
func identity(info credentials.AuthInfo) string {
	if c := certificate(info); c != nil && len(c.URIs) > 0 {
		return c.URIs[0].String()
	}
	return ""
}

// certificate is that of the other side, nil if it has none.
func certificate(info credentials.AuthInfo) *x509.Certificate {
	if i, ok := info.(credentials.TLSInfo); ok && len(i.State.PeerCertificates) > 0 {
		return i.State.PeerCertificates[0]
	}
	return nil
}

// clients are connections, which are kept.
type clients struct {
	mu   sync.Mutex // guards open
	open map[string]*grpc.ClientConn
}

func (c *clients) to(target string, fresh bool) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[target]; conn != nil && fresh {
		_ = conn.Close()
		delete(c.open, target)
	}
	if conn := c.open[target]; conn != nil {
		return conn, nil
	}
	creds := insecure.NewCredentials()
	if strings.HasPrefix(target, "xds:") {
		var err error
		if creds, err = xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: creds}); err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err == nil {
		c.open[target] = conn
	}
	return conn, err
}

// ask calls a target n times, with a header "name=value" if there is one, on a new connection if "fresh" is there.
func (c *clients) ask(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	conn, err := c.to(q.Get("target"), q.Has("fresh"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	n, err := strconv.Atoi(q.Get("n"))
	if err != nil {
		n = 1
	}
	ctx := r.Context()
	if name, value, ok := strings.Cut(q.Get("header"), "="); ok {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	enc := json.NewEncoder(w)
	for range n {
		if err := enc.Encode(call(ctx, conn)); err != nil && !errors.Is(err, context.Canceled) {
			return
		}
	}
}

func call(ctx context.Context, conn *grpc.ClientConn) Answer {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var header metadata.MD
	var server peer.Peer
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Peer(&server))
	if err != nil {
		return Answer{Error: err.Error()}
	}
	a := Answer{Server: strings.Join(header.Get("answered-by"), ""), Client: strings.Join(header.Get("caller"), ""), Peer: identity(server.AuthInfo)}
	if c := certificate(server.AuthInfo); c != nil {
		a.Ends = c.NotAfter.UTC().Format(time.RFC3339)
	}
	return a
}
