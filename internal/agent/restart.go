package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/node"
	"github.com/pilothouse/pilothouse/internal/filewatch"
)

const (
	// firstLaunch is the hash of what the agent starts with.
	firstLaunch = "first"
	// lookEvery is how often inputs are looked at where the kernel gives no notice (the limit of
	// CPUs never does), and settle is how long they must keep still.
	lookEvery = time.Second
	settle    = 50 * time.Millisecond
	// limitEvery is how many looks at files there are to one at the limit of CPUs, which takes
	// several files of the kernel.
	limitEvery = 5

	annotationLogLevel  = "sidecar.istio.io/logLevel"
	annotationComponent = "sidecar.istio.io/componentLogLevel"
)

// restarts watches what Envoy was started with, and desires another one when that has changed.
type restarts struct {
	*Agent
	log   *slog.Logger
	asked chan struct{} // somebody wants one by hand
	cold  atomic.Pointer[[]string]

	// The rest belongs to the goroutine that watches.
	made    made
	hand    int                      // restarts asked for by hand
	levels  [2]string                // of the annotations
	cpus    int                      // the limit that was seen last
	written map[string]string        // bootstraps by the hash of their launch
	files   map[string]filewatch.Sig // as they were when they were last acted on
	shrunk  filewatch.Shrunk
	looks   int
}

// made is what the newest launch was made of.
type made struct {
	print    string   // of all of it
	binary   string   // the digest of a binary that took the place of the first, "" before
	inputs   []string // files that the configuration names
	override string
}

// watchInputs prepares the watch, and the removal of what is written from here on. It begins when Envoy runs, and costs the start nothing.
func (a *Agent) watchInputs() error {
	a.restarts = &restarts{Agent: a, log: a.log.With("scope", "restart"), asked: make(chan struct{}, 1)}
	a.restarts.cold.Store(&[]string{})
	a.restarts.written = map[string]string{}
	if a.o.Node.Config.GetCustomConfigFile() == "" {
		a.restarts.written[firstLaunch] = a.bootstrapPath(bootstrapName)
	}
	a.close.Add("remove Envoy's bootstraps", a.restarts.close)
	a.serve("restart", a.restarts.run)
	return nil
}

// ask wants a new Envoy with whatever its inputs say now. It returns at once.
func (r *restarts) ask() {
	select {
	case r.asked <- struct{}{}:
	default: // one that is asked for already will do
	}
}

// run watches until ctx ends.
func (r *restarts) run(ctx context.Context) error {
	in := r.o.Inputs.Node
	r.levels, r.cpus = levels(r.o.Node), in.CPULimit
	var err error
	if r.made.override, err = r.Agent.override(); err == nil {
		r.made.print, err = r.fingerprint(r.o.Node)
	}
	if err != nil {
		r.log.Warn("look at Envoy's inputs", "error", err)
	}
	n := filewatch.NewNotifier(r.log)
	defer n.Close()
	r.files = r.look()
	woken := make(chan bool)
	go func() {
		defer close(woken)
		for n.Wait(ctx, lookEvery) {
			select {
			case woken <- true:
			case <-ctx.Done():
			}
		}
	}()
	byHand := false
	for r.watch(n); ; {
		select {
		case <-r.asked:
			r.hand++
			byHand = true
		case _, ok := <-woken:
			if !ok {
				return nil
			}
		}
		if !byHand && !r.changed(ctx) {
			continue
		}
		// A file that shrank in place may be half written; the next looks come back to it.
		if r.shrunk.Wait(time.Now(), r.files, r.look()) == 0 {
			r.act(byHand)
			byHand = false
			r.watch(n)
		}
	}
}

// watch has the kernel give notice where the files lie now. A folder that another one takes the
// place of gives no more; the looks find that, as the files in it are others then.
func (r *restarts) watch(n *filewatch.Notifier) {
	var dirs []string
	for path := range r.files {
		real, on := filewatch.Resolve(path)
		dirs = append(append(dirs, on...), filepath.Dir(real))
	}
	n.Watch(dirs)
}

// still says, for next to no memory, that nothing differs from what was acted on.
func (r *restarts) still() bool {
	for path, sig := range r.files {
		if now, _ := filewatch.Stat(path); now != sig {
			return false
		}
	}
	r.looks++
	return r.looks%limitEvery != 0 || r.cpus == envoy.CPULimit()
}

// changed says whether anything differs from what was acted on, and has kept still.
func (r *restarts) changed(ctx context.Context) bool {
	if r.still() {
		return false
	}
	now := r.look()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(settle):
		}
		later := r.look()
		if maps.Equal(now, later) {
			return true
		}
		now = later
	}
}

// look takes the signatures of all files that Envoy was started with.
func (r *restarts) look() map[string]filewatch.Sig {
	out := map[string]filewatch.Sig{}
	c := r.o.Node.Config
	paths := append([]string{
		r.o.Inputs.MeshFile, annotationsFile, r.o.Node.Env[configFileVariable], c.GetCustomConfigFile(),
		r.o.Settings.Envoy.OverrideFile, r.launch.Binary,
	}, r.made.inputs...)
	for _, path := range paths {
		if path != "" {
			out[path], _ = filewatch.Stat(path) // one that is not there has the zero signature
		}
	}
	return out
}

// act reads everything again and does what the difference asks for.
func (r *restarts) act(byHand bool) {
	sigs := r.look()
	if sigs[r.launch.Binary] != r.files[r.launch.Binary] {
		r.compareBinary()
	}
	r.files = sigs
	if err := r.reload(byHand); err != nil {
		r.log.Warn("the change is not taken over", "error", err)
	}
}

// reload makes the next launch and desires it if it differs.
func (r *restarts) reload(byHand bool) error {
	in, err := ReadFiles(r.o.Inputs.Node, r.o.Inputs.MeshFile)
	if err != nil {
		return err
	}
	if r.cpus = envoy.CPULimit(); r.cpus != in.CPULimit {
		// The variable is of the time when the container was started.
		in.CPULimit, in.Env = r.cpus, maps.Clone(in.Env)
		delete(in.Env, "ISTIO_CPU_LIMIT")
	}
	next, err := node.Build(in)
	if err != nil {
		return err
	}
	cold := node.Changed(r.o.Node.Config, next.Config, node.Cold)
	if len(cold) > 0 && !slices.Equal(cold, *r.cold.Load()) {
		r.log.Warn("a change takes effect when the Pod is restarted", "fields", strings.Join(cold, ", "))
	}
	r.cold.Store(&cold)
	if err := next.Reconfigure(node.Warmed(r.o.Node.Config, next.Config)); err != nil {
		return err
	}
	if r.made.override, err = r.Agent.override(); err != nil {
		return err
	}
	print, err := r.fingerprint(next)
	if err != nil {
		return err
	}
	quiet := levels(next) == r.levels
	r.level(levels(next))
	if print == r.made.print && !byHand && quiet {
		return nil
	}
	return r.desire(next, print, print != r.made.print || byHand)
}

// desire makes a launch of a node. Where it is not another one, its arguments only hold from the next start on.
func (r *restarts) desire(next *node.Facts, print string, another bool) error {
	hash, name := r.launch.Hash, bootstrapName
	if another {
		hash = print[:16] + "-" + strconv.Itoa(r.hand)
	}
	if hash != firstLaunch {
		name = "envoy-rev-" + hash + ".json"
	}
	l, err := r.compose(next, name, r.made.override)
	if err != nil {
		return err
	}
	l.Hash = hash
	r.launch, r.made.print = l, print
	if r.o.Node.Config.GetCustomConfigFile() == "" {
		r.written[hash] = r.bootstrapPath(name)
	}
	r.tidy()
	if another {
		r.log.Info("a new Envoy is wanted", "hash", hash, "by_hand", r.hand)
	}
	r.envoy.Desire(l)
	return nil
}

// tidy removes the bootstraps of launches that will not be started again.
func (r *restarts) tidy() {
	v := r.envoy.State()
	keep := []string{r.launch.Hash, v.Goal.Desired, v.Goal.Good}
	for _, e := range v.Epochs {
		keep = append(keep, e.Hash)
	}
	for hash, path := range r.written {
		if !slices.Contains(keep, hash) {
			delete(r.written, hash)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				r.log.Warn("remove an old bootstrap", "error", err)
			}
		}
	}
}

// close removes the bootstraps.
func (r *restarts) close() error {
	var errs []error
	for _, path := range r.written {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// levels are the log levels that the annotations ask for.
func levels(n *node.Facts) [2]string {
	return [2]string{n.Annotations[annotationLogLevel], n.Annotations[annotationComponent]}
}

// level changes Envoy's log levels where the annotations say other ones than before.
func (r *restarts) level(want [2]string) {
	if want == r.levels {
		return
	}
	r.levels = want
	if want[0] != "" {
		r.o.Flags.LogLevel = want[0]
	}
	if want[1] != "" {
		r.o.Flags.ComponentLogLevel = want[1]
	}
	level, components := envoy.SplitLogLevel(r.o.Flags.LogLevel, r.o.Flags.ComponentLogLevel)
	if err := r.envoy.Admin().SetLogLevel(context.Background(), level, components); err != nil {
		r.log.Warn("change Envoy's log level", "error", err)
		return
	}
	r.log.Info("Envoy's log level is changed", "level", level, "components", components)
}
