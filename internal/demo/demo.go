// Package demo runs a sample mesh on this machine, plays its acts and checks each of them.
//
// [Run] starts the mesh (test/meshup), drives requests through it, edits its YAML, kills
// its programs, and prints what happens: lines that stay and, on a terminal, a live table.
// It returns nil only if every check held. However it ends, be it that nobody reads its output any
// more, it leaves no process, namespace or file behind; killed with -9 it leaves its folder, which
// the next one removes. No request is ever repeated, neither by the demo's clients nor
// by the sample's routes, so every count is what really happened.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// Options say how to run the demo.
type Options struct {
	Programs meshup.Programs
	// ConfigDir is the sample; the demo works on a copy.
	ConfigDir string
	Token     meshup.IssueToken
	Out       io.Writer
	// Size tells the terminal's columns and rows, and has a table drawn below the lines;
	// nil where the output is no terminal.
	Size func() (columns, rows int)
	// Resized is sent something when that size has changed; nil: nobody says.
	Resized <-chan os.Signal
	// Acts names those to play, in the demo's order; nil: all. None needs another before it.
	Acts []string
	// Keep leaves the mesh up after the acts until the context ends.
	Keep bool
	// LogDir, empty or new, keeps the programs' logs; "": they go with everything else.
	LogDir string
	// Log hears what is started; nil: nobody.
	Log *slog.Logger
}

// ErrNotHeld is returned when a check did not hold; the output has said which.
var ErrNotHeld = errors.New("not every check held")

// demo is a run of the demo.
type demo struct {
	o      Options
	screen *screen
	mesh   *meshup.Mesh
	load   *load
	config string
	split  split // the weights that the YAML has now
	act    string
	checks []check
	over   <-chan struct{} // closed when the run is to end early

	// mu guards proxies, which the watcher replaces.
	mu      sync.Mutex
	proxies []proxyState
}

// Run runs the demo until its end, or the end of ctx.
func Run(ctx context.Context, o Options) (err error) {
	began := time.Now()
	if o.LogDir != "" {
		if old, _ := os.ReadDir(o.LogDir); len(old) > 0 {
			return fmt.Errorf("keep the logs in %s: there are files in it; name an empty or a new folder", o.LogDir)
		}
	}
	// Who reads what is printed may go away: then there is nobody to play for.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	work, left, remove, err := makeFolder()
	if err != nil {
		return err
	}
	defer func() {
		if o.LogDir != "" {
			err = errors.Join(err, os.CopyFS(o.LogDir, os.DirFS(filepath.Join(work, "log"))))
		}
		err = errors.Join(err, remove())
	}()
	d := &demo{o: o, config: filepath.Join(work, "config"), split: split{90, 10}, over: ctx.Done()}
	d.screen = &screen{size: o.Size, out: o.Out, broken: func(err error) { stop(fmt.Errorf("print: %w", err)) }}
	for _, l := range left {
		d.screen.line("%s", l)
	}
	if err := copyConfig(o.ConfigDir, d.config); err != nil {
		return err
	}
	d.screen.line("starting a mesh from %s: pilot-discovery, and for each Pod its namespaces, capture, agent, Envoy and app", o.ConfigDir)
	d.mesh, err = meshup.Start(ctx, meshup.Options{
		Programs: o.Programs, ConfigDir: d.config, WorkDir: work, Token: o.Token, Log: o.Log,
		ProxyConfig: meshup.CountFailures,
	})
	if err != nil {
		return errors.Join(err, interruption(ctx))
	}
	defer func() { err = errors.Join(err, d.mesh.Close()) }()
	d.screen.line("every Pod is ready after %s", time.Since(began).Round(time.Millisecond))

	if err := d.perform(ctx); err != nil {
		return err
	}
	text, ok := summary(d.checks)
	d.screen.keep("\n" + text)
	if o.Keep {
		if err := d.stay(ctx); err != nil {
			return err
		}
	}
	if err := interruption(ctx); err != nil && !o.Keep {
		return err
	}
	if !ok {
		return ErrNotHeld
	}
	return nil
}

// interruption is why a run ended early, where it was not asked to.
func interruption(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// perform plays the acts while the watcher looks at the proxies.
func (d *demo) perform(ctx context.Context) error {
	for _, name := range d.o.Acts {
		if !slices.ContainsFunc(acts, func(a act) bool { return a.name == name }) {
			return fmt.Errorf("play the acts: there is no act %q", name)
		}
	}
	shopper := d.mesh.Pod("shopper-1.bookshop")
	if shopper == nil {
		return fmt.Errorf("play the acts: %s has no Pod shopper-1.bookshop", d.o.ConfigDir)
	}
	d.load = newLoad("shopper", "http://productpage:9080/", meshup.Client(shopper.Net, workers))
	defer d.load.client.CloseIdleConnections()
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { d.watch(watching) })
	group.Go(func() { d.followSize(watching) })
	defer group.Wait()
	defer stop()
	for _, a := range acts {
		if len(d.o.Acts) > 0 && !slices.Contains(d.o.Acts, a.name) {
			continue
		}
		d.act = a.name
		d.screen.line("\n%s", a.title)
		err := a.play(d, ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("play the acts: %w", context.Cause(ctx))
		}
		if err != nil {
			d.hold("it could be played", err)
		}
		d.look(ctx)
		d.screen.keep(d.tables())
		d.load.reset()
	}
	return nil
}

// hold records a check and prints it. What an interrupted run finds says nothing.
func (d *demo) hold(what string, err error) {
	select {
	case <-d.over:
		return
	default:
	}
	d.checks = append(d.checks, check{Act: d.act, What: what, Err: err})
	if err != nil {
		d.screen.line("  FAILED: %s: %v", what, err)
		return
	}
	d.screen.line("  held: %s", what)
}

func (d *demo) tables() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return tables(d.load.snapshot(), d.proxies, time.Now())
}
