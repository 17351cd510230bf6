// Pilot-agent runs next to a workload: it runs its Envoy, and gives it its configuration and its certificate.
//
// Flags, environment, output and exit codes are those of Istio's agent where users or
// charts touch them. It ends with 0 when it did what was asked, with 255 when it was
// configured or asked wrongly, and `proxy` with Envoy's own status when Envoy could not be
// kept running.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// failed is the exit code of everything that went wrong and has no code of its own.
const failed = 255

func main() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	asked := &requests{}
	go asked.take(signals, cancel)
	os.Exit(run(ctx, os.Args[1:], process{env: cli.Environment(os.Environ()), stdout: os.Stdout, stderr: os.Stderr, asked: asked}))
}

// requests are the signals that ask this process to end. The first one ends the context of the command. A
// command may handle the next two (onAgain); otherwise the next one kills the process.
type requests struct {
	mu    sync.Mutex
	again func()
}

// onAgain sets what the second and the third signal do. The fourth kills in any case.
func (r *requests) onAgain(f func()) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again = f
}

func (r *requests) take(signals chan os.Signal, first func()) {
	<-signals
	first()
	for range 2 {
		r.mu.Lock()
		again := r.again
		r.mu.Unlock()
		if again == nil {
			break
		}
		<-signals
		again()
	}
	signal.Stop(signals)
}

// process is what a command uses of the process that it runs in.
type process struct {
	args           []string
	env            map[string]string
	stdout, stderr io.Writer
	asked          *requests // nil if the command handles no signals
}

func (s process) getenv(name string) string { return s.env[name] }

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, s process) int {
	s.args = args
	root := newRoot(s)
	root.SetArgs(args)
	root.SetOut(s.stdout)
	root.SetErr(s.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(s.stderr, "Error:", err)
	return exitCode(err)
}

// coder is an error with an exit code of its own.
type coder interface {
	error
	ExitCode() int
}

// exitCode is that of an error. Not every error with such a method counts: those of child
// processes have one, too.
func exitCode(err error) int {
	var own coder
	var capture captureError
	var run ended
	switch {
	case errors.As(err, &capture):
		own = capture
	case errors.As(err, &run):
		own = run
	default:
		return failed
	}
	return own.ExitCode()
}

// tellUnusedLogFlags says that flags of the log have no effect where nothing is logged. They are taken, since Istio's templates give them.
func tellUnusedLogFlags(c *cobra.Command, _ []string) {
	if c.Name() == proxyCommand {
		return
	}
	for _, s := range settings.AgentLog {
		if c.Flags().Changed(s.Flag) {
			fmt.Fprintf(c.ErrOrStderr(), "Note: flag --%s has no effect: only pilot-agent %s logs\n", s.Flag, proxyCommand)
		}
	}
}

func newRoot(s process) *cobra.Command {
	root := &cobra.Command{
		Use:   "pilot-agent",
		Short: "Run a workload's Envoy: its configuration, its certificate and its life cycle",
		Long: `Run a workload's Envoy: its configuration, its certificate and its life cycle.

Exit codes: 0 if a command did what was asked, and of proxy after a requested end; 255 for errors and for an
invalid command line. proxy ends with the code of Envoy if that could not be kept running, and
istio-iptables with 1 if rules could not be applied and 126 if connections do not pass them as planned.`,
		Example: `  pilot-agent proxy sidecar
  pilot-agent status
  pilot-agent doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Injection templates pass flags of many releases. [agent C2, F14]
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE:               func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRun:   tellUnusedLogFlags,
	}
	cli.Setup(root, nil)
	cli.Version(root, thisBuild().String())
	cli.AddToAll(root, settings.AgentLog)
	root.AddCommand(newProxy(s), newRequest(), newRestart(), newIdentity(), newStatus(), newDoctor(s), newLogLevel(), newWait(), newVersion(), newJoin(s), newLeave(s), newStart(s), cli.Collateral(root),
		newIptablesCommand(s.env), newCleanIptables(s))
	return root
}
