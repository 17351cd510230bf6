// Command xdsload measures what many sidecars cost pilot-discovery.
//
// It writes a synthetic mesh into a temporary directory, starts pilot-discovery over it, opens streams that
// subscribe and acknowledge as Envoy does, changes objects of the mesh, and lets all streams come back. Then it
// does the same to a server that sends the very same bytes through gRPC and does nothing else: the limit of the
// wire. It prints for each step the time until the streams had everything and what it cost the servers.
// docs/performance.md explains the figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

func main() {
	if script := os.Getenv(wireEnv); script != "" {
		os.Exit(wireMain(script))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "xdsload:", err)
		os.Exit(1)
	}
}

// wireMain is main of a wire server.
func wireMain(script string) int {
	if err := serveWire(script, os.Getenv(wireCertEnv), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "xdsload: wire server:", err)
		return 1
	}
	return 0
}

// invocation is what a command line says.
type invocation struct {
	options
	json   bool
	matrix [][]string // flags of each run; nil without -matrix
}

// parse parses the command line without the program's name.
func parse(args []string, stderr io.Writer) (v invocation, err error) {
	o := &v.options
	flags := flag.NewFlagSet("xdsload", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.Streams, "streams", 500, "number of `proxies`, each with one connection and one stream")
	flags.IntVar(&o.AtATime, "at-a-time", 2000, "how many `streams` at a time have asked for everything and not received it; further ones wait to connect, so that the clients, which need 6 MB each meanwhile, have enough memory; 0 for all")
	flags.IntVar(&o.Mesh.Services, "services", 1000, "number of `services`; every fourth of a namespace has a VirtualService and a DestinationRule")
	flags.IntVar(&o.Mesh.Endpoints, "endpoints", 2, "`Pods` of each service")
	flags.IntVar(&o.Mesh.Namespaces, "namespaces", 20, "number of `namespaces` that the services are spread over")
	protocol := flags.String("protocol", "delta", "xDS `protocol`: delta, or sotw for the state of the world")
	flags.BoolVar(&o.VHDS, "vhds", true, "take virtual hosts by VHDS, as an Envoy of our agent does; needs delta")
	flags.BoolVar(&o.TLS, "tls", false, "connect by mutual TLS, with certificates that the CA signs for tokens")
	flags.IntVar(&o.SlowReaders, "slow-readers", 0, "make the changes again with this `number` of further streams that ask for everything and read nothing")
	flags.IntVar(&o.Repeat, "repeat", 5, "how many `times` each change is made")
	flags.StringVar(&o.Discovery, "discovery", "bin/pilot-discovery", "`path` of the pilot-discovery that is measured")
	flags.DurationVar(&o.Bound, "bound", 10*time.Minute, "longest `time` of one step")
	flags.StringVar(&o.profiles.dir, "cpuprofile", "", "`directory` for profiles of pilot-discovery, CPU and heap, one of each step; profiling costs processor time")
	flags.DurationVar(&o.profiles.time, "cpuprofile-time", 10*time.Second, "`time` of each CPU profile, from the start of its step")
	flags.BoolVar(&v.json, "json", false, "print JSON instead of a table")
	matrix := flags.String("matrix", "", "do several `runs`, each with these flags besides the others, and print Markdown: \"streams=500 streams=2000,tls\", or \"standard\"")
	if err := flags.Parse(args); err != nil {
		return v, err
	}
	if flags.NArg() > 0 {
		return v, fmt.Errorf("unexpected argument %q: want flags only", flags.Arg(0))
	}
	switch *protocol {
	case "delta":
		o.Delta = true
	case "sotw":
	default:
		return v, fmt.Errorf("invalid -protocol %q: want delta or sotw", *protocol)
	}
	if o.profiles.time < time.Second {
		return v, fmt.Errorf("invalid -cpuprofile-time %v: want 1s or more", o.profiles.time)
	}
	if *matrix != "" {
		if v.matrix, err = parseMatrix(*matrix); err == nil && v.json {
			err = errors.New("-json cannot be combined with -matrix, which prints Markdown")
		}
	}
	return v, err
}

// clientMemory is from how many bytes on the clients collect more often.
const clientMemory = 6 << 30

// command is main without the process.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	v, err := parse(args, stderr)
	if err != nil {
		return err
	}
	// The clients' garbage is not what is measured, as long as there is room for it and for the servers.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(clientMemory)
	if v.matrix != nil {
		return runMatrix(ctx, args, v.matrix, stdout, stderr)
	}
	l, err := run(ctx, v.options)
	if err != nil {
		return err
	}
	if v.json {
		return l.report.json(stdout)
	}
	return l.report.table(stdout)
}
