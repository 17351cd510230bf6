package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/kube/node/podnet"
)

// Domain is the DNS domain of the cluster.
const Domain = "cluster.local"

// apiPort is the port at the network's gateway where Pods reach the API server.
const apiPort = 6443

// NetworkOptions say which cluster's Pods are on a Network.
type NetworkOptions struct {
	// Config is how an administrator connects to the API server, which listens on this machine.
	Config *rest.Config
	// Subnet has the addresses of all Pods, with a range of 256 for each Node. Default 10.244.0.0/16.
	Subnet netip.Prefix
	// EgressSocket is the path of the Unix socket of [EgressConfig]; empty: the API server cannot connect to Pods.
	EgressSocket string
	// Log gets what is done; nil: no log.
	Log *slog.Logger
}

// Network is the network of a cluster's Pods on this machine. Its gateway, the first address of the subnet, serves the
// cluster's DNS and forwards to the API server. All methods may be called from several goroutines.
type Network struct {
	// Mesh has the namespaces. Its Host is where Pods of the control plane's side are reached from.
	Mesh *netmesh.Mesh

	o       NetworkOptions
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
	stop    context.CancelFunc
	group   sync.WaitGroup
	// changed is told when rules may have changed; its buffer is one.
	changed chan struct{}
	// write replaces the rules of a Pod.
	write func(*netmesh.Pod, []podnet.Rule) error

	mu    sync.Mutex
	nodes int
	rules []podnet.Rule
	// pods are those on the network, with whether they have rules. One that has not, since they could not be written, gets them
	// soon.
	pods  map[*netmesh.Pod]bool
	conns map[io.Closer]bool
}

// NewNetwork makes the network and returns once it knows the cluster's Services. The caller must Close it, after its
// Nodes.
func NewNetwork(ctx context.Context, o NetworkOptions) (*Network, error) {
	if !o.Subnet.IsValid() {
		o.Subnet = netip.MustParsePrefix("10.244.0.0/16")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	config := rest.CopyConfig(o.Config)
	config.Dial = dialPatiently
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a network of Pods: %w", err)
	}
	mesh, err := netmesh.New(netmesh.Options{Subnet: o.Subnet, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("make a network of Pods: %w", err)
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	n := &Network{
		Mesh: mesh, o: o, client: client, stop: stop, changed: make(chan struct{}, 1),
		factory: informers.NewSharedInformerFactory(client, 0),
		pods:    map[*netmesh.Pod]bool{}, conns: map[io.Closer]bool{},
		write: func(p *netmesh.Pod, rules []podnet.Rule) error {
			return p.Do(func() error { return writeRules(rules) })
		},
	}
	if err := n.start(ctx, run); err != nil {
		return nil, errors.Join(fmt.Errorf("make a network of Pods: %w", err), n.Close())
	}
	return n, nil
}

func (n *Network) start(ctx, run context.Context) error {
	core := n.factory.Core().V1()
	for _, i := range []cache.SharedIndexInformer{core.Services().Informer(), n.factory.Discovery().V1().EndpointSlices().Informer()} {
		if _, err := i.AddEventHandler(onChange(func(any) { n.wake() })); err != nil {
			return err
		}
	}
	core.ConfigMaps().Informer()
	core.Secrets().Informer()
	n.factory.Start(run.Done())
	for kind, ok := range n.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("read all %v: %w", kind, context.Cause(ctx))
		}
	}
	if err := n.forwardAPI(run); err != nil {
		return err
	}
	if err := n.publishAPI(ctx); err != nil {
		return err
	}
	if err := n.serveDNS(run); err != nil {
		return err
	}
	if err := n.serveEgress(run); err != nil {
		return err
	}
	n.group.Go(func() { n.keepRules(run) })
	return nil
}

// onChange is a handler for every kind of event.
func onChange(f func(any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: f, UpdateFunc: func(_, o any) { f(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			f(o)
		},
	}
}

// Close ends everything on the network, Pods too. It may be called more than once.
func (n *Network) Close() error {
	n.stop()
	n.mu.Lock()
	for c := range n.conns {
		_ = c.Close()
	}
	n.mu.Unlock()
	n.group.Wait()
	n.factory.Shutdown()
	return n.Mesh.Close()
}

// Gateway is the address that Pods reach the machine's side at.
func (n *Network) Gateway() netip.Addr { return n.Mesh.Host().IP() }

// track keeps what Close must close; the returned function closes it before.
func (n *Network) track(c io.Closer) func() {
	n.mu.Lock()
	n.conns[c] = true
	n.mu.Unlock()
	return func() {
		n.mu.Lock()
		delete(n.conns, c)
		n.mu.Unlock()
		_ = c.Close()
	}
}

// forwardAPI forwards connections to the gateway's API port to the API server.
func (n *Network) forwardAPI(ctx context.Context) error {
	u, err := url.Parse(n.o.Config.Host)
	if err != nil {
		return fmt.Errorf("parse the API server's address %q: %w", n.o.Config.Host, err)
	}
	to := u.Host
	if u.Port() == "" {
		to = net.JoinHostPort(u.Hostname(), "443")
	}
	l, err := n.Mesh.Host().Listen("tcp", netip.AddrPortFrom(n.Gateway(), apiPort).String())
	if err != nil {
		return err
	}
	closeListener := n.track(l)
	n.group.Go(func() {
		defer closeListener()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.group.Go(func() { n.forward(ctx, c, to) })
		}
	})
	return nil
}

// forward copies between a connection and an address of this machine until both directions have ended.
func (n *Network) forward(ctx context.Context, c net.Conn, to string) {
	defer n.track(c)()
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		n.o.Log.Debug("forward to the API server", "error", err)
		return
	}
	defer n.track(server)()
	if ctx.Err() != nil {
		return
	}
	join(c, server)
}

// join copies in both directions until both have ended; the end of one is passed on.
func join(a, b io.ReadWriteCloser) {
	var both sync.WaitGroup
	for _, d := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		both.Go(func() {
			_, err := io.Copy(d[1], d[0])
			half, ok := d[1].(interface{ CloseWrite() error })
			if err != nil || !ok || half.CloseWrite() != nil {
				_ = d[0].Close()
				_ = d[1].Close()
			}
		})
	}
	both.Wait()
}

// publishAPI makes the endpoint of the Service kubernetes, as an API server does that Pods can reach.
func (n *Network) publishAPI(ctx context.Context) error {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kubernetes", Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{n.Gateway().String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(apiPort)), Protocol: new(corev1.ProtocolTCP)}},
	}
	api := n.client.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := api.Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.Update(ctx, s, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publish the API server's endpoint: %w", err)
	}
	return nil
}

// tables are the Services and EndpointSlices as the caches have them.
func (n *Network) tables() podnet.Tables {
	// Listing from a cache does not fail.
	services, _ := n.factory.Core().V1().Services().Lister().List(labels.Everything())
	endpoints, _ := n.factory.Discovery().V1().EndpointSlices().Lister().List(labels.Everything())
	return podnet.Tables{Services: services, Slices: endpoints}
}

// wake has the rules computed again.
func (n *Network) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// ruleRetry is when rules are written again that could not be.
const ruleRetry = time.Second

// keepRules writes the rules to all Pods when they change, and again to those where that failed.
func (n *Network) keepRules(ctx context.Context) {
	for {
		var again <-chan time.Time
		if !n.updateRules() {
			again = time.After(ruleRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.changed:
		case <-again:
		}
	}
}

// updateRules writes the rules to the Pods that have others, and returns whether all have them then.
func (n *Network) updateRules() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if rules := n.tables().Rules(); !slices.EqualFunc(rules, n.rules, equalRules) {
		n.rules = rules
		for p := range n.pods {
			n.pods[p] = false
		}
	}
	all := true
	for p, current := range n.pods {
		if current {
			continue
		}
		if err := n.write(p, n.rules); err != nil {
			n.o.Log.Debug("write the rules of Services", "pod", p.Name(), "error", err)
			all = false
			continue
		}
		n.pods[p] = true
	}
	return all
}

func equalRules(a, b podnet.Rule) bool {
	return a.Protocol == b.Protocol && a.From == b.From && slices.Equal(a.To, b.To)
}

// addPod makes the namespaces of a Pod, with the rules of Services.
func (n *Network) addPod(name string, ip netip.Addr) (*netmesh.Pod, error) {
	p, err := n.Mesh.AddPod(netmesh.PodOptions{Name: name, IP: ip})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.write(p, n.rules); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	n.pods[p] = true
	return p, nil
}

func (n *Network) removePod(p *netmesh.Pod) error {
	n.mu.Lock()
	delete(n.pods, p)
	n.mu.Unlock()
	return p.Close()
}

// nextRange is the range of addresses of one more Node.
func (n *Network) nextRange() (netip.Prefix, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes++
	a := n.o.Subnet.Masked().Addr().As4()
	a[2] += byte(n.nodes)
	p := netip.PrefixFrom(netip.AddrFrom4(a), 24)
	if n.nodes > 255 || !n.o.Subnet.Overlaps(p) {
		return p, fmt.Errorf("the subnet %s has no range for one more Node", n.o.Subnet)
	}
	return p, nil
}

// configMap finds a ConfigMap; nil says that it does not exist. The cache may be late, so that what it does not
// have is asked for.
func (n *Network) configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if m, err := n.factory.Core().V1().ConfigMaps().Lister().ConfigMaps(namespace).Get(name); err == nil {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	m, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return m, err
}

// secret is configMap for Secrets.
func (n *Network) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	if s, err := n.factory.Core().V1().Secrets().Lister().Secrets(namespace).Get(name); err == nil {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	s, err := n.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return s, err
}

// The longest time that a connection to an API server that does not run waits for it, and how often it tries.
const (
	dialPatience = 30 * time.Second
	dialPause    = 200 * time.Millisecond
)

// dialPatiently connects to the API server, and waits for one that does not run. Watches of client-go would wait too, but after an
// outage of half a minute each for up to a minute more, while Pods and their addresses change.
func dialPatiently(ctx context.Context, network, addr string) (net.Conn, error) {
	patience, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	tick := time.NewTicker(dialPause)
	defer tick.Stop()
	for {
		c, err := new(net.Dialer).DialContext(patience, network, addr)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return c, err
		}
		select {
		case <-patience.Done():
			return nil, err
		case <-tick.C:
		}
	}
}

// apiTimeout bounds one request to the API server.
const apiTimeout = 10 * time.Second

// resolvConf is the /etc/resolv.conf of a Pod.
func (n *Network) resolvConf(pod *corev1.Pod) string {
	var servers, search, options []string
	if pod.Spec.DNSPolicy != corev1.DNSNone {
		servers = []string{n.Gateway().String()}
		search = []string{pod.Namespace + ".svc." + Domain, "svc." + Domain, Domain}
		options = []string{"ndots:5"}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		servers, search = append(servers, c.Nameservers...), append(search, c.Searches...)
		for _, o := range c.Options {
			if o.Value != nil {
				options = append(options, o.Name+":"+*o.Value)
			} else {
				options = append(options, o.Name)
			}
		}
	}
	var b strings.Builder
	if len(search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(search, " "))
	}
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(options, " "))
	}
	return b.String()
}
