package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// keepRunning prints how to reach the mesh and forwards connections into it until ctx ends.
func (d *demo) keepRunning(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	var listeners []net.Listener
	open := func(from meshup.Dialer, to string) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", fmt.Errorf("listen for connections into the mesh: %w", err)
		}
		listeners = append(listeners, l)
		group.Go(func() { meshup.Forward(ctx, l, from, to) })
		return l.Addr().String(), nil
	}
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	replicas, err := d.mesh.Discovery(ctx)
	if err != nil {
		return err
	}
	if len(replicas) == 0 {
		return errors.New("keep the mesh: pilot-discovery does not run")
	}
	discovery, err := open(replicas[0], "127.0.0.1:8080")
	if err != nil {
		return err
	}
	front, stop, err := d.front()
	if err != nil {
		return err
	}
	defer stop()
	d.screen.line("\nThe mesh keeps running until Ctrl-C. Its configuration is in %s. Try", d.config)
	d.screen.line("  curl -d hello http://%s/        a request from the shopper", front)
	d.screen.line("  pilotctl --discovery http://%s proxies", discovery)
	d.screen.line("  http://%s/ui        services, proxies, changes and problems", discovery)
	page, err := d.pod("productpage")
	if err != nil {
		return err
	}
	d.screen.line("  pilotctl --discovery http://%s config %s routes", discovery, page.Name)
	for _, line := range d.mesh.Hints() {
		d.screen.line("  %s", line)
	}
	for _, p := range d.proxied() {
		admin, err := open(p.From, fmt.Sprintf("127.0.0.1:%d", mesh.AdminPort))
		if err != nil {
			return err
		}
		d.screen.line("  http://%s        admin page of the Envoy of %s", admin, p.Name)
	}
	<-ctx.Done()
	return nil
}

// front forwards requests on this machine's loopback from the shopper to productpage. The mesh routes by
// host, so each request gets the host productpage.
func (d *demo) front() (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen for connections into the mesh: %w", err)
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
