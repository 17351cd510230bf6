// Package up runs the workloads of a directory of Kubernetes YAML as a mesh on this machine.
//
// [Run] makes Pods of the workloads (internal/lab/podplan), each a set of namespaces with capture rules, an agent and Envoy
// (internal/lab/meshup), and runs in them programs of this machine that a person has confirmed, never as root, or
// stand-ins that answer on the declared ports. Edits of the directory take effect while it runs. It prints
// what the programs print, and returns when its context has ended; then no process, namespace or file is left. What a
// client needs to find a Pod is in a file that [Running] reads while its mesh runs.
package up

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// User is whom the programs run as.
type User struct {
	UID, GID uint32
	// Name, Home and Path are for their environment.
	Name, Home, Path string
}

// Options say what to run.
type Options struct {
	// Dir has the YAML. It is only read.
	Dir      string
	Programs meshup.Programs
	// Token makes the Pods' tokens.
	Token meshup.IssueToken
	// Exec has the commands that workloads run instead of theirs, by WORKLOAD or WORKLOAD/CONTAINER.
	Exec map[string][]string
	User User
	// Yes runs programs of this machine without asking.
	Yes bool
	// Confirm asks a person; nil if there is none.
	Confirm func(question string) (bool, error)
	// Publish are the ports of Pods that are opened on this machine's loopback, beside those of gateways.
	Publish []Publish
	// Prometheus is the server that is asked for the rates on the page; nil for none.
	Prometheus *url.URL
	// Self is how this program was called, and AsRoot how it is as root: what comes before a command that can be pasted.
	Self, AsRoot string
	// RunDir is where running meshes are recorded.
	RunDir string
	// ProxyLogs prints the logs of agents and Envoys, too.
	ProxyLogs bool
	Out       io.Writer
	// Ready, if set, is called once every Pod is ready.
	Ready func()
}

// Publish is a port of a Pod that is opened on this machine's loopback.
type Publish struct {
	// Local is the port on this machine, 0 for a free one.
	Local uint16
	// Pod is the name, or name.namespace, of a Pod or of its workload.
	Pod  string
	Port uint16
}

// Errors that a caller tells apart.
var (
	// ErrNotConfirmed is returned if programs of this machine were not confirmed.
	ErrNotConfirmed = errors.New("not confirmed")
)

// session is one run.
type session struct {
	o       Options
	out     *printer
	plan    *podplan.Plan
	chooser chooser
	// confirmed are the programs, by line, that may run.
	confirmed map[string]bool
	config    string
	work      string
	mesh      *meshup.Mesh
	record    *record
	// restarts has when containers are started again, by Pod and container.
	restarts map[string]*restart
	// told are the places, FILE:LINE, of documents that were told not to parse before pilot-discovery told so, too.
	told     map[string]bool
	opened   map[string]bool
	forwards sync.WaitGroup
	// ended is called with the name of the log of a program that has ended.
	ended func(log string)
}

// Run runs the directory until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	s := &session{
		o: o, out: &printer{w: o.Out}, confirmed: map[string]bool{}, restarts: map[string]*restart{}, told: map[string]bool{}, opened: map[string]bool{},
		chooser: chooser{exec: o.Exec, user: o.User.Name, find: finder(o)},
	}
	files, err := readFiles(o.Dir)
	if err != nil {
		return err
	}
	if s.plan, err = podplan.Make(files, podplan.Options{}); err != nil {
		return err
	}
	if err := s.admit(); err != nil {
		return err
	}
	work, left, remove, err := meshup.MakeFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	for _, line := range left {
		s.out.line("%s", line)
	}
	s.work, s.config = work, filepath.Join(work, "config")
	if err := s.writeConfig(nil); err != nil {
		return err
	}
	began := time.Now()
	s.out.line("starting pilot-discovery and %s", count(len(s.plan.Pods), "Pod"))
	s.mesh, err = meshup.Start(ctx, meshup.Options{
		Programs: o.Programs, ConfigDir: s.config, ConfigAt: o.Dir, WorkDir: work, Token: o.Token, Plan: s.plan, RunPods: s.programs, Subnet: podplan.DefaultPods,
		Prometheus: o.Prometheus, ProxyConfig: "terminationDrainDuration: 1s", AgentEnv: []string{"ISTIO_META_DNS_CAPTURE=true"}, CaptureArgs: []string{"--redirect-dns"},
	})
	if err != nil {
		return errors.Join(err, interrupted(ctx))
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		s.forwards.Wait()
		s.out.line("stopping")
		err = errors.Join(err, s.mesh.Close())
	}()
	if s.record, err = newRecord(o.RunDir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.record.remove()) }()
	if err := s.open(ctx); err != nil {
		return err
	}
	s.out.line("every Pod is ready after %s", time.Since(began).Round(time.Millisecond))
	if err := s.mesh.PrometheusError(ctx); err != nil {
		s.out.line("note: the server of --prometheusURL does not answer: %s: the page at /ui has no rates until it does", printable.Escape(err.Error()))
	}
	s.hints()
	if o.Ready != nil {
		o.Ready()
	}
	return s.follow(ctx)
}

func interrupted(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	return nil
}

// finder finds programs in PATH that the user may run, relative ones below the directory.
func finder(o Options) func(string) (string, error) {
	return func(name string) (string, error) {
		paths := []string{name}
		switch {
		case !strings.Contains(name, "/"):
			paths = nil
			for _, dir := range filepath.SplitList(o.User.Path) {
				paths = append(paths, filepath.Join(dir, name))
			}
		case !filepath.IsAbs(name):
			paths = []string{filepath.Join(o.Dir, name)}
		}
		for _, path := range paths {
			if path, err := exec.LookPath(path); err == nil && filepath.IsAbs(path) && mayRun(path, o.User) {
				return path, nil
			}
		}
		return "", exec.ErrNotFound
	}
}

// mayRun reports whether a user may execute a file, or enter a directory, by the modes of it and of the directories above it.
func mayRun(path string, u User) bool {
	path, err := filepath.EvalSymlinks(path)
	for err == nil {
		info, statErr := os.Stat(path)
		if statErr != nil {
			return false
		}
		owner, bits := info.Sys().(*syscall.Stat_t), info.Mode().Perm()
		switch {
		case owner.Uid == u.UID:
			bits >>= 6
		case owner.Gid == u.GID:
			bits >>= 3
		}
		if bits&1 == 0 {
			return false
		}
		if path == "/" {
			return true
		}
		path = filepath.Dir(path)
	}
	return false
}

// admit prints the plan and asks whether its programs may run.
func (s *session) admit() error {
	if len(s.plan.Pods) == 0 {
		for _, n := range s.plan.Notes {
			s.note(n)
		}
		return fmt.Errorf("run %s: no workloads: want Pods, Deployments, StatefulSets, DaemonSets or Jobs", s.o.Dir)
	}
	if unknown := s.chooser.unknown(s.plan); len(unknown) > 0 {
		return fmt.Errorf("--exec %s: no workload of %s has this name", strings.Join(unknown, ", "), s.o.Dir)
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "POD\tPROXY\tRUNS")
	var programs []string
	for _, p := range s.plan.Pods {
		runs := s.describe(p, &programs)
		_, _ = fmt.Fprintf(w, "%s/%s\t%s\t%s\n", p.Namespace, p.Name, proxyOf(p), runs[0])
		for _, more := range runs[1:] {
			_, _ = fmt.Fprintf(w, "\t\t%s\n", more)
		}
	}
	_ = w.Flush() // to a builder
	s.out.text(table.String())
	for _, n := range s.plan.Notes {
		s.note(n)
		if n.Problem && n.Object == "" {
			n = n.In(s.o.Dir)
			s.told[object.Origin{File: n.File, Line: n.Line}.String()] = true
		}
	}
	programs = slices.Compact(programs)
	if len(programs) == 0 {
		return nil
	}
	if !s.o.Yes {
		if s.o.Confirm == nil {
			return fmt.Errorf("%w: %s of this machine would run: give --yes to run %s without a question", ErrNotConfirmed, count(len(programs), "program"), them(len(programs)))
		}
		ok, err := s.o.Confirm(fmt.Sprintf("Run %s of this machine as %s? [y/N] ", count(len(programs), "program"), s.o.User.Name))
		if err != nil {
			return err
		}
		if !ok {
			return ErrNotConfirmed
		}
	}
	for _, line := range programs {
		s.confirmed[line] = true
	}
	return nil
}

// note prints a note, with the path of its file; it is an error that something cannot be read, and so is not run.
func (s *session) note(n podplan.Note) {
	what := "note"
	if n.Problem {
		what = "error"
	}
	s.out.line("%s: %s", what, printable.Escape(n.In(s.o.Dir).String()))
}

func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// describe says what the containers of a Pod run, and appends its programs.
func (s *session) describe(p podplan.Pod, programs *[]string) []string {
	if p.Router {
		return []string{"gateway"}
	}
	var out []string
	for _, c := range p.Containers {
		ch := s.chooser.choose(p, c)
		if ch.path == "" {
			out = append(out, fmt.Sprintf("stand-in (%s)", ch.why))
			continue
		}
		out = append(out, ch.line())
		if !slices.Contains(*programs, ch.line()) {
			*programs = append(*programs, ch.line())
		}
	}
	if len(out) == 0 {
		out = []string{"nothing"}
	}
	return out
}

func proxyOf(p podplan.Pod) string {
	switch {
	case p.Router:
		return "router"
	case p.Sidecar:
		return "sidecar"
	}
	return "none"
}

// programs are what a Pod runs. A program that was not confirmed is not run.
func (s *session) programs(p podplan.Pod) []meshup.Program {
	out := []meshup.Program{}
	dir := s.o.Dir
	if !mayRun(dir, s.o.User) {
		dir = ""
	}
	for _, c := range p.Containers {
		ch := s.chooser.choose(p, c)
		if ch.path != "" && !s.o.Yes && !s.confirmed[ch.line()] {
			s.out.line("%s: %q is not run, since it was not confirmed: start pilotctl up again, or give --yes", p.Key(), ch.line())
			continue
		}
		out = append(out, ch.program(p, s.o.User, filepath.Join(s.work, "bin", "app"), dir))
	}
	return out
}

// writeConfig writes what pilot-discovery reads. Pods in notReady get no requests.
func (s *session) writeConfig(notReady map[string]bool) error {
	keep := map[string]bool{}
	for _, f := range s.plan.Files(notReady) {
		path := filepath.Join(s.config, filepath.FromSlash(f.Name))
		keep[path] = true
		if old, err := os.ReadFile(path); err == nil && string(old) == string(f.Text) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
		if err := os.WriteFile(path+".new", f.Text, 0o600); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
	}
	return filepath.WalkDir(s.config, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !keep[path] {
			err = os.Remove(path)
		}
		return err
	})
}

// open opens the ports of this machine's loopback, and records the Pods.
func (s *session) open(ctx context.Context) error {
	if s.record.Discovery == "" {
		l, err := net.Listen("tcp", "127.0.0.1:8080")
		if err != nil {
			l, err = net.Listen("tcp", "127.0.0.1:0")
		}
		if err != nil {
			return fmt.Errorf("open pilot-discovery's debug port: %w", err)
		}
		s.record.Discovery = l.Addr().String()
		s.forwards.Go(func() { meshup.Forward(ctx, l, s.mesh.Net.Host(), "127.0.0.1:8080") })
	}
	for _, p := range s.o.Publish {
		if err := s.publish(ctx, p, "http"); err != nil {
			return err
		}
	}
	for _, p := range s.mesh.Pods() {
		if !p.Spec.Router() {
			continue
		}
		for _, svc := range s.plan.Services {
			if !svc.Selects(podplan.Pod{Namespace: p.Spec.Namespace, Labels: p.Spec.Labels}) {
				continue
			}
			for _, port := range svc.Ports {
				scheme := s.plan.Scheme(podplan.Pod{Namespace: p.Spec.Namespace, Labels: p.Spec.Labels}, target(port))
				if err := s.publish(ctx, Publish{Pod: p.Spec.Key(), Port: target(port)}, scheme); err != nil {
					return err
				}
			}
		}
	}
	return s.record.write(s)
}

// target is the number of a Service's target port.
func target(p podplan.ServicePort) uint16 {
	var n uint16
	if _, err := fmt.Sscan(p.Target, &n); err != nil {
		return p.Number
	}
	return n
}

// publish opens one port, once; scheme is that of its URLs.
func (s *session) publish(ctx context.Context, p Publish, scheme string) error {
	key := fmt.Sprintf("%s:%d", p.Pod, p.Port)
	if s.opened[key] {
		return nil
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Local))
	if err != nil {
		return fmt.Errorf("publish port %d of %s: %w; another one is given by --publish PORT:%s:%d", p.Port, p.Pod, err, p.Pod, p.Port)
	}
	s.opened[key] = true
	s.record.Published = append(s.record.Published, Published{Address: l.Addr().String(), Pod: p.Pod, Port: p.Port, Scheme: scheme})
	s.forwards.Go(func() { meshup.Forward(ctx, l, podDialer{s, p.Pod}, fmt.Sprintf(":%d", p.Port)) })
	return nil
}

// podDialer connects to the Pod that has a name now, from the mesh's host: a Pod may be started again.
type podDialer struct {
	s    *session
	name string
}

// Dial implements meshup.Dialer; addr is ":port".
func (d podDialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	for _, p := range d.s.mesh.Pods() {
		if p.Spec.Key() == d.name || p.Spec.Name == d.name || p.Spec.Workload == d.name || p.Spec.Workload+"."+p.Spec.Namespace == d.name {
			return d.s.mesh.Net.Host().Dial(ctx, network, p.Spec.IP.String()+addr)
		}
	}
	return nil, fmt.Errorf("dial %s: there is no Pod of this name", d.name)
}

// hints prints how to look into the mesh.
func (s *session) hints() {
	discovery := ""
	if s.record.Discovery != "127.0.0.1:8080" {
		discovery = " --discovery http://" + s.record.Discovery
	}
	s.out.line("\nTry")
	s.out.line("  %s%s proxies", s.o.Self, discovery)
	if name, command := s.example(); name != "" {
		s.out.line("  %s exec %s -- %s", s.o.AsRoot, name, command)
		s.out.line("  %s logs %s -c proxy", s.o.AsRoot, name)
	}
	s.out.line("  http://%s/ui        services, proxies, changes and problems", s.record.Discovery)
	for _, p := range s.record.Published {
		s.out.line("  %s        port %d of %s", p.URL(), p.Port, p.Pod)
	}
	s.out.line("Edits of %s take effect. Ctrl-C ends everything.\n", s.o.Dir)
}

// example is a Pod with a sidecar, one that no Service selects if there is one, and a command for it: a request to a Service, of another
// Pod if there is one.
func (s *session) example() (pod, command string) {
	client := false
	for _, p := range s.plan.Pods {
		served := slices.ContainsFunc(s.plan.Services, func(svc podplan.Service) bool { return svc.Selects(p) })
		if p.Sidecar && (pod == "" || !client && !served) {
			pod, client = p.Key(), !served
		}
	}
	command = "COMMAND"
	own := true
	for _, svc := range s.plan.Services {
		for _, p := range s.plan.Pods {
			if own && p.Sidecar && svc.Selects(p) && svc.ClusterIP.IsValid() && len(svc.Ports) > 0 && svc.Ports[0].HTTP() && (command == "COMMAND" || p.Key() != pod) {
				command = fmt.Sprintf("curl -s http://%s.%s:%d/", printable.Escape(svc.Name), printable.Escape(svc.Namespace), svc.Ports[0].Number)
				own = p.Key() == pod
			}
		}
	}
	return pod, command
}

// printer prints whole lines; it may be used by several goroutines.
type printer struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *printer) line(format string, args ...any) { p.text(fmt.Sprintf(format, args...) + "\n") }

func (p *printer) text(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A closed output ends nothing: the mesh is the purpose.
	_, _ = io.WriteString(p.w, text)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Ask returns a function for Options.Confirm that reads the answer from a terminal.
func Ask(in io.Reader, out io.Writer) func(string) (bool, error) {
	return func(question string) (bool, error) {
		if _, err := io.WriteString(out, question); err != nil {
			return false, err
		}
		text, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		answer := strings.ToLower(strings.TrimSpace(text))
		return answer == "y" || answer == "yes", nil
	}
}
