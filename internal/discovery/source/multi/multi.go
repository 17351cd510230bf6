// Package multi is a source that joins others: a cluster or a directory, further directories, and remote clusters.
//
// The first source has everything. The directories of the mesh configuration's configSources have objects of Istio's
// kinds. Remote clusters are named by Secrets, each key of which is a cluster's ID and each value a kubeconfig; what is
// taken from them are Namespaces, Nodes, Services, EndpointSlices and Pods, with the cluster in their keys. Sources come
// and go while it runs. The first batch has what the first source has, and what each other source has that could be
// read within a time: one that cannot be read never delays the others for longer, and what it had stays in force. A
// source that is not wanted any more takes its objects with it. A Secret or kubeconfig that cannot be used is a problem
// that names it, and the one that was used before stays in use.
package multi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Runner reports objects until its context ends, and then returns nil. Run calls emit from one goroutine.
type Runner interface {
	Run(ctx context.Context, emit func(object.Batch)) error
}

// Options configure a Source. First, Log and, with Secrets, OpenCluster are required.
type Options struct {
	// First is the source that has everything; its place, the ID of its cluster or its directory, names it in problems.
	First Runner
	Place string
	// FirstIsCluster is set if First reads a cluster, whose objects of Istio's kinds are used only if configSources says so.
	FirstIsCluster bool
	// Secrets reports all Secrets that name remote clusters whenever they have changed, or why they cannot be read, until
	// ctx ends. An error within which Refused is does not end by itself: it is not waited for. Secrets is nil if there are
	// no remote clusters.
	Secrets func(ctx context.Context, report func([]Secret, error))
	Refused error
	// OpenCluster returns the source of a remote cluster, and OpenDirectory that of a directory. Their errors have nothing
	// of a kubeconfig's credentials. Remembered are what an earlier process had read of it.
	OpenCluster   func(id string, kubeconfig []byte, remembered []object.Object) (Runner, error)
	OpenDirectory func(path string, remembered []object.Object) (Runner, error)
	// ConfigSources are those of the mesh configuration at the start.
	ConfigSources []string
	// Remembered are the objects that an earlier process had read of remote clusters and directories.
	Remembered []object.Object
	// Registered reports the WorkloadEntries that the control plane itself keeps, in RegisteredFile; nil if it keeps none.
	// One that another source has, too, is that source's.
	Registered     Runner
	RegisteredFile string
	// Timeout is how long the first batch waits for each source but the first, after that was opened; 0 means 30 s.
	Timeout time.Duration
	Log     *slog.Logger
}

// defaultTimeout is PILOT_REMOTE_CLUSTER_TIMEOUT's.
const defaultTimeout = 30 * time.Second

// reopen is how long a directory that cannot be opened is left alone.
const reopen = 5 * time.Second

// What the first batch waits for, besides sources.
const (
	secretsKnown = "secrets"
	openProblems = "sources that cannot be opened"
)

// State is what is known of one remote cluster.
type State struct {
	// ID is the cluster's, Secret the name of the Secret that names it.
	ID, Secret string
	// Synced is whether the cluster has been read whole since the start.
	Synced bool
	// Behind is since when changes of it may be missing; zero if they are not.
	Behind time.Time
	runner Runner
}

// Source joins sources. Create one with New. Run may be called once; SetConfigSources, Behind, Clusters and
// Timeouts are safe for concurrent use.
type Source struct {
	o      Options
	events chan func()
	merger *merger // of Run's goroutine, like all that follows
	open   map[string]*opened
	// refused are the kubeconfigs and directories that could not be opened.
	refused map[string]object.Problem
	wanted  map[string]remote
	sources []string // configSources in force; nil before the first
	dirs    []string
	// applied are closed when what has been applied has been emitted: sources wait for it.
	applied []chan struct{}
	tasks   sync.WaitGroup

	mu       sync.Mutex // guards what follows
	states   map[string]State
	dirsRead []Runner         // those of configSources
	timeouts map[string]int64 // by ID of the cluster
}

// opened is a source that runs.
type opened struct {
	remote
	runner Runner
	stop   func()
	timer  *time.Timer // its time; nil if it is over
}

// New returns a source. It opens nothing.
func New(o Options) *Source {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	s := &Source{o: o, events: make(chan func(), 64), open: map[string]*opened{}, refused: map[string]object.Problem{}, states: map[string]State{}, timeouts: map[string]int64{}}
	var awaited []string
	if o.Secrets != nil {
		awaited = append(awaited, secretsKnown)
	}
	s.merger = newMerger(awaited...)
	return s
}

// SetConfigSources changes the configSources of the mesh configuration. It does not block for longer than the source
// takes to handle what has arrived before.
func (s *Source) SetConfigSources(ctx context.Context, addresses []string) {
	s.send(ctx, func() { s.setSources(ctx, addresses) })
}

// Behind returns since when changes of the first source, or of a directory of configSources, may be missing. It returns
// false if none are, or if these sources do not say.
func (s *Source) Behind() (since time.Time, late bool) {
	s.mu.Lock()
	of := append([]Runner{s.o.First}, s.dirsRead...)
	s.mu.Unlock()
	for _, r := range of {
		if at, ok := behind(r); ok && (!late || at.Before(since)) {
			since, late = at, true
		}
	}
	return since, late
}

func behind(r Runner) (time.Time, bool) {
	if b, ok := r.(interface{ Behind() (time.Time, bool) }); ok {
		if since, late := b.Behind(); late {
			return since, true
		}
	}
	return time.Time{}, false
}

// Clusters returns the remote clusters, by ID.
func (s *Source) Clusters() []State {
	s.mu.Lock()
	out := slices.SortedFunc(maps.Values(s.states), func(a, b State) int { return strings.Compare(a.ID, b.ID) })
	s.mu.Unlock()
	for i := range out {
		out[i].Behind, _ = behind(out[i].runner)
	}
	return out
}

// Timeouts returns how often a remote cluster has not been read in time, by its ID.
func (s *Source) Timeouts() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.timeouts)
}

// send has f run by Run's goroutine, unless ctx has ended.
func (s *Source) send(ctx context.Context, f func()) {
	select {
	case s.events <- f:
	case <-ctx.Done():
	}
}

// Run calls emit with batches, from one goroutine, until ctx ends, and then returns nil. While emit is running,
// changes accumulate.
func (s *Source) Run(ctx context.Context, emit func(object.Batch)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.tasks.Wait()
	defer cancel()
	s.merger.add(firstName, part{accepts: everything})
	s.run(ctx, firstName, s.o.First)
	if s.o.Registered != nil {
		s.merger.add(registeredName, part{rank: registeredRank, accepts: everything})
		s.run(ctx, registeredName, s.o.Registered)
	}
	s.setSources(ctx, s.o.ConfigSources)
	if s.o.Secrets != nil {
		s.tasks.Go(func() {
			s.o.Secrets(ctx, func(list []Secret, err error) { s.send(ctx, func() { s.setSecrets(ctx, list, err) }) })
		})
		late := time.AfterFunc(s.o.Timeout, func() { s.send(ctx, func() { s.secretsLate(ctx) }) })
		defer late.Stop()
	}
	for {
		batch := s.merger.batch()
		s.publish()
		if len(batch.Changes) > 0 || batch.Problems != nil || batch.Synced {
			emit(batch)
		}
		for _, done := range s.applied {
			close(done)
		}
		s.applied = nil
		select {
		case f := <-s.events:
			f()
		case <-ctx.Done():
			for _, o := range s.open {
				o.end()
			}
			return nil
		}
		for waiting := true; waiting; {
			select {
			case f := <-s.events:
				f()
			default:
				waiting = false
			}
		}
	}
}

// The names of parts: of the first source, and the beginnings of those of others.
const (
	firstName       = "first"
	registeredName  = "registered proxies"
	directoryPrefix = "directory "
	clusterPrefix   = "cluster "
)

// The ranks of parts: a directory's is its position.
const (
	firstRank   = 0
	clusterRank = 1 << 20

	registeredRank = 1 << 21
)

// run runs a source, which waits while what it has reported is emitted, until the returned function is called.
func (s *Source) run(ctx context.Context, name string, r Runner) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	s.tasks.Go(func() {
		err := r.Run(ctx, func(b object.Batch) {
			done := make(chan struct{})
			s.send(ctx, func() {
				s.applied = append(s.applied, done)
				if ctx.Err() != nil {
					return // another source has its name
				}
				s.merger.apply(name, b)
				if b.Synced {
					s.inTime(name)
				}
			})
			select {
			case <-done:
			case <-ctx.Done():
			}
		})
		if err != nil && ctx.Err() == nil {
			s.o.Log.Error("a source has ended; what it has reported stays in force", "source", name, "error", err)
		}
	})
	return cancel
}

// start opens a source beside the first, in place of one with its name.
func (s *Source) start(ctx context.Context, name string, p part, of remote, openIt func() (Runner, error)) error {
	r, err := openIt()
	if err != nil {
		return err
	}
	if old := s.open[name]; old != nil {
		old.end()
	}
	s.merger.add(name, p)
	o := &opened{remote: of, runner: r}
	o.stop = s.run(ctx, name, r)
	o.timer = time.AfterFunc(s.o.Timeout, func() {
		s.send(ctx, func() {
			if s.open[name] == o && o.timer != nil {
				if id, ok := strings.CutPrefix(name, clusterPrefix); ok {
					s.mu.Lock()
					s.timeouts[id]++
					s.mu.Unlock()
				}
				s.merger.giveUp(name, fmt.Sprintf("has not been read within %s: what is known of it stays in force", s.o.Timeout))
			}
		})
	})
	s.open[name] = o
	return nil
}

func (o *opened) end() {
	o.stop()
	if o.timer != nil {
		o.timer.Stop()
	}
}

// inTime says that a source has been read.
func (s *Source) inTime(name string) {
	if o := s.open[name]; o != nil && o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}

// end ends a source and removes its objects.
func (s *Source) end(name string) {
	if o := s.open[name]; o != nil {
		o.end()
		delete(s.open, name)
	}
	s.merger.drop(name)
	delete(s.refused, name)
}

// setSources opens the directories of configSources, and closes those that are not among them.
func (s *Source) setSources(ctx context.Context, addresses []string) {
	if s.sources != nil && slices.Equal(addresses, s.sources) {
		return
	}
	s.sources = append([]string{}, addresses...)
	dirs, cluster := configSources(addresses)
	for _, path := range s.dirs {
		if !slices.Contains(dirs, path) {
			s.o.Log.Info("a directory is not read any more: its objects are removed", "directory", path)
			s.end(directoryPrefix + path)
		}
	}
	s.dirs = dirs
	accepts := everything
	if s.o.FirstIsCluster && !cluster {
		accepts = notIstioKinds
		s.o.Log.Info("objects of Istio's kinds in the cluster are not used, since configSources has no k8s:// (as with Istio)", "cluster", s.o.Place)
	}
	s.merger.change(firstName, firstRank, accepts)
	for i, path := range dirs {
		if name := directoryPrefix + path; s.open[name] != nil {
			s.merger.change(name, i+1, istioKinds)
			continue
		}
		s.openDirectory(ctx, path, i+1)
	}
	s.tell()
}

func (s *Source) openDirectory(ctx context.Context, path string, rank int) {
	name := directoryPrefix + path
	p := part{
		rank: rank, accepts: istioKinds, remembered: s.rememberedBelow(path),
		refusal: "not used: only Istio's kinds are read from a directory of configSources",
	}
	err := s.start(ctx, name, p, remote{}, func() (Runner, error) { return s.o.OpenDirectory(path, p.remembered) })
	if err == nil {
		delete(s.refused, name)
		return
	}
	s.refused[name] = object.Problem{Origin: object.Origin{File: path}, Text: err.Error() + "; it is tried again"}
	time.AfterFunc(reopen, func() {
		s.send(ctx, func() {
			if i := slices.Index(s.dirs, path); i >= 0 && s.open[name] == nil {
				s.openDirectory(ctx, path, i+1)
				s.tell()
			}
		})
	})
}

// Below reports whether a file is in a directory or below it.
func Below(directory, file string) bool {
	rel, err := filepath.Rel(directory, file)
	return err == nil && filepath.IsLocal(rel) && rel != "."
}

// rememberedBelow returns what an earlier process had read of a directory.
func (s *Source) rememberedBelow(path string) (out []object.Object) {
	for _, o := range s.o.Remembered {
		if o.Cluster == "" && Below(path, o.Origin.File) {
			out = append(out, o)
		}
	}
	return out
}

// rememberedOf returns what an earlier process had read of a remote cluster.
func (s *Source) rememberedOf(id string) (out []object.Object) {
	for _, o := range s.o.Remembered {
		if o.Cluster == id && id != "" {
			out = append(out, o)
		}
	}
	return out
}

// setSecrets opens and closes remote clusters. An error leaves them as they are.
func (s *Source) setSecrets(ctx context.Context, list []Secret, err error) {
	if err != nil {
		s.merger.find(secretsKnown, []object.Problem{{
			Origin: object.Origin{File: s.o.Place}, Text: "the Secrets that name remote clusters cannot be read: " + err.Error() + "; the clusters that are known stay in use", Severity: object.Warning,
		}})
		if s.o.Refused != nil && errors.Is(err, s.o.Refused) {
			s.secretsLate(ctx)
		}
		return
	}
	wanted, problems := plan(list, s.o.Place)
	s.merger.find(secretsKnown, problems)
	s.wanted = wanted
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		s.openCluster(ctx, id, wanted[id])
	}
	for name := range s.merger.parts {
		id, of := strings.CutPrefix(name, clusterPrefix)
		if _, ok := wanted[id]; of && !ok {
			s.o.Log.Info("a remote cluster is not used any more: its endpoints are removed", "cluster", id)
			s.end(name)
		}
	}
	for name := range s.refused {
		if id, of := strings.CutPrefix(name, clusterPrefix); of && wanted[id].secret == "" {
			delete(s.refused, name)
		}
	}
	s.merger.known(secretsKnown)
	s.tell()
}

func (s *Source) openCluster(ctx context.Context, id string, of remote) {
	name := clusterPrefix + id
	if old := s.open[name]; old != nil && old.equal(of) {
		return
	}
	p := part{rank: clusterRank, accepts: everything, remembered: s.rememberedOf(id)}
	err := s.start(ctx, name, p, of, func() (Runner, error) { return s.o.OpenCluster(id, of.kubeconfig, p.remembered) })
	if err == nil {
		s.o.Log.Info("reading a remote cluster", "cluster", id, "secret", of.secret)
		delete(s.refused, name)
		return
	}
	text := err.Error()
	if s.open[name] != nil {
		text += "; the kubeconfig before stays in use"
	} else if s.merger.parts[name] == nil && len(p.remembered) > 0 {
		s.merger.add(name, p)
		s.merger.giveUp(name, "cannot be connected to: its endpoints are those of the saved configuration")
	}
	s.refused[name] = secretProblem(of.secret, id, text)
}

// secretsLate has what is known of remote clusters used if the Secrets have not been read in time.
func (s *Source) secretsLate(ctx context.Context) {
	if s.wanted != nil || ctx.Err() != nil {
		return
	}
	for _, o := range s.o.Remembered {
		if name := clusterPrefix + o.Cluster; o.Cluster != "" && s.merger.parts[name] == nil {
			s.merger.add(name, part{rank: clusterRank, accepts: everything, remembered: s.rememberedOf(o.Cluster)})
			s.merger.giveUp(name, "is not known to exist, since the Secrets that name remote clusters have not been read: its endpoints are those of the saved configuration")
		}
	}
	s.merger.known(secretsKnown)
}

// tell reports what cannot be opened.
func (s *Source) tell() {
	var out []object.Problem
	for _, name := range slices.Sorted(maps.Keys(s.refused)) {
		out = append(out, s.refused[name])
	}
	s.merger.find(openProblems, out)
}

// publish makes the states of remote clusters, and which directories are read, known to others.
func (s *Source) publish() {
	states := map[string]State{}
	for id, r := range s.wanted {
		st := State{ID: id, Secret: r.secret}
		if p := s.merger.parts[clusterPrefix+id]; p != nil {
			st.Synced = p.synced
		}
		if o := s.open[clusterPrefix+id]; o != nil {
			st.runner = o.runner
		}
		states[id] = st
	}
	var read []Runner
	for _, path := range s.dirs {
		if o := s.open[directoryPrefix+path]; o != nil {
			read = append(read, o.runner)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states, s.dirsRead = states, read
}
