// Package kubetest runs the control plane of Kubernetes for tests.
//
// It starts etcd, the API server, the controller manager and, by option, the scheduler as processes.
// The binary is that of [require.KubePath], which 'make kube' builds. A cluster is ready after some seconds
// and takes 500 to 800 MB, so the tests of a package share one: TestMain calls [Main], tests call [Shared] and
// work in a namespace of their own ([Cluster.Namespace]). A test that stops programs, or changes what
// all namespaces share, uses [Start]. RBAC is on, the clients of a Cluster are those of an administrator.
//
// The API server listens at 127.0.0.1, so the Service kubernetes has no endpoint; its certificate is also for the
// names and addresses of that Service.
//
// There are no Nodes and no kubelet: [Cluster.Node] makes a Node that exists in the API alone, and
// [Cluster.PodRunning] writes the status that a kubelet would.
//
// The programs end with the process that started them, however that ends. What it wrote is removed then, or
// by the next start. The methods that take a testing.TB fail the test, and are to be called from its own goroutine;
// all others are safe for concurrent use.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

// bound is the longest time until a condition of the cluster holds, far more than it takes on a busy machine.
const bound = 3 * time.Minute

// Options say what runs. The zero value is a cluster with [Controllers] and without a scheduler.
type Options struct {
	// Scheduler runs the scheduler.
	Scheduler bool
	// Controllers are those of the controller manager; nil for [Controllers], empty for no controller manager.
	// Without serviceaccount-controller no namespace has a ServiceAccount, so that no Pod can be made.
	Controllers []string
	// APIServerFlags are further flags of the API server, such as --audit-policy-file=PATH.
	APIServerFlags []string
}

// Cluster is a control plane that runs.
type Cluster struct {
	// Config is how an administrator (group system:masters) connects to the API server, without a limit
	// of requests per second. Copy it before changing it.
	Config *rest.Config
	// Client, Dynamic and Mapper use Config. Mapper learns new kinds as they are asked for.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Mapper  *restmapper.DeferredDiscoveryRESTMapper

	options   Options
	binary    string
	dir       string
	lock      *os.File
	authority *authority
	port      int

	mu        sync.Mutex // guards processes, and lock once the cluster is started
	processes []*process // in the order of their start; of each name the last one counts
}

// Start starts a cluster that is stopped at the end of the test. If the test has failed, the ends of the
// programs' logs are in its output.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := Launch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
	})
	c.ReportTo(t)
	return c
}

// Launch starts a cluster, for programs and for TestMain; [Cluster.Stop] ends it. It returns when the API
// server is ready and the controllers work, or with an error that has the end of the log of the program that
// is the cause.
func Launch(ctx context.Context, o Options) (*Cluster, error) {
	binary, err := require.KubePath()
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: o, binary: binary}
	if err := c.launch(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a Kubernetes control plane: %w", err), c.close((*process).kill))
	}
	return c, nil
}

func (c *Cluster) launch(ctx context.Context) error {
	var err error
	if c.dir, c.lock, err = newDirectory(); err != nil {
		return err
	}
	if err := c.writeKeys(); err != nil {
		return err
	}
	if _, err := c.start(etcdName, etcdArgs(c.dir)); err != nil {
		return err
	}
	if err := c.startOnFreePort(ctx); err != nil {
		return err
	}
	if err := c.startClients(); err != nil {
		return err
	}
	if c.options.Controllers != nil {
		return nil
	}
	return c.until(ctx, "the controller manager makes the ServiceAccount default", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// writeKeys makes the CA, the certificates and the key of tokens.
func (c *Cluster) writeKeys() error {
	var err error
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "ca.crt"), c.authority.pem, 0o600); err != nil {
		return err
	}
	server, err := c.authority.server(serverHosts()...)
	if err != nil {
		return err
	}
	kubelet, err := c.authority.client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	return errors.Join(server.write(c.dir, "apiserver"), kubelet.write(c.dir, "kubelet-client"), writeTokenKey(c.dir))
}

// startOnFreePort starts the API server, on another port if somebody has taken the first meanwhile.
func (c *Cluster) startOnFreePort(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		port, err := wait.FindPort()
		if err != nil {
			return err
		}
		c.port = port
		if err := c.connect(); err != nil {
			return err
		}
		err = c.startAPIServer(ctx)
		if err == nil || attempt == 3 || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
}

// connect makes the clients.
func (c *Cluster) connect() error {
	var err error
	if c.Config, err = c.UserConfig("admin", "system:masters"); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}
	c.Mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
	return nil
}

// startAPIServer starts the API server on its port and waits until it is ready.
func (c *Cluster) startAPIServer(ctx context.Context) error {
	p, err := c.start(apiServerName, apiServerArgs(c.dir, c.port, c.options))
	if err != nil {
		return err
	}
	err = c.until(ctx, "the API server is ready", func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		p.kill()
	}
	return err
}

// startClients starts the controller manager and the scheduler, those that are wanted.
func (c *Cluster) startClients() error {
	if c.options.Controllers == nil || len(c.options.Controllers) > 0 {
		if err := c.startClient(controllersName, "system:masters", controllersArgs(c.dir, c.options)); err != nil {
			return err
		}
	}
	if c.options.Scheduler {
		return c.startClient(schedulerName, "", schedulerArgs(c.dir))
	}
	return nil
}

// startClient starts a program that connects to the API server as the user system:NAME.
func (c *Cluster) startClient(name, group string, args []string) error {
	var groups []string
	if group != "" {
		groups = []string{group}
	}
	config, err := c.UserConfig("system:"+name, groups...)
	if err != nil {
		return err
	}
	if err := writeKubeconfig(filepath.Join(c.dir, name+".kubeconfig"), config); err != nil {
		return err
	}
	_, err = c.start(name, args)
	return err
}

func (c *Cluster) start(name string, args []string) (*process, error) {
	p, err := startProcess(c.binary, c.dir, name, args)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = append(c.processes, p)
	return p, nil
}

// program is the process that was started last under a name; nil if there is none.
func (c *Cluster) program(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.processes) - 1; i >= 0; i-- {
		if c.processes[i].name == name {
			return c.processes[i]
		}
	}
	return nil
}

// programs lists the process that was started last for each name, in the order in which they are stopped: clients
// before servers.
func (c *Cluster) programs() []*process {
	var all []*process
	for _, name := range []string{schedulerName, controllersName, apiServerName, etcdName} {
		if p := c.program(name); p != nil {
			all = append(all, p)
		}
	}
	return all
}

// running reports programs that ended without being asked to.
func (c *Cluster) running() error {
	var errs []error
	for _, p := range c.programs() {
		errs = append(errs, p.running())
	}
	return errors.Join(errs...)
}

// The time between two looks at a condition grows from minPoll to maxPoll, since looks take the processor time that the
// condition needs. lookBound is the longest time of one: a server that has its port but does not answer must not hide that
// another program has ended.
const (
	minPoll   = 20 * time.Millisecond
	maxPoll   = 320 * time.Millisecond
	lookBound = 10 * time.Second
)

// until waits until look returns nil, and gives up when a program has ended or after bound. The error has the
// last one of look.
func (c *Cluster) until(ctx context.Context, what string, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		one, end := context.WithTimeout(ctx, lookBound)
		err := look(one)
		end()
		if err == nil {
			return nil
		}
		if ended := c.running(); ended != nil {
			return ended
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w\n%s", what, context.Cause(ctx), err, c.tails(nil))
		}
	}
}

// Mentions are the last lines of each program's log that have one of the words, whatever their case.
func (c *Cluster) Mentions(words ...string) string {
	for i, w := range words {
		words[i] = strings.ToLower(w)
	}
	var b strings.Builder
	for _, p := range c.programs() {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.name, p.last(func(line string) bool {
			line = strings.ToLower(line)
			return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) })
		}))
	}
	return b.String()
}

// tails are the ends of all logs, each from the offset that from has for its program.
func (c *Cluster) tails(from map[string]int64) string {
	var b strings.Builder
	for _, p := range c.programs() {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.name, p.tail(from[p.name]))
	}
	return b.String()
}

// ReportTo has the test fail if a program ended meanwhile, and show the logs written since now if it failed. [Start] and [Shared]
// call it.
func (c *Cluster) ReportTo(t testing.TB) {
	t.Helper()
	from := map[string]int64{}
	for _, p := range c.programs() {
		from[p.name] = p.logSize()
	}
	t.Cleanup(func() {
		if err := c.running(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the ends of the logs of the control plane (KUBETEST_LOGS=DIR keeps them):\n%s", c.tails(from))
		}
	})
}

// Stop ends the programs: the scheduler and the controllers, then the API server, then etcd. If the
// environment has KUBETEST_LOGS, the logs are moved to a new directory in the one that it names. It returns an
// error if a program had ended before. A second call does nothing.
func (c *Cluster) Stop() error {
	return errors.Join(c.running(), c.close((*process).stop))
}

// close ends the programs and removes the directory.
func (c *Cluster) close(end func(*process)) error {
	for _, p := range c.programs() {
		end(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = nil
	if c.lock == nil {
		return nil
	}
	var err error
	if logs := os.Getenv("KUBETEST_LOGS"); logs != "" {
		err = moveLogs(c.dir, logs)
	}
	err = errors.Join(err, os.RemoveAll(c.dir), c.lock.Close())
	c.lock = nil
	return err
}

// moveLogs copies the logs of dir to a new directory in target.
func moveLogs(dir, target string) error {
	target = filepath.Join(target, filepath.Base(dir))
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(target, filepath.Base(log)), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
