package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// attempt is one start of a container.
type attempt struct {
	sandbox   *sandbox
	spec      *corev1.Container
	number    int32
	id        string
	container *netmesh.Container
	process   *netmesh.Process
	log       *containerLog
	// command is how programs are started in the container, with neither Path nor Args.
	command netmesh.Command
	// message is the file of the termination message.
	message string

	// ctx ends with the process; probes and hooks use it.
	ctx    context.Context
	cancel context.CancelFunc

	mu sync.Mutex
	// deadline is when the container is killed; zero before it is stopped.
	deadline time.Time
	sooner   chan struct{} // closed and replaced when deadline changes
	reason   string        // of the end, if the node caused it
}

// startError is why a container could not be started, as its status says it.
type startError struct {
	reason string
	err    error
}

// Error implements error.
func (e startError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e startError) Unwrap() error { return e.err }

// startContainer starts a container.
func (s *sandbox) startContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, number int32) (*attempt, error) {
	image, err := findImage(s.node.o.Images, spec.Image)
	if err != nil {
		return nil, startError{"ImagePullBackOff", err}
	}
	services := podstate.ServiceEnvironment(pod, s.net.tables().Services)
	env, err := podstate.Environment(pod, spec, s.host, s.objects(ctx, pod.Namespace), services)
	if err != nil {
		return nil, startError{"CreateContainerConfigError", err}
	}
	line, err := image.commandLine(spec)
	if err != nil {
		return nil, startError{"RunContainerError", err}
	}
	priv, err := privilegesOf(pod, spec, image)
	if err != nil {
		return nil, startError{"CreateContainerConfigError", err}
	}
	a := &attempt{sandbox: s, spec: spec, number: number, id: "process://" + randomID(), sooner: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.command = netmesh.Command{UID: priv.uid, GID: priv.gid, Groups: priv.groups, Dir: firstOf(spec.WorkingDir, image.Dir, "/")}
	a.command.Env = mergeEnv([]string{"PATH=" + defaultPath, "HOSTNAME=" + hostname(pod), "HOME=" + homeOf(priv.uid)}, image.Env, env)
	for i := range line {
		line[i] = podstate.Expand(line[i], lookupIn(env))
	}
	if err := a.start(pod, image, priv, line, lookupIn(env)); err != nil {
		a.cancel()
		return nil, startError{"RunContainerError", err}
	}
	return a, nil
}

func (a *attempt) start(pod *corev1.Pod, image Image, priv privileges, line []string, variable func(string) (string, bool)) error {
	s := a.sandbox
	dir := filepath.Join(s.dir, "containers", a.spec.Name, fmt.Sprint(a.number))
	root := filepath.Join(dir, "root")
	a.message = filepath.Join(dir, "termination-log")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(a.message, nil, 0o666), os.Chmod(a.message, 0o666)); err != nil {
		return err
	}
	mounts, err := s.mountsOf(pod, a.spec, variable)
	if err != nil {
		return err
	}
	r := rootfs{at: root, files: image.Files, mounts: append(mounts, mount{from: a.message, to: firstOf(a.spec.TerminationMessagePath, corev1.TerminationMessagePathDefault)}), readOnly: priv.readOnly}
	a.container, err = s.pod.NewContainer(func() error {
		if err := r.enter(); err != nil {
			return err
		}
		if err := os.MkdirAll(a.command.Dir, 0o755); err != nil && !errors.Is(err, unix.EROFS) {
			return err
		}
		return priv.apply()
	})
	if err != nil {
		return err
	}
	if a.log, err = newContainerLog(filepath.Join(s.logDir(a.spec.Name), fmt.Sprintf("%d.log", a.number))); err != nil {
		return errors.Join(err, a.container.Close())
	}
	a.process, err = a.launch(line, nil, a.log.stream("stdout"), a.log.stream("stderr"))
	if err != nil {
		a.log.close()
		return errors.Join(err, a.container.Close())
	}
	return nil
}

// logDir is the directory of a container's logs.
func (s *sandbox) logDir(container string) string {
	dir := filepath.Join(s.dir, "logs", container)
	// What is wrong with it is seen when the log is made.
	_ = os.MkdirAll(dir, 0o755)
	return dir
}

// mountsOf are the mounts of a container; variable finds those of its environment.
func (s *sandbox) mountsOf(pod *corev1.Pod, spec *corev1.Container, variable func(string) (string, bool)) ([]mount, error) {
	var out []mount
	for _, name := range []string{"hosts", "resolv.conf", "hostname"} {
		out = append(out, mount{from: filepath.Join(s.dir, "etc", name), to: "/etc/" + name})
	}
	for _, m := range spec.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			return nil, fmt.Errorf("volumeMount %s: the Pod has no volume %q", m.MountPath, m.Name)
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = podstate.Expand(m.SubPathExpr, variable)
		}
		from := filepath.Join(s.volume(m.Name), filepath.Join("/", sub))
		if sub != "" {
			if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
				if err := makeEmptyDir(from, ownerOf(pod)); err != nil {
					return nil, err
				}
			}
		}
		out = append(out, mount{from: from, to: m.MountPath, readOnly: m.ReadOnly || podstate.HasPayload(&pod.Spec.Volumes[i])})
	}
	return out, nil
}

// launch starts a program in the container.
func (a *attempt) launch(line []string, in io.Reader, out, errs io.Writer) (*netmesh.Process, error) {
	cmd := a.command
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Args = in, out, errs, line[1:]
	err := a.container.Do(func() (err error) {
		cmd.Path, err = lookPath(line[0], cmd.Dir, cmd.Env)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a.container.Start(cmd)
}

// run runs a program in the container, as exec does, and returns its exit code. It is killed when ctx or the container
// ends.
func (a *attempt) run(ctx context.Context, line []string, in io.Reader, out, errs io.Writer) (int, error) {
	if len(line) == 0 {
		return 0, errors.New("exec: want a command")
	}
	p, err := a.launch(line, in, out, errs)
	if err != nil {
		return 0, err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		_ = p.Signal(syscall.SIGKILL)
		<-p.Done()
		return 0, fmt.Errorf("exec %q: %w", line, context.Cause(ctx))
	}
	code, signal := exitOf(p)
	if signal != 0 {
		code = 128 + signal
	}
	return int(code), nil
}

// exitOf is how a process ended.
func exitOf(p *netmesh.Process) (code, signal int32) {
	var exit *exec.ExitError
	if errors.As(p.Wait(), &exit) {
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			return 128 + int32(st.Signal()), int32(st.Signal())
		}
		return int32(exit.ExitCode()), 0
	}
	return 0, 0
}

// stop ends the container: the preStop hook, SIGTERM, and SIGKILL after the grace. Called again, it brings the end
// forward. It returns at once.
func (a *attempt) stop(grace time.Duration, reason string) {
	deadline := time.Now().Add(grace)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reason == "" {
		a.reason = reason
	}
	first := a.deadline.IsZero()
	if !first && !deadline.Before(a.deadline) {
		return
	}
	a.deadline = deadline
	close(a.sooner)
	a.sooner = make(chan struct{})
	if first {
		a.sandbox.node.group.Go(a.terminate)
	}
}

// left returns a channel for the end of the grace, and one that says that the grace has changed.
func (a *attempt) left() (*time.Timer, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.NewTimer(time.Until(a.deadline)), a.sooner
}

func (a *attempt) terminate() {
	hook := make(chan struct{})
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	go func() {
		defer close(hook)
		if l := a.spec.Lifecycle; l != nil && l.PreStop != nil {
			if err := (prober{a, a.spec}).handle(ctx, *l.PreStop); err != nil {
				a.sandbox.node.o.Log.Debug("preStop", "container", a.spec.Name, "error", err)
			}
		}
		// It may have ended meanwhile.
		_ = a.process.Signal(syscall.SIGTERM)
	}()
	for over := false; !over; {
		timer, sooner := a.left()
		select {
		case <-a.process.Done():
			over = true
		case <-timer.C:
			over = true
			_ = a.process.Signal(syscall.SIGKILL)
		case <-sooner:
		}
		timer.Stop()
	}
	cancel()
	<-hook
}

// wait waits for the end of the process and ends what it left. It returns what the status says.
func (a *attempt) wait() (code, signal int32, reason, message string) {
	<-a.process.Done()
	a.cancel()
	if err := a.container.Close(); err != nil {
		a.sandbox.node.o.Log.Debug("close a container", "container", a.spec.Name, "error", err)
	}
	a.log.close()
	code, signal = exitOf(a.process)
	a.mu.Lock()
	reason = a.reason
	a.mu.Unlock()
	text, _ := os.ReadFile(a.message)
	message = string(text[:min(len(text), 4096)])
	if message == "" && code != 0 && a.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		message = a.log.tail(80, 2048)
	}
	return code, signal, reason, message
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func homeOf(uid uint32) string {
	if uid == 0 {
		return "/root"
	}
	return "/"
}

func hostname(pod *corev1.Pod) string { return firstOf(pod.Spec.Hostname, pod.Name) }

// mergeEnv joins environments; the later value of a name counts.
func mergeEnv(lists ...[]string) []string {
	values := map[string]string{}
	for _, list := range lists {
		for _, v := range list {
			name, value, _ := strings.Cut(v, "=")
			values[name] = value
		}
	}
	out := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, name+"="+values[name])
	}
	return out
}

func lookupIn(env []string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// setHostname sets the host name of the calling thread's namespace.
func setHostname(name string) error { return unix.Sethostname(bytes.TrimSpace([]byte(name))) }
