package netmesh

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Command says what to run in a Pod.
type Command struct {
	// Path is the program; without a slash it is searched in this program's PATH.
	Path string
	// Args are the arguments after the program's name.
	Args []string
	// Env is the whole environment, KEY=value.
	Env []string
	// Dir is the working directory. Default: this program's.
	Dir string
	// UID, GID and Groups are what it runs as; all zero: as this program does.
	UID, GID uint32
	Groups   []uint32
	// Stdin is its input. Default: none.
	Stdin io.Reader
	// Stdout and Stderr get its output. Default: it is discarded.
	Stdout, Stderr io.Writer
}

// Process is a program that runs, or ran, in a Pod.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs a program in the Pod, as the leader of a process group of its own. It is killed when
// the Pod is closed or this program dies.
func (p *Pod) Start(c Command) (*Process, error) { return p.start(p.thread, c) }

// start starts a program with the namespaces of a thread of the Pod.
func (p *Pod) start(on *thread, c Command) (*Process, error) {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append([]string{}, c.Env...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, c.Stdin, c.Stdout, c.Stderr
	// A grandchild may hold the output open after the program has ended.
	cmd.WaitDelay = time.Second
	// The kernel sends the signal when the thread ends that forked.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.UID != 0 || c.GID != 0 || len(c.Groups) > 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end.begun {
		return nil, fmt.Errorf("start %s in Pod %s: %w", c.Path, p.name, errGone)
	}
	if err := on.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s in Pod %s: %w", c.Path, p.name, err)
	}
	proc := &Process{cmd: cmd, done: make(chan struct{})}
	p.processes = append(slices.DeleteFunc(p.processes, (*Process).ended), proc)
	log := p.mesh.opts.Log.With("pod", p.name, "program", filepath.Base(c.Path), "pid", proc.PID())
	log.Debug("process started")
	go func() {
		defer close(proc.done)
		if proc.err = cmd.Wait(); errors.Is(proc.err, exec.ErrWaitDelay) {
			proc.err = nil
		}
		log.Debug("process ended", "error", proc.err)
	}()
	return proc, nil
}

// PID is the process's id, the same in every Pod and outside.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end; the error is nil after exit code 0, and an [exec.ExitError] where it
// was another or a signal.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ExitCode is the code that it ended with, or -1 while it runs and after a signal.
func (p *Process) ExitCode() int {
	if !p.ended() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the process, not to its children; [os.ErrProcessDone] says that it
// has ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Close takes the Pod away: kills what runs in it, waits for that, and ends its namespaces. It may
// be called more than once.
func (p *Pod) Close() error {
	if p == p.mesh.host {
		return fmt.Errorf("close Pod %s: it is the mesh's host, which is closed with the mesh", p.name)
	}
	p.mesh.mu.Lock()
	p.mesh.pods = slices.DeleteFunc(p.mesh.pods, func(q *Pod) bool { return p == q })
	p.mesh.mu.Unlock()
	err := p.close()
	// The kernel ends the namespaces in its own time, and until then another Pod with the address would share it with this one.
	unlinked := p.mesh.host.thread.do(func() error {
		link, err := netlink.LinkByName(p.link)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		} else if err != nil {
			return fmt.Errorf("find the link of Pod %s: %w", p.name, err)
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove the link of Pod %s: %w", p.name, err)
		}
		return nil
	})
	if errors.Is(unlinked, errGone) {
		unlinked = nil // with the mesh, and the bridge with it
	}
	return errors.Join(err, unlinked)
}

func (p *Pod) close() error {
	p.mu.Lock()
	first := !p.end.begun
	p.end.begun = true
	containers := p.containers
	p.containers = nil
	p.mu.Unlock()
	if !first {
		<-p.end.done
		return p.end.err
	}
	defer close(p.end.done)
	p.client.CloseIdleConnections()
	left := killAll("net", p.thread.netns)
	if len(left) > 0 {
		p.end.err = fmt.Errorf("close Pod %s: processes %v did not end", p.name, left)
	}
	for _, c := range containers {
		c.thread.close()
	}
	p.thread.close()
	if p.end.err == nil {
		for _, proc := range p.processes {
			<-proc.done
		}
	}
	_ = p.hostsFile.Close()
	p.mesh.opts.Log.Debug("pod closed", "pod", p.name)
	return p.end.err
}

// killAll kills the processes of a namespace, whoever started them, and waits for their end. It returns those that
// are left after ten seconds.
func killAll(kind string, ns uint64) []int {
	var left []int
	// A process may fork while the list is read, so one pass is not enough.
	await(10*time.Second, func() bool {
		left = inNamespace(kind, ns)
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
	return left
}

// inNamespace lists the processes of a namespace; kind is its name in /proc/PID/ns. A process that
// is only waited for has no namespace any more.
func inNamespace(kind string, ns uint64) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		var st unix.Stat_t
		if err != nil || pid == os.Getpid() || unix.Stat(dir+"/ns/"+kind, &st) != nil {
			continue
		}
		if st.Ino == ns {
			pids = append(pids, pid)
		}
	}
	return pids
}
