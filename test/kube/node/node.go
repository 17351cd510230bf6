package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// Options describe a Node.
type Options struct {
	// Name is the Node's name. Default: node-1.
	Name string
	// Labels are those of the Node besides its host name, architecture and operating system.
	Labels map[string]string
	// Taints keep Pods away that do not tolerate them.
	Taints []corev1.Taint
	// Capacity is what the scheduler may give to Pods. Default: 64 CPUs, 256 GiB, 250 Pods; nothing is enforced.
	Capacity corev1.ResourceList
	// Images say what the containers of an image run, by reference without tag.
	Images map[string]Image
	// Dir is an existing directory for the Pods' files, such as a test's temporary one.
	Dir string
	// Backoff says when containers that ended are started again. Default: after half a second, at most 10 s.
	Backoff podstate.Backoff
	// Log gets what is done; nil: no log.
	Log *slog.Logger
}

// Node is a Node of a cluster on this machine. All methods may be called from several goroutines.
type Node struct {
	o      Options
	net    *Network
	cidr   netip.Prefix
	server *http.Server
	port   int
	stop   context.CancelFunc
	group  sync.WaitGroup
	// factory has the Pods of this Node only.
	factory informers.SharedInformerFactory

	mu      sync.Mutex
	closed  bool
	workers map[types.UID]*worker
	nextIP  netip.Addr
	ips     map[netip.Addr]bool
}

// Start registers a Node and runs the Pods that are bound to it. The caller must Close it.
func Start(ctx context.Context, net *Network, o Options) (*Node, error) {
	o.Name = firstOf(o.Name, "node-1")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Backoff.Max == 0 {
		o.Backoff = podstate.Backoff{Initial: 500 * time.Millisecond, Max: 10 * time.Second}
	}
	if o.Capacity == nil {
		o.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourcePods: resource.MustParse("250"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		}
	}
	n := &Node{o: o, net: net, workers: map[types.UID]*worker{}, ips: map[netip.Addr]bool{}}
	// Every user may have to reach its files.
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("start Node %s: %w", o.Name, err)
	}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start Node %s: %w", o.Name, err), n.Close())
	}
	return n, nil
}

func (n *Node) start(ctx context.Context) error {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	var err error
	if n.cidr, err = n.net.nextRange(); err != nil {
		return err
	}
	n.nextIP = n.cidr.Addr()
	if err := n.serve(run); err != nil {
		return err
	}
	if err := n.register(ctx); err != nil {
		return err
	}
	n.factory = informers.NewSharedInformerFactoryWithOptions(n.net.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.o.Name).String()
	}))
	_, err = n.factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.podChanged(run, o, false) },
		UpdateFunc: func(_, o any) { n.podChanged(run, o, false) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			n.podChanged(run, o, true)
		},
	})
	if err != nil {
		return err
	}
	core := n.net.factory.Core().V1()
	for _, i := range []cache.SharedIndexInformer{core.ConfigMaps().Informer(), core.Secrets().Informer()} {
		handler, err := i.AddEventHandler(onChange(func(o any) {
			if m, ok := o.(metav1.Object); ok {
				n.sourceChanged(run, m.GetNamespace())
			}
		}))
		if err != nil {
			return err
		}
		context.AfterFunc(run, func() { _ = i.RemoveEventHandler(handler) })
	}
	n.factory.Start(run.Done())
	n.group.Go(func() { n.heartbeat(run) })
	return nil
}

// Name is the Node's name.
func (n *Node) Name() string { return n.o.Name }

// Close ends the Pods' processes at once and stops the Node, whose object stays, as of one that lost its power. It
// may be called more than once.
func (n *Node) Close() error {
	n.mu.Lock()
	first := !n.closed
	n.closed = true
	n.mu.Unlock()
	if !first {
		return nil
	}
	if n.stop != nil {
		n.stop()
	}
	var err error
	if n.server != nil {
		err = n.server.Close()
	}
	if n.factory != nil {
		n.factory.Shutdown()
	}
	n.mu.Lock()
	workers := make([]*worker, 0, len(n.workers))
	for _, w := range n.workers {
		workers = append(workers, w)
	}
	n.mu.Unlock()
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(w.close)
	}
	all.Wait()
	n.group.Wait()
	return err
}

// podChanged brings a Pod's worker up to date.
func (n *Node) podChanged(ctx context.Context, o any, gone bool) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	w := n.workers[pod.UID]
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if w == nil && !gone && !n.closed && !(ended && pod.DeletionTimestamp == nil) {
		w = n.newWorker(pod)
		n.workers[pod.UID] = w
		n.group.Go(func() {
			w.run(ctx)
			n.mu.Lock()
			if !n.closed {
				delete(n.workers, pod.UID)
			}
			n.mu.Unlock()
		})
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	switch {
	case w == nil:
	case gone:
		w.send(ctx, func(now time.Time) { w.state.Gone(now) })
	default:
		w.updated(ctx, pod)
	}
}

// sourceChanged has the volumes of a namespace's Pods written again.
func (n *Node) sourceChanged(ctx context.Context, namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if w.namespace == namespace && !n.closed {
			n.group.Go(func() { w.send(ctx, func(time.Time) { w.refresh(ctx) }) })
		}
	}
}

func (n *Node) podDir(uid types.UID) string { return filepath.Join(n.o.Dir, string(uid)) }

// takeIP takes an address that was not used for the longest time.
func (n *Node) takeIP() (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 256 {
		n.nextIP = n.nextIP.Next()
		if last := n.nextIP.As4()[3]; !n.cidr.Contains(n.nextIP) || last == 255 {
			n.nextIP = n.cidr.Addr().Next()
		}
		if !n.ips[n.nextIP] {
			n.ips[n.nextIP] = true
			return n.nextIP, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all addresses of %s are in use", n.cidr)
}

func (n *Node) returnIP(a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ips, a)
}

// serve serves the kubelet's API on a loopback port.
func (n *Node) serve(ctx context.Context) error {
	config, err := servingTLS(n.net.o.Config)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	n.port = l.Addr().(*net.TCPAddr).Port
	n.server = &http.Server{
		Handler: n.api(), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(n.o.Log.Handler(), slog.LevelDebug),
	}
	n.group.Go(func() {
		if err := n.server.Serve(tls.NewListener(l, config)); !errors.Is(err, http.ErrServerClosed) {
			n.o.Log.Debug("serve the kubelet's API", "error", err)
		}
	})
	return nil
}

// register makes the Node's object and its Lease. A Node that was there before is replaced.
func (n *Node) register(ctx context.Context) error {
	labels := map[string]string{
		corev1.LabelHostname: n.o.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: goarch,
	}
	for k, v := range n.o.Labels {
		labels[k] = v
	}
	nodes := n.net.client.CoreV1().Nodes()
	if err := nodes.Delete(ctx, n.o.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	object, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.o.Name, Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDR: n.cidr.String(), PodCIDRs: []string{n.cidr.String()}, Taints: n.o.Taints},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	object.Status = n.status()
	if _, err := nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return n.renew(ctx)
}

// status is the Node's status.
func (n *Node) status() corev1.NodeStatus {
	now := metav1.Now()
	s := corev1.NodeStatus{
		Capacity: n.o.Capacity, Allocatable: n.o.Capacity, Phase: corev1.NodeRunning,
		// The API server connects to the first kind that it prefers: it is on this machine's loopback, Pods are not.
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: n.net.Gateway().String()},
			{Type: corev1.NodeInternalDNS, Address: "localhost"},
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(n.port)}},
		NodeInfo: corev1.NodeSystemInfo{
			KubeletVersion: "v1.36.0", OperatingSystem: "linux", Architecture: goarch, OSImage: "test", ContainerRuntimeVersion: "process://1",
		},
	}
	for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: c, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficient", LastHeartbeatTime: now, LastTransitionTime: now})
	}
	s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now})
	return s
}

const leaseSeconds = 40

// renew renews the Lease, or makes it.
func (n *Node) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	leases := n.net.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &n.o.Name, LeaseDurationSeconds: new(int32(leaseSeconds)), RenewTime: new(metav1.NowMicro())}
	l, err := leases.Get(ctx, n.o.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.o.Name, Namespace: corev1.NamespaceNodeLease}, Spec: spec}
		_, err = leases.Create(ctx, l, metav1.CreateOptions{})
	case err == nil:
		l.Spec = spec
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew the Lease of the Node: %w", err)
	}
	return nil
}

func (n *Node) heartbeat(ctx context.Context) {
	tick := time.NewTicker(leaseSeconds / 4 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := n.renew(ctx); err != nil && ctx.Err() == nil {
				n.o.Log.Debug("heartbeat", "error", err)
			}
		}
	}
}
