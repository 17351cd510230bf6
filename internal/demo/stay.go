package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// dialer is where connections are made from: a Pod.
type dialer interface {
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// stay keeps the mesh up, says how to reach it, and serves the ways in until ctx ends.
func (d *demo) stay(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	var listeners []net.Listener
	open := func(from dialer, to string) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", fmt.Errorf("open a way into the mesh: %w", err)
		}
		listeners = append(listeners, l)
		group.Go(func() { forward(ctx, l, from, to) })
		return l.Addr().String(), nil
	}
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	discovery, err := open(d.mesh.Net.Host(), "127.0.0.1:8080")
	if err != nil {
		return err
	}
	front, stop, err := d.front()
	if err != nil {
		return err
	}
	defer stop()
	d.screen.line("\nThe mesh stays up until Ctrl-C. Edit %s, and look at it with", d.config)
	d.screen.line("  curl -d hello http://%s/        a request, as the shopper", front)
	d.screen.line("  pilotctl --discovery http://%s proxies", discovery)
	d.screen.line("  pilotctl --discovery http://%s config productpage-1.bookshop routes", discovery)
	for _, p := range d.mesh.Pods() {
		if !p.Spec.Sidecar() {
			continue
		}
		admin, err := open(p.Net, fmt.Sprintf("127.0.0.1:%d", mesh.AdminPort))
		if err != nil {
			return err
		}
		d.screen.line("  http://%s        Envoy's admin of %s", admin, p.Spec.Key())
	}
	<-ctx.Done()
	return nil
}

// front answers on this machine's loopback as if the shopper had asked the productpage:
// the mesh routes by host, so each request gets the one that it knows.
func (d *demo) front() (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("open a way into the mesh: %w", err)
	}
	to := &url.URL{Scheme: "http", Host: "productpage:9080"}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: d.load.client.Transport,
	}
	srv := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // it ends when stop closes it
	}()
	return l.Addr().String(), func() {
		_ = srv.Close()
		<-done
	}, nil
}

// forward carries connections from a listener to an address inside a Pod until ctx ends
// or the listener is closed.
func forward(ctx context.Context, l net.Listener, from dialer, to string) {
	var group sync.WaitGroup
	defer group.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed, or so broken that a curious user will see it
		}
		group.Go(func() { carry(ctx, c, from, to) })
	}
}

// carry copies both ways until either side is done or ctx ends.
func carry(ctx context.Context, c net.Conn, from dialer, to string) {
	defer func() { _ = c.Close() }()
	up, err := from.Dial(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = c.Close()
		_ = up.Close()
	})
	defer stop()
	var group sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
		group.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			if half, ok := pair[0].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	group.Wait()
}
