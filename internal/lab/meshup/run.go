package meshup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/run"
)

// Program is a program of this machine that a container of a Pod runs.
type Program struct {
	// Container is the name of the container, and of the log.
	Container string
	Path      string
	Args      []string
	// Env is the whole environment, KEY=value.
	Env []string
	// Dir is the working directory; empty for the Pod's.
	Dir      string
	UID, GID uint32
	// Ports are the TCP ports that it is expected to listen on.
	Ports []uint16
	// Once is set if it is expected to end.
	Once bool
}

// listenBound is how long a program's ports are waited for: one that declares more than it opens holds up nobody for longer.
const listenBound = 10 * time.Second

// startPrograms starts the programs of the Pod's containers, and waits until each listens, has ended, or the bound is over.
func (p *Pod) startPrograms(ctx context.Context) error {
	if p.Spec.Router() {
		return nil
	}
	if p.others != nil {
		select {
		case <-p.others:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, prog := range p.Spec.Programs {
		if err := p.startProgram(prog); err != nil {
			return err
		}
	}
	for _, prog := range p.Spec.Programs {
		err := Await(ctx, listenBound, prog.Container+" of "+p.Spec.Key()+" listens", func(ctx context.Context) error {
			if p.Ended(prog.Container) != nil {
				return nil
			}
			return p.listens(ctx, prog.Ports)
		})
		if err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// once reports whether the programs of a Pod are expected to end, as those of Jobs.
func (p PodSpec) once() bool {
	return slices.ContainsFunc(p.Programs, func(prog Program) bool { return prog.Once })
}

// lastOnce has the programs of Jobs among the Pods that start together wait for the others: they run once, and would find nobody listening.
// The result is to be called with each of the others when it has started, or failed to.
func lastOnce(pods []*Pod) (started func(*Pod)) {
	all := make(chan struct{})
	var waiting atomic.Int64
	for _, p := range pods {
		if p.Spec.once() {
			p.others = all
		} else {
			waiting.Add(1)
		}
	}
	if waiting.Load() == 0 {
		close(all)
	}
	return func(p *Pod) {
		if p.others == nil && waiting.Add(-1) == 0 {
			close(all)
		}
	}
}

func (p *Pod) startProgram(prog Program) error {
	log, err := p.mesh.logFile(p.Spec.Key() + "." + prog.Container)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if prog.Dir == "" {
		prog.Dir = p.Dir
	}
	unprivileged, err := p.unprivileged()
	if err != nil {
		return fmt.Errorf("run container %s of %s: %w", prog.Container, p.Spec.Key(), err)
	}
	proc, err := unprivileged.Start(netmesh.Command{
		Path: prog.Path, Args: prog.Args, Env: prog.Env, Dir: prog.Dir, UID: prog.UID, GID: prog.GID, Stdout: log, Stderr: log,
	})
	if err != nil {
		return fmt.Errorf("run container %s of %s: %w", prog.Container, p.Spec.Key(), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		p.running = map[string]*netmesh.Process{}
	}
	p.running[prog.Container] = proc
	return nil
}

// unprivileged is where the programs of this machine run: with mounts of their own, and without what a set-user-ID bit or the
// capabilities of a file would give them, so that none becomes root by running another.
func (p *Pod) unprivileged() (*netmesh.Container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.programs != nil {
		return p.programs, nil
	}
	c, err := p.Net.NewContainer(func() error {
		return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	})
	p.programs = c
	return c, err
}

// listens returns nil if something listens on all of the ports.
func (p *Pod) listens(ctx context.Context, ports []uint16) error {
	for _, port := range ports {
		c, err := p.Net.Dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		_ = c.Close()
	}
	return nil
}

// Ended returns the process of a container if it has ended, else nil.
func (p *Pod) Ended(container string) *netmesh.Process {
	p.mu.Lock()
	proc := p.running[container]
	p.mu.Unlock()
	if proc == nil {
		return nil
	}
	select {
	case <-proc.Done():
		return proc
	default:
		return nil
	}
}

// Restart starts the program of a container again, which has ended.
func (p *Pod) Restart(container string) error {
	i := slices.IndexFunc(p.Spec.Programs, func(prog Program) bool { return prog.Container == container })
	if i < 0 {
		return fmt.Errorf("restart container %s of %s: there is none", container, p.Spec.Key())
	}
	return p.startProgram(p.Spec.Programs[i])
}

// Change makes the mesh that of another plan: Pods that are not in it end, new ones and those that run something else
// are started, and all learn the names of its Services. Only one Change may run at a time. Pods that fail to start are
// reported and left out; the others go on.
func (m *Mesh) Change(ctx context.Context, plan *podplan.Plan) (started, ended []string, err error) {
	next := layoutOf(plan, m.o.RunPods)
	m.podsMu.Lock()
	var gone []*Pod
	for key, p := range m.pods {
		i := slices.IndexFunc(next.pods, func(s PodSpec) bool { return s.Key() == key })
		if i < 0 || !next.pods[i].equal(p.Spec) {
			gone = append(gone, p)
			ended = append(ended, key)
			delete(m.pods, key)
		}
	}
	m.spec = next
	m.podsMu.Unlock()
	var errs []error
	var leaving sync.WaitGroup
	for _, p := range gone {
		leaving.Go(func() { p.drain(ctx) })
	}
	leaving.Wait()
	for _, p := range gone {
		errs = append(errs, p.Net.Close())
	}
	for _, p := range m.Pods() {
		errs = append(errs, p.Net.SetHosts(m.hosts(p.Spec)))
	}
	var added []*Pod
	for _, s := range next.pods {
		if m.Pod(s.Key()) != nil {
			continue
		}
		p, err := m.addPod(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m.podsMu.Lock()
		m.pods[s.Key()] = p
		m.podsMu.Unlock()
		added = append(added, p)
	}
	var mu sync.Mutex
	var tasks []run.Task
	done := lastOnce(added)
	for _, p := range added {
		tasks = append(tasks, run.Task{Name: "start Pod " + p.Spec.Key(), Run: func(ctx context.Context) error {
			defer done(p)
			err := p.start(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("start Pod %s: %w", p.Spec.Key(), err))
				return nil
			}
			started = append(started, p.Spec.Key())
			return nil
		}})
	}
	err = run.Group(ctx, tasks...)
	slices.Sort(started)
	slices.Sort(ended)
	return started, ended, errors.Join(append(errs, err)...)
}

// drainBound is how long the proxy of a Pod that ends may drain.
const drainBound = 5 * time.Second

// drain has the Pod's agent drain Envoy and end, within the bound: what is in flight ends with its answer.
func (p *Pod) drain(ctx context.Context) {
	p.mu.Lock()
	agent := p.agent
	p.mu.Unlock()
	if agent == nil || agent.Signal(unix.SIGTERM) != nil {
		return
	}
	bound := time.NewTimer(drainBound)
	defer bound.Stop()
	select {
	case <-agent.Done():
	case <-bound.C:
	case <-ctx.Done():
	}
}

// equal reports whether two Pods run the same.
func (p PodSpec) equal(o PodSpec) bool {
	return fmt.Sprintf("%+v", p) == fmt.Sprintf("%+v", o)
}
