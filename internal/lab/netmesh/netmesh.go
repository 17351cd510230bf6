// Package netmesh makes Pods from Linux namespaces, on one machine, without other programs.
//
// A [Mesh] is a bridge in a network namespace of its own, and a [Pod] is an OS thread of this
// process with its own network, mount, IPC and UTS namespaces, joined to the bridge by a veth
// pair: loopback up, addresses, a default route, an /etc/hosts, an /etc/resolv.conf and a
// /dev/shm of its own. What is run "in the Pod" (a process, a dial, a listener, a function) is
// begun on that thread. The namespaces have no names and the machine's own network, mounts and
// files are never touched, so nothing outlives the program, however it ends: the processes that
// Pods started directly are killed by the kernel when it dies. [Mesh.Close] also kills their
// descendants and waits for all. All methods may be called from several goroutines at once.
package netmesh

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
)

const bridgeName = "mesh0"

var errGone = errors.New("the Pod has been closed")

// Options are the options of a Mesh. The zero value is valid.
type Options struct {
	// Subnet has the Pods' IPv4 addresses; its first host address is the bridge's.
	// Default 10.99.0.0/24.
	Subnet netip.Prefix
	// Subnet6 has the Pods' IPv6 addresses; its first host address is the bridge's.
	// Default fd99:99::/64.
	Subnet6 netip.Prefix
	// Log receives the start and end of Pods and processes, at level Debug. Default: no log.
	Log *slog.Logger
}

// PodOptions describe a Pod.
type PodOptions struct {
	// Name is unique in the Mesh. It is also the Pod's host name.
	Name string
	// IP is its IPv4 address, inside Options.Subnet. Default: the lowest that is free.
	IP netip.Addr
	// IP6 is its IPv6 address, inside Options.Subnet6. Without one, the Pod has IPv6 on
	// loopback only.
	IP6 netip.Addr
	// OnlyIP6 is set for a Pod that has IP6 and no IP: IPv4 on loopback only.
	OnlyIP6 bool
	// Hosts are the names in its /etc/hosts besides localhost and its own.
	Hosts map[string]netip.Addr
}

// Mesh is a bridge and the Pods on it.
type Mesh struct {
	opts Options
	host *Pod

	mu     sync.Mutex
	pods   []*Pod
	closed bool
	links  int
}

// New creates a Mesh without Pods. The caller must Close it.
func New(o Options) (*Mesh, error) {
	if !o.Subnet.IsValid() {
		o.Subnet = netip.MustParsePrefix("10.99.0.0/24")
	}
	if !o.Subnet6.IsValid() {
		o.Subnet6 = netip.MustParsePrefix("fd99:99::/64")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Subnet, o.Subnet6 = o.Subnet.Masked(), o.Subnet6.Masked()
	if !o.Subnet.Addr().Is4() || !o.Subnet6.Addr().Is6() {
		return nil, fmt.Errorf("make a mesh: Subnet %s must be IPv4 and Subnet6 %s IPv6", o.Subnet, o.Subnet6)
	}
	m := &Mesh{opts: o}
	host, err := m.newPod(PodOptions{Name: "mesh-host", IP: o.Subnet.Addr().Next(), IP6: o.Subnet6.Addr().Next()})
	if err != nil {
		return nil, fmt.Errorf("make a mesh: %w", err)
	}
	if err := host.thread.do(func() error { return m.makeBridge(host) }); err != nil {
		host.close()
		return nil, fmt.Errorf("make a mesh: %w", err)
	}
	m.host = host
	return m, nil
}

// Host returns the namespace of the bridge, whose address is every Pod's gateway. The control plane runs
// there.
func (m *Mesh) Host() *Pod { return m.host }

// Contains reports whether an address is of the ranges that the Pods' are of.
func (m *Mesh) Contains(ip netip.Addr) bool {
	return m.opts.Subnet.Contains(ip) || m.opts.Subnet6.Contains(ip)
}

// Pods returns the Pods that were added and not closed, in order.
func (m *Mesh) Pods() []*Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods)
}

// AddPod makes a Pod and joins it to the bridge. When it returns, the Pod is reachable.
func (m *Mesh) AddPod(o PodOptions) (*Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("add Pod %q: the mesh has been closed", o.Name)
	}
	if err := m.complete(&o); err != nil {
		return nil, fmt.Errorf("add Pod %q: %w", o.Name, err)
	}
	p, err := m.newPod(o)
	if err != nil {
		return nil, fmt.Errorf("add Pod %q: %w", o.Name, err)
	}
	link := fmt.Sprintf("pod%d", m.links)
	m.links++
	p.link = link
	err = m.host.thread.do(func() error { return joinBridge(link, p.thread.nsfd) })
	if err == nil {
		err = p.thread.do(func() error { return p.configureLink(m.host) })
	}
	if err == nil {
		err = m.host.thread.do(func() error { return errors.Join(awaitUp(link), awaitUp(bridgeName)) })
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("add Pod %q: %w", o.Name, err)
	}
	m.pods = append(m.pods, p)
	m.opts.Log.Debug("pod added", "pod", o.Name, "ip", o.IP)
	return p, nil
}

// complete checks the options and fills in a free address.
func (m *Mesh) complete(o *PodOptions) error {
	if o.Name == "" {
		return errors.New("the Name is empty")
	}
	taken := map[netip.Addr]string{m.host.ip: "the bridge", m.host.ip6: "the bridge"}
	for _, p := range m.pods {
		if p.name == o.Name {
			return errors.New("the name is in use")
		}
		taken[p.ip], taken[p.ip6] = p.name, p.name
	}
	if o.OnlyIP6 && (o.IP.IsValid() || !o.IP6.IsValid()) {
		return fmt.Errorf("with OnlyIP6 the IP %s and the IP6 %s must be none and one", o.IP, o.IP6)
	}
	if !o.IP.IsValid() && !o.OnlyIP6 {
		for o.IP = m.host.ip.Next(); taken[o.IP] != ""; {
			o.IP = o.IP.Next()
		}
	}
	if !o.OnlyIP6 && (!m.opts.Subnet.Contains(o.IP) || o.IP == m.opts.Subnet.Addr() || !m.opts.Subnet.Contains(o.IP.Next())) {
		return fmt.Errorf("invalid IP %s: want a host address of the Subnet %s", o.IP, m.opts.Subnet)
	}
	if o.IP6.IsValid() && !m.opts.Subnet6.Contains(o.IP6) {
		return fmt.Errorf("invalid IP6 %s: want an address of the Subnet6 %s", o.IP6, m.opts.Subnet6)
	}
	if by := taken[o.IP]; by != "" && o.IP.IsValid() {
		return fmt.Errorf("IP %s is in use by %s", o.IP, by)
	}
	if by := taken[o.IP6]; by != "" && o.IP6.IsValid() {
		return fmt.Errorf("IP6 %s is in use by %s", o.IP6, by)
	}
	return nil
}

// Close kills all processes in the mesh, waits for their end, and releases all namespaces. It may be
// called more than once. The caller closes connections and listeners in this process.
func (m *Mesh) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	var errs []error
	for _, p := range slices.Backward(m.pods) {
		errs = append(errs, p.close())
	}
	m.pods = nil
	return errors.Join(append(errs, m.host.close())...)
}

// makeBridge runs in the host's namespaces.
func (m *Mesh) makeBridge(host *Pod) error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = bridgeName
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create the bridge: %w", err)
	}
	for _, a := range []netip.Prefix{
		netip.PrefixFrom(host.ip, m.opts.Subnet.Bits()), netip.PrefixFrom(host.ip6, m.opts.Subnet6.Bits()),
	} {
		if err := addAddr(bridge, a); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set the bridge up: %w", err)
	}
	// A router rejects packets without a route at once; a host would drop them, and the caller would wait.
	return errors.Join(sysctl("net/ipv4/ip_forward", "1"), sysctl("net/ipv6/conf/all/forwarding", "1"))
}

// joinBridge runs in the host's namespaces: one end of a new veth pair goes to the Pod as eth0.
func joinBridge(name string, pod int) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find the bridge: %w", err)
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(pod)}
	veth.Name, veth.MasterIndex = name, bridge.Attrs().Index
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the veth pair: %w", err)
	}
	if err := sysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("set the veth pair up: %w", err)
	}
	return nil
}
