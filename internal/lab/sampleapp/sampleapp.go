// Package sampleapp is the program that the workloads of the sample meshes run: it says who it is and calls on.
//
// It serves HTTP/1.1 and HTTP/2 without TLS on each address of -http and lines of text on
// each address of -tcp. A GET or POST of any path answers with who served it, how and for
// whom, as JSON, after calling every URL of -calls in order and nesting those answers; the
// answer's status is that of the first onward call that did not give 200. The query may
// ask for ?delay=50ms and ?status=503. /stats counts what was served and is not counted
// itself. With -log a line is printed for each request. SIGTERM and SIGINT let what is in flight end, for at most five seconds.
package sampleapp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const grace = 5 * time.Second

// options is what the command line says.
type options struct {
	self      self
	http, tcp []string
	calls     []string
	log       io.Writer
}

// Run serves with the given arguments until ctx ends. Who it is may come from the environment, as in a Pod: SERVICE, VERSION and
// POD_NAME of env.
func Run(ctx context.Context, args []string, env func(string) string, out io.Writer) error {
	o, err := parse(args, env, out)
	if err != nil {
		return err
	}
	return run(ctx, o)
}

// parse reads the flags.
func parse(args []string, env func(string) string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("app", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.self.Service, "service", env("SERVICE"), "name to answer with")
	f.StringVar(&o.self.Version, "version", env("VERSION"), "version to answer with")
	f.StringVar(&o.self.Pod, "pod", env("POD_NAME"), "pod to answer with")
	list := func(name, usage string, to *[]string) {
		f.Func(name, usage, func(v string) error {
			*to = append(*to, strings.Split(v, ",")...)
			return nil
		})
	}
	list("http", "comma-separated addresses to serve HTTP on", &o.http)
	list("tcp", "comma-separated addresses to serve lines of text on", &o.tcp)
	list("calls", "comma-separated URLs to call for every request", &o.calls)
	logs := f.Bool("log", false, "print a line for each request")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *logs {
		o.log = out
	}
	return o, nil
}

// run serves until ctx ends. Addresses are taken before anything is served, so that a
// port in use is told at once.
func run(ctx context.Context, o options) error {
	a := newApp(o.self, o.calls)
	a.log = o.log
	var group sync.WaitGroup
	serveErr := make(chan error, len(o.http)+len(o.tcp))
	var stops []func()
	listen := func(addr string, serve func(net.Listener) error, stop func(net.Listener)) error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", addr, err)
		}
		stops = append(stops, func() { stop(l) })
		group.Go(func() { serveErr <- serve(l) })
		return nil
	}
	srv := a.server()
	srv.RegisterOnShutdown(a.client.CloseIdleConnections)
	var err error
	for _, addr := range o.http {
		err = errors.Join(err, listen(addr, srv.Serve, func(net.Listener) {}))
	}
	for _, addr := range o.tcp {
		err = errors.Join(err, listen(addr, a.serveLines, func(l net.Listener) { _ = l.Close() }))
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-serveErr:
		}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for _, stop := range stops {
		stop()
	}
	if e := srv.Shutdown(bounded); err == nil {
		err = e
	}
	a.closeConns()
	group.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}
