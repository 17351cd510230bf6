// Package demo runs a sample mesh on this machine, and scenarios on it whose results it checks.
//
// [Run] starts the mesh (for "pilotctl demo" that of internal/lab/meshup), sends requests through it, edits its YAML, kills
// its programs, and prints what happens: lines and, on a terminal, a live table below them.
// It returns nil only if every check passed. However it ends, also when its output is closed,
// it leaves no process, namespace or file behind; after SIGKILL its directory is left, which
// the next run removes. No request is retried, neither by the demo's clients nor
// by the sample's routes, so the counts are exact.
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
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// Options say how to run the demo.
type Options struct {
	// Start starts the mesh, such as [OnThisMachine].
	Start func(context.Context, Site) (Mesh, error)
	// ConfigDir is the sample; the demo works on a copy.
	ConfigDir string
	Out       io.Writer
	// Size returns the terminal's columns and rows; nil if the output is not a terminal, in which case
	// no live table is drawn.
	Size func() (columns, rows int)
	// Resized receives a value when the size has changed; it may be nil.
	Resized <-chan os.Signal
	// Color is whether the terminal gets colors.
	Color bool
	// Pace is how long the demo pauses before each scenario and after each check, for a person who watches; 0: not at all.
	Pace time.Duration
	// Enter calls ask and waits until the person who watches wants to see the next scenario; nil: they follow each other.
	Enter func(ctx context.Context, ask func()) error
	// Scenarios are the names of those to run, in the demo's order; nil: all. None depends on another.
	Scenarios []string
	// EditBound is the longest time until an edit is in effect in an Envoy; 0: 10 s.
	EditBound time.Duration
	// Keep leaves the mesh running after the scenarios until the context ends.
	Keep bool
	// LogDir is an empty or new directory for the programs' logs; "": they are removed.
	LogDir string
	// Log gets what is started; nil: no log.
	Log *slog.Logger
}

// ErrCheckFailed is returned if a check failed; the output says which.
var ErrCheckFailed = errors.New("not every check passed")

// demo is a run of the demo.
type demo struct {
	o      Options
	screen *screen
	mesh   Mesh
	config string
	split  split // the weights in the YAML
	// authority issues the certificate of the ingress gateway.
	authority *authority
	scenario  string
	results   []result
	done      <-chan struct{} // closed when the run is interrupted

	// mu guards load against the watcher; only the scenarios' goroutine writes it.
	mu   sync.Mutex
	load *load
}

// use puts another load into the table.
func (d *demo) use(l *load) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.load != nil && d.load != l {
		d.load.client.CloseIdleConnections()
	}
	d.load = l
}

// Run runs the demo until its end, or the end of ctx.
func Run(ctx context.Context, o Options) (err error) {
	began := time.Now()
	if o.EditBound == 0 {
		o.EditBound = 10 * time.Second
	}
	if o.LogDir != "" {
		if old, _ := os.ReadDir(o.LogDir); len(old) > 0 {
			return fmt.Errorf("keep the logs in %s: the directory is not empty: want an empty or a new one", o.LogDir)
		}
	}
	// Once the output is closed, the run ends.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	work, left, remove, err := meshup.MakeFolder()
	if err != nil {
		return err
	}
	defer func() {
		if o.LogDir != "" {
			err = errors.Join(err, os.CopyFS(o.LogDir, os.DirFS(filepath.Join(work, "log"))))
		}
		err = errors.Join(err, remove())
	}()
	d := &demo{o: o, config: filepath.Join(work, "config"), split: split{90, 10}, done: ctx.Done()}
	d.screen = &screen{size: o.Size, painter: painter{color: o.Color}, out: o.Out, broken: func(err error) { stop(fmt.Errorf("print: %w", err)) }}
	for _, l := range left {
		d.screen.line("%s", l)
	}
	if err := copyConfig(o.ConfigDir, d.config); err != nil {
		return err
	}
	if d.authority, err = newAuthority(time.Now()); err != nil {
		return err
	}
	if _, _, err := d.writeCertificate(); err != nil {
		return err
	}
	d.screen.line("starting a mesh from %s", o.ConfigDir)
	d.mesh, err = o.Start(ctx, Site{ConfigDir: d.config, WorkDir: work, Line: d.screen.line, Log: o.Log})
	if err != nil {
		return errors.Join(err, interruption(ctx))
	}
	defer func() { err = errors.Join(err, d.mesh.Close()) }()
	d.screen.line("every Pod is ready after %s", time.Since(began).Round(time.Millisecond))

	if err := d.runScenarios(ctx); err != nil {
		return err
	}
	text, ok := summary(d.results)
	d.screen.keep(append(lines{nil}, text...))
	if o.Keep {
		if err := d.keepRunning(ctx); err != nil {
			return err
		}
	}
	if err := interruption(ctx); err != nil && !o.Keep {
		return err
	}
	if !ok {
		return ErrCheckFailed
	}
	return nil
}

// interruption is the cause if a run ended early without being cancelled.
func interruption(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// runScenarios runs the scenarios while the state of the proxies is followed.
func (d *demo) runScenarios(ctx context.Context) error {
	for _, name := range d.o.Scenarios {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			return fmt.Errorf("run the scenarios: there is no scenario %q", name)
		}
	}
	shopper, err := d.pod("shopper")
	if err != nil {
		return fmt.Errorf("run the scenarios: %w", err)
	}
	shopping := newLoad("shopper", "http://productpage:9080/", meshup.Client(shopper.From, workers))
	d.use(shopping)
	defer shopping.client.CloseIdleConnections()
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { d.watch(watching) })
	group.Go(func() { d.followSize(watching) })
	defer group.Wait()
	defer stop()
	for _, s := range scenarios {
		if len(d.o.Scenarios) > 0 && !slices.Contains(d.o.Scenarios, s.name) {
			continue
		}
		if _, err := d.pod(s.pod); err != nil && s.pod != "" {
			d.screen.line("\n%s\n  left out: this mesh has no Pod of %s", s.title, s.pod)
			continue
		}
		if err := d.runScenario(ctx, s); err != nil {
			return err
		}
		d.load.reset()
		d.use(shopping)
	}
	return nil
}

// runScenario runs one scenario, and keeps its last frame: all answers are there, and every proxy is in sync.
func (d *demo) runScenario(ctx context.Context, s scenario) error {
	d.scenario = s.name
	err := d.awaitEnter(ctx, s.title)
	if err == nil {
		d.screen.print(append(lines{nil}, paragraph(strong, s.title)...))
		d.screen.begin()
		d.pause()
		err = s.run(d, ctx)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("run the scenarios: %w", context.Cause(ctx))
	}
	if err != nil {
		d.check("the scenario ran to its end", err)
	}
	known, err := d.awaitInSync(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("run the scenarios: %w", context.Cause(ctx))
	}
	if err != nil {
		d.check("every proxy is in sync afterwards", err)
	}
	d.screen.keep(d.frame(d.proxyStates(ctx, known)))
	return nil
}

// awaitEnter waits until the next scenario is wanted.
func (d *demo) awaitEnter(ctx context.Context, title string) error {
	if d.o.Enter == nil {
		return nil
	}
	next, _, _ := strings.Cut(title, ".")
	err := d.o.Enter(ctx, func() {
		d.screen.ask(line{{"Press Enter for " + strings.ToLower(next[:1]) + next[1:] + ".", strong}})
	})
	d.screen.ask(nil)
	return err
}

// pause gives a person the time to read.
func (d *demo) pause() {
	if d.o.Pace <= 0 {
		return
	}
	timer := time.NewTimer(d.o.Pace)
	defer timer.Stop()
	select {
	case <-d.done:
	case <-timer.C:
	}
}

// check records and prints the result of a check. Results of an interrupted run mean nothing.
func (d *demo) check(what string, err error) {
	select {
	case <-d.done:
		return
	default:
	}
	r := result{Scenario: d.scenario, What: what, Err: err}
	d.results = append(d.results, r)
	d.screen.print(r.lines())
	d.pause()
}

// frame is what the table shows now.
func (d *demo) frame(proxies []proxyState) frame {
	d.mu.Lock()
	defer d.mu.Unlock()
	return frame{calls: d.load.snapshot(), proxies: proxies, now: time.Now()}
}
