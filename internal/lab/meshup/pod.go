package meshup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// appUID is the user of apps; it must differ from the proxy's.
const appUID = 2000

// Pod is one running Pod of the mesh.
type Pod struct {
	Inspector
	// Spec is its specification in the directory.
	Spec PodSpec
	// Net are its namespaces.
	Net *netmesh.Pod
	// Dir is its directory, the working directory of the agent.
	Dir  string
	mesh *Mesh
	// others is closed when the Pods that start with it have started, if its programs wait for that; nil otherwise.
	others <-chan struct{}

	// mu guards agent, which RestartAgent replaces, running and programs.
	mu       sync.Mutex
	agent    *netmesh.Process
	running  map[string]*netmesh.Process
	programs *netmesh.Container
}

// addPod makes the namespaces and the folder.
func (m *Mesh) addPod(s PodSpec) (*Pod, error) {
	hosts := m.hosts(s)
	o := netmesh.PodOptions{Name: s.Name, IP: s.IP, Hosts: hosts}
	if s.IP.Is6() {
		o.IP, o.IP6, o.OnlyIP6 = netip.Addr{}, s.IP, true
	}
	if slices.ContainsFunc(m.Net.Pods(), func(p *netmesh.Pod) bool { return p.Name() == s.Name }) {
		o.Name = s.Key() // another namespace has one of this name
	}
	n, err := m.Net.AddPod(o)
	if err != nil {
		return nil, err
	}
	p := &Pod{Spec: s, Net: n, Dir: filepath.Join(m.o.WorkDir, "pod", s.Key()), mesh: m}
	p.Inspector = Inspector{Name: s.Key(), From: n, OnlyIPv6: s.IP.Is6(), AgentPID: p.agentPID}
	if ports := s.ports("-http"); len(ports) > 0 {
		p.AppPort = ports[0]
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the Pod's directory: %w", err)
	}
	return p, os.Chown(p.Dir, mesh.ProxyUID, mesh.ProxyUID)
}

// hosts are the names in the /etc/hosts of a Pod.
func (m *Mesh) hosts(s PodSpec) map[string]netip.Addr {
	m.podsMu.Lock()
	defer m.podsMu.Unlock()
	hosts := m.spec.hosts(s)
	hosts[discoveryHost] = m.host(s)
	return hosts
}

// start starts the Pod as a node does: the init container, the proxy, the app.
func (p *Pod) start(ctx context.Context) error {
	if p.Spec.Sidecar() {
		if !p.Spec.Proxyless() {
			if err := p.capture(ctx); err != nil {
				return err
			}
		}
	}
	if p.Spec.Proxied() {
		if err := p.credentials(); err != nil {
			return err
		}
		if err := p.volumes(); err != nil {
			return err
		}
		if err := p.StartAgent(ctx); err != nil {
			return err
		}
	}
	if p.Spec.Programs != nil {
		return p.startPrograms(ctx)
	}
	return p.startApp(ctx)
}

// capture runs the init container's command, as root.
func (p *Pod) capture(ctx context.Context) error {
	log, err := p.mesh.logFile(p.Spec.Key() + ".capture")
	if err != nil {
		return err
	}
	c, err := p.Net.Start(netmesh.Command{
		Path: p.mesh.o.Programs.Agent, Dir: p.Dir, Stdout: log, Stderr: log,
		Args: append([]string{
			"istio-iptables", "-p", strconv.Itoa(mesh.OutboundPort), "-z", strconv.Itoa(mesh.InboundPort),
			"-u", strconv.Itoa(mesh.ProxyUID), "-m", p.interception(), "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020",
		}, p.mesh.o.CaptureArgs...),
	})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	select {
	case <-c.Done():
		err = c.Wait()
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("capture the traffic: %w", err)
	}
	return withLog(err, log)
}

// interception is how the Pod's inbound connections are captured.
func (p *Pod) interception() string {
	if p.mesh.o.TPROXY[p.Spec.Key()] {
		return mesh.InterceptionTPROXY
	}
	return "REDIRECT"
}

// volumes makes the folders that a Pod without Envoy shares between its agent and its application, as Kubernetes makes volumes.
func (p *Pod) volumes() error {
	if !p.Spec.Proxyless() {
		return nil
	}
	for _, path := range []string{"etc/istio/proxy", "data"} {
		full := filepath.Join(p.Dir, path)
		if err := os.MkdirAll(full, 0o755); err != nil {
			return fmt.Errorf("make a volume of the Pod: %w", err)
		}
		if err := os.Chmod(full, 0o777); err != nil { // whatever the umask
			return fmt.Errorf("make a volume of the Pod: %w", err)
		}
	}
	return nil
}

// credentials writes the token and the root certificate to the paths where an agent reads them.
func (p *Pod) credentials() error {
	root, err := os.ReadFile(filepath.Join(p.mesh.StateDir(), "root-cert.pem"))
	if err != nil {
		return fmt.Errorf("read the mesh's root certificate: %w", err)
	}
	token, err := p.mesh.o.Token(p.mesh.StateDir(), p.Spec.Namespace, p.Spec.ServiceAccount)
	if err != nil {
		return fmt.Errorf("make the Pod's token: %w", err)
	}
	for path, text := range map[string][]byte{
		"var/run/secrets/istio/root-cert.pem": root,
		"var/run/secrets/tokens/istio-token":  []byte(token),
	} {
		if err := p.write(path, text); err != nil {
			return err
		}
	}
	return nil
}

// Write replaces a file in the Pod's directory by a rename; path is relative to it.
func (p *Pod) Write(path string, text []byte) error {
	if err := p.write(path+".new", text); err != nil {
		return err
	}
	return os.Rename(filepath.Join(p.Dir, path+".new"), filepath.Join(p.Dir, path))
}

// EnvoyPath is the path of the Envoy of the Pod's agent.
func (p *Pod) EnvoyPath() string { return p.mesh.o.Programs.Envoy }

// write writes a file in the Pod's directory; the agent's user owns the file and the directories above it.
func (p *Pod) write(path string, text []byte) error {
	dir := p.Dir
	for part := range strings.SplitSeq(filepath.Dir(path), "/") {
		dir = filepath.Join(dir, part)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the Pod's directories: %w", err)
		}
		if err := os.Chown(dir, mesh.ProxyUID, mesh.ProxyUID); err != nil {
			return fmt.Errorf("change the owner of the Pod's directories: %w", err)
		}
	}
	full := filepath.Join(p.Dir, path)
	if err := os.WriteFile(full, text, 0o600); err != nil {
		return fmt.Errorf("write a file of the agent: %w", err)
	}
	return os.Chown(full, mesh.ProxyUID, mesh.ProxyUID)
}

// agentEnv is the environment that the injector sets in the sidecar's container.
func (p *Pod) agentEnv() ([]string, error) {
	labels, err := json.Marshal(p.Spec.Labels)
	if err != nil {
		return nil, fmt.Errorf("encode the Pod's labels: %w", err)
	}
	config := strings.Join([]string{
		"discoveryAddress: " + discoveryHost + ":15012",
		"binaryPath: " + p.mesh.o.Programs.Envoy,
		"configPath: ./etc/istio/proxy",
		"concurrency: 2",
		p.mesh.o.ProxyConfig,
	}, "\n")
	var more []string
	if p.Spec.Proxyless() {
		// As the template says; the folder of the certificates is one of the Pod's.
		more = []string{"DISABLE_ENVOY=true", "ISTIO_META_GENERATOR=grpc", "OUTPUT_CERTS=./data", "KUBERNETES_SERVICE_HOST=" + p.mesh.host(p.Spec).String()}
	}
	return slices.Concat([]string{
		"PATH=/usr/bin:/bin", "HOME=" + p.Dir,
		"POD_NAME=" + p.Spec.Name, "POD_NAMESPACE=" + p.Spec.Namespace, "INSTANCE_IP=" + p.Spec.IP.String(),
		"SERVICE_ACCOUNT=" + p.Spec.ServiceAccount, "HOST_IP=" + p.mesh.host(p.Spec).String(),
		"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=" + p.interception(),
		"ISTIO_META_WORKLOAD_NAME=" + p.Spec.metricsName(), "ISTIO_METAJSON_LABELS=" + string(labels),
		"WASM_MODULES_DIR=" + filepath.Join(p.Dir, "modules"), // a volume in a Pod
		"PROXY_CONFIG=" + config,
	}, more, p.mesh.o.AgentEnv, p.mesh.o.PodEnv[p.Spec.Key()]), nil
}

// StartAgent starts pilot-agent, which starts Envoy, and waits until both are ready.
func (p *Pod) StartAgent(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	env, err := p.agentEnv()
	if err != nil {
		return err
	}
	log, err := p.mesh.logFile(p.Spec.Key() + ".agent")
	if err != nil {
		return err
	}
	uid := uint32(mesh.ProxyUID)
	if p.mesh.o.TPROXY[p.Spec.Key()] {
		uid = 0 // as the injector says: Envoy needs CAP_NET_ADMIN
	}
	p.agent, err = p.Net.Start(netmesh.Command{
		Path: p.mesh.o.Programs.Agent, Args: []string{"proxy", string(p.Spec.role()), "--domain", p.Spec.Namespace + ".svc." + Domain},
		Dir: p.Dir, Env: env, UID: uid, GID: mesh.ProxyUID, Stdout: log, Stderr: log,
	})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	agent := p.agent
	err = Await(ctx, 60*time.Second, "the proxy of "+p.Spec.Key()+" is ready", func(ctx context.Context) error {
		if err := alive(agent, "pilot-agent"); err != nil {
			return err
		}
		return p.Ready(ctx)
	})
	return withLog(err, log)
}

func (p *Pod) agentPID() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agent == nil {
		return 0, errors.New("it has no agent")
	}
	return p.agent.PID(), nil
}

// StopAgent sends a signal to the agent and waits until it has ended. The error is that of the process, nil
// for exit code 0.
func (p *Pod) StopAgent(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.agent.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the agent of %s: %w", p.Spec.Key(), err)
	}
	return p.agent.Wait()
}

// startApp starts the sample app and waits until it listens.
func (p *Pod) startApp(ctx context.Context) error {
	if len(p.Spec.Args) == 0 || p.Spec.Router() {
		return nil
	}
	log, err := p.mesh.logFile(p.Spec.Key() + ".app")
	if err != nil {
		return err
	}
	args := append([]string{"-service=" + p.Spec.app(), "-version=" + p.Spec.Labels["version"], "-pod=" + p.Spec.Name}, p.Spec.Args...)
	app, err := p.Net.Start(netmesh.Command{
		Path: p.mesh.o.Programs.App, Args: args, Dir: p.Dir, UID: appUID, GID: appUID, Stdout: log, Stderr: log,
	})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	err = Await(ctx, 20*time.Second, "the app of "+p.Spec.Key()+" listens", func(ctx context.Context) error {
		if err := alive(app, "the app"); err != nil {
			return err
		}
		for _, port := range slices.Concat(p.Spec.ports("-http"), p.Spec.ports("-tcp")) {
			c, err := p.Net.Dial(ctx, "tcp", "127.0.0.1:"+port)
			if err != nil {
				return err
			}
			_ = c.Close()
		}
		return nil
	})
	return withLog(err, log)
}
