// Demo plays the scenarios of "pilotctl demo" in a Kubernetes cluster on this machine.
//
// It starts a control plane of Kubernetes and a Node whose containers are processes, installs the Helm chart, applies the
// bookshop to a namespace that is injected, and runs the scenarios, whose results are checked. It is "make demo-kube"; it needs
// root, and what "make build tools kube" makes. The exit code is 0 only if every check passed. However it ends, it leaves
// nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/demo"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/require"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, demo.ErrCheckFailed), errors.Is(err, flag.ErrHelp): // the output says so
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	keep := flags.Bool("keep", false, "leave the cluster running after the scenarios until Ctrl-C")
	logs := flags.String("logs", "", "empty or new `directory` for the containers' logs")
	scenarios := flags.String("scenarios", "", "`names` of the scenarios to run, with commas in between; all by default")
	verbose := flags.Bool("verbose", false, "log what the Node does to standard error")
	pace := flags.Duration("pace", 0, "pause for a `duration` before each scenario and after each check, to watch")
	step := flags.Bool("step", false, "wait for Enter before each scenario; needs a terminal as standard input")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: want flags only", flags.Arg(0))
	}
	if err := netmesh.Supported(); err != nil {
		return err
	}
	s, err := newSite()
	if err != nil {
		return err
	}
	o := demo.Options{Start: s.start, ConfigDir: s.sample, Out: os.Stdout, Keep: *keep, LogDir: *logs, EditBound: editBound}
	o.Size, o.Pace = demo.Terminal(os.Stdout, os.Getenv("TERM")), *pace
	o.Color = o.Size != nil && os.Getenv("NO_COLOR") == ""
	if *step {
		wait, restore, err := demo.Enter(os.Stdin)
		if err != nil {
			return fmt.Errorf("-step: %w", err)
		}
		defer restore()
		o.Enter = wait
	}
	if *scenarios != "" {
		o.Scenarios = strings.Split(*scenarios, ",")
	}
	if *verbose {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, resized, stop := demo.Signals(ctx)
	defer stop()
	o.Resized = resized
	return demo.Run(ctx, o)
}

// editBound is longer than that of a directory: an edit passes the API server, which shares the machine's processors with all
// the rest.
const editBound = time.Minute

// site is what the demo is made of.
type site struct {
	programs meshup.Programs
	// sample is the bookshop, deployments its Pods for a cluster.
	sample, deployments string
}

func newSite() (site, error) {
	root, err := require.Repository()
	if err != nil {
		return site{}, err
	}
	if _, err := require.KubePath(); err != nil {
		return site{}, err
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		return site{}, err
	}
	s := site{sample: filepath.Join(root, "samples", "bookshop"), deployments: filepath.Join(root, "samples", "bookshop-kubernetes", "deployments.yaml")}
	s.programs, err = meshup.In(filepath.Join(root, "bin"), envoy)
	return s, err
}
