// Package meshup runs a whole mesh on this machine from a directory of YAML.
//
// The directory is what pilot-discovery watches; its Pods become namespaces (internal/lab/netmesh),
// each with its capture rules, its pilot-agent and Envoy as uid and gid 1337, and the
// sample app; a Pod without the tlsMode label has the app only. Everything that the mesh
// writes is below Options.WorkDir. [Start] returns when every Pod is ready; [Mesh.Close]
// leaves no process and no namespace. A Mesh's methods may be called from several
// goroutines; those that start and end processes wait for each other.
package meshup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/run"
)

// Domain is the DNS domain of the meshes made here.
const Domain = "cluster.local"

// discoveryHost is the host name of pilot-discovery for agents.
const discoveryHost = "istiod.istio-system.svc"

// IssueToken makes a bearer token for a service account with the key that
// pilot-discovery keeps in stateDir.
type IssueToken func(stateDir, namespace, serviceAccount string) (string, error)

// Options say which mesh to start.
type Options struct {
	Programs Programs
	// ConfigDir holds the YAML; pilot-discovery watches it.
	ConfigDir string
	// ConfigAt is the path at which pilot-discovery sees ConfigDir, for its messages: an existing directory, over which it is mounted for
	// pilot-discovery alone. Empty: ConfigDir itself.
	ConfigAt string
	// Plan has the Pods. If it is nil they are those of ConfigDir, which has them as a cluster reports them.
	Plan *podplan.Plan
	// RunPods decides what the Pods of Plan run.
	RunPods func(podplan.Pod) []Program
	// Subnet has the addresses of the Pods; the zero value stands for netmesh's.
	Subnet netip.Prefix
	// WorkDir is an existing directory for state, logs and the Pods' directories. The caller removes it.
	WorkDir string
	// Token makes the Pods' tokens.
	Token IssueToken
	// ProxyConfig is YAML appended to every agent's PROXY_CONFIG.
	ProxyConfig string
	// AgentEnv is appended to every agent's environment, KEY=value.
	AgentEnv []string
	// PodEnv is appended to the environment of the agents of single Pods, by the key name.namespace.
	PodEnv map[string][]string
	// TPROXY are the Pods, by the same key, whose inbound connections are captured by TPROXY.
	TPROXY map[string]bool
	// CaptureArgs are appended to the flags of every Pod's istio-iptables.
	CaptureArgs []string
	// DiscoveryArgs are appended to pilot-discovery's flags.
	DiscoveryArgs []string
	// DiscoveryEnv is appended to pilot-discovery's environment, KEY=value.
	DiscoveryEnv []string
	// Prometheus is the server, in this machine's network or a Service of the mesh, that pilot-discovery asks for the rates of the page; nil for none.
	Prometheus *url.URL
	// Log gets what is started; nil: no log.
	Log *slog.Logger
}

// Mesh is a running mesh.
type Mesh struct {
	// Net is the network: bridge and namespaces.
	Net *netmesh.Mesh
	o   Options

	// podsMu guards spec and pods, which Change replaces.
	podsMu sync.Mutex
	spec   layout
	pods   map[string]*Pod

	// mu guards discovery, which StartDiscovery replaces.
	mu        sync.Mutex
	discovery *netmesh.Process

	// prometheus is the server of this machine's network that is forwarded, host:port; empty without one.
	prometheus string
	// stop ends forwards.
	stop     context.CancelFunc
	forwards sync.WaitGroup
}

// Start starts the mesh and returns once every Pod is ready. An error contains the end of the log of what
// was not ready; then nothing is left running.
func Start(ctx context.Context, o Options) (*Mesh, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var spec layout
	var err error
	if o.Plan != nil {
		spec = layoutOf(o.Plan, o.RunPods)
	} else if spec, err = readLayout(o.ConfigDir); err != nil {
		return nil, err
	}
	// The user of the proxies needs access to its directories below.
	if err := os.Chmod(o.WorkDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the work directory accessible to the proxies: %w", err)
	}
	if o.Programs, err = o.Programs.placed(filepath.Join(o.WorkDir, "bin")); err != nil {
		return nil, err
	}
	net, err := netmesh.New(netmesh.Options{Log: o.Log, Subnet: o.Subnet})
	if err != nil {
		return nil, err
	}
	m := &Mesh{Net: net, o: o, spec: spec, pods: map[string]*Pod{}}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Mesh) start(ctx context.Context) error {
	if at := m.o.Prometheus; at != nil {
		forwarding, stop := context.WithCancel(context.WithoutCancel(ctx))
		m.stop = stop
		if err := m.reach(forwarding, at); err != nil {
			return err
		}
		m.o.DiscoveryArgs = append(slices.Clone(m.o.DiscoveryArgs), "--prometheusURL", at.String())
	}
	if err := m.StartDiscovery(ctx); err != nil {
		return err
	}
	var pods []*Pod
	for _, s := range m.spec.pods {
		p, err := m.addPod(s)
		if err != nil {
			return err
		}
		m.pods[s.Key()] = p
		pods = append(pods, p)
	}
	var tasks []run.Task
	done := lastOnce(pods)
	for _, p := range pods {
		tasks = append(tasks, run.Task{Name: "start Pod " + p.Spec.Key(), Run: func(ctx context.Context) error {
			defer done(p)
			return p.start(ctx)
		}})
	}
	return errors.Join(run.Group(ctx, tasks...), ctx.Err())
}

// Close ends everything. It may be called more than once.
func (m *Mesh) Close() error {
	if m.stop != nil {
		m.stop()
		m.forwards.Wait()
	}
	return m.Net.Close()
}

// Pod is the Pod with the key name.namespace, or nil.
func (m *Mesh) Pod(key string) *Pod {
	m.podsMu.Lock()
	defer m.podsMu.Unlock()
	return m.pods[key]
}

// Pods are all Pods, in the order of the directory.
func (m *Mesh) Pods() []*Pod {
	m.podsMu.Lock()
	defer m.podsMu.Unlock()
	var all []*Pod
	for _, s := range m.spec.pods {
		if p := m.pods[s.Key()]; p != nil {
			all = append(all, p)
		}
	}
	return all
}

// StateDir is the state directory of pilot-discovery.
func (m *Mesh) StateDir() string { return filepath.Join(m.o.WorkDir, "state") }

// Programs are the programs of the mesh, where the user of the proxies can reach them.
func (m *Mesh) Programs() Programs { return m.o.Programs }

// DiscoveryURL is the URL of the debug port of pilot-discovery, which listens on the loopback of [netmesh.Mesh.Host].
func (m *Mesh) DiscoveryURL() string { return "http://127.0.0.1:8080" }

// host is the address of the mesh's host for a Pod, of the Pod's family.
func (m *Mesh) host(s PodSpec) netip.Addr {
	if s.IP.Is6() {
		return m.Net.Host().IP6()
	}
	return m.Net.Host().IP()
}

// StartDiscovery starts pilot-discovery in the mesh's host, with more flags than those of the options if there are
// some, and waits until it is ready.
func (m *Mesh) StartDiscovery(ctx context.Context, flags ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	log, err := m.logFile("pilot-discovery")
	if err != nil {
		return err
	}
	start, configDir, err := m.discoveryHost()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	args := slices.Concat([]string{
		"discovery", "--configDir", configDir, "--stateDir", m.StateDir(), "--domain", Domain,
		"--httpAddr", ":8080", "--secureGRPCAddr", ":15012", "--monitoringAddr", ":15014",
	}, m.o.DiscoveryArgs, flags)
	p, err := start(netmesh.Command{
		Path: m.o.Programs.Discovery, Args: args, Dir: m.o.WorkDir, Env: append([]string{"PATH=/usr/bin:/bin"}, m.o.DiscoveryEnv...),
		Stdout: log, Stderr: log,
	})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	m.discovery = p
	err = Await(ctx, 30*time.Second, "pilot-discovery is ready", func(ctx context.Context) error {
		if err := alive(p, "pilot-discovery"); err != nil {
			return err
		}
		_, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/ready")
		return err
	})
	return withLog(err, log)
}

// discoveryHost returns what starts pilot-discovery, and the path of its configuration there.
func (m *Mesh) discoveryHost() (start func(netmesh.Command) (*netmesh.Process, error), configDir string, err error) {
	if m.o.ConfigAt == "" {
		return m.Net.Host().Start, m.o.ConfigDir, nil
	}
	c, err := m.Net.Host().NewContainer(func() error {
		return os.NewSyscallError("mount", unix.Mount(m.o.ConfigDir, m.o.ConfigAt, "", unix.MS_BIND, ""))
	})
	if err != nil {
		return nil, "", err
	}
	return c.Start, m.o.ConfigAt, nil
}

// DiscoveryPID returns the process id of pilot-discovery.
func (m *Mesh) DiscoveryPID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.discovery.PID()
}

// KillDiscovery ends pilot-discovery with SIGKILL and waits for its end.
func (m *Mesh) KillDiscovery() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return kill(m.discovery)
}

func kill(p *netmesh.Process) error {
	if err := p.Signal(os.Kill); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.PID(), err)
	}
	<-p.Done()
	return nil
}

// alive returns a final error if a process has ended.
func alive(p *netmesh.Process, name string) error {
	select {
	case <-p.Done():
		return Final(fmt.Errorf("%s has ended with code %d", name, p.ExitCode()))
	default:
		return nil
	}
}

// Get requests a page from a namespace of the mesh, over a new connection. A status other than 200 is an
// error with the beginning of the body.
func (m *Mesh) Get(ctx context.Context, from *netmesh.Pod, url string) ([]byte, error) {
	return Get(ctx, from, url)
}

// Get requests a page over a new connection. A status other than 200 is an error with the beginning of the body.
func Get(ctx context.Context, from Dialer, url string) ([]byte, error) {
	return request(ctx, from, http.MethodGet, url)
}

func request(ctx context.Context, from Dialer, method, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	c := &http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.300s", method, url, res.Status, text)
	}
	return text, err
}

// logFile opens the log of one program for appending.
func (m *Mesh) logFile(name string) (*os.File, error) {
	dir := filepath.Join(m.o.WorkDir, "log")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the log folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a log: %w", err)
	}
	return f, nil
}
