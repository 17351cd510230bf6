package netmesh

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pod is a set of namespaces and what runs in them.
type Pod struct {
	name    string
	ip, ip6 netip.Addr
	mesh    *Mesh
	thread  *thread
	client  *http.Client
	link    string // the name of the host's end of its link

	mu        sync.Mutex
	hosts     map[string]netip.Addr
	hostsFile *os.File
	processes []*Process
	// containers are those that were not closed.
	containers []*Container
	end        ending
}

// ending is how far a Pod's Close has come.
type ending struct {
	begun bool
	done  chan struct{}
	err   error
}

// newPod starts the thread and its private file system; it adds no link yet.
func (m *Mesh) newPod(o PodOptions) (*Pod, error) {
	p := &Pod{name: o.Name, ip: o.IP, ip6: o.IP6, mesh: m, end: ending{done: make(chan struct{})}}
	p.client = &http.Client{Transport: &http.Transport{DialContext: p.Dial}}
	t, err := startThread((*thread).unshare, func() error { return p.setup(o.Hosts) })
	if err != nil {
		if p.hostsFile != nil {
			p.hostsFile.Close()
		}
		return nil, err
	}
	p.thread = t
	return p, nil
}

// setup runs on the Pod's thread before anything else does.
func (p *Pod) setup(hosts map[string]netip.Addr) error {
	if err := unix.Sethostname([]byte(p.name)); err != nil {
		return fmt.Errorf("set host name %q: %w", p.name, err)
	}
	if err := unix.Mount("shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=512m"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	file, err := overlay("/etc/hosts")
	if err != nil {
		return err
	}
	p.hostsFile = file
	if err := p.SetHosts(hosts); err != nil {
		return err
	}
	// Nobody serves DNS at the bridge unless a test or demo does, and then a query is refused at
	// once; the machine's own resolver would be out of reach, and waited for.
	resolv, err := overlay("/etc/resolv.conf")
	if err == nil {
		defer resolv.Close()
		server := p.gateway().ip
		if !p.ip.IsValid() {
			server = p.gateway().ip6
		}
		_, err = fmt.Fprintf(resolv, "nameserver %s\noptions timeout:1 attempts:1\n", server)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, s := range [][2]string{
		{"net/ipv4/ip_unprivileged_port_start", "0"},
		// Addresses are ours alone: asking for duplicates would only hold the Pod up.
		{"net/ipv6/conf/default/accept_dad", "0"}, {"net/ipv6/conf/all/accept_dad", "0"},
		{"net/ipv6/conf/default/accept_ra", "0"},
	} {
		if err := sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// overlay lays an empty file over path for this mount namespace only. The file has no name of its
// own, so that it ends with the namespace.
func overlay(path string) (*os.File, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("give the Pod its own %s: %w", path, err)
	}
	f, err := os.CreateTemp("/dev/shm", "overlay-")
	if err != nil {
		return nil, fmt.Errorf("give the Pod its own %s: %w", path, err)
	}
	err = errors.Join(f.Chmod(0o644), unix.Mount(f.Name(), path, "", unix.MS_BIND, ""), os.Remove(f.Name()))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("give the Pod its own %s: %w", path, err)
	}
	return f, nil
}

// configureLink runs on the Pod's thread once eth0 has arrived.
func (p *Pod) configureLink(host *Pod) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	if !p.ip6.IsValid() {
		if err := sysctl("net/ipv6/conf/eth0/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetHardwareAddr(eth0, p.hardwareAddr()); err != nil {
		return fmt.Errorf("set the hardware address of eth0: %w", err)
	}
	if err := netlink.LinkSetUp(eth0); err != nil {
		return fmt.Errorf("set eth0 up: %w", err)
	}
	if err := awaitUp("eth0"); err != nil {
		return err
	}
	if p.ip.IsValid() {
		if err := p.address(eth0, netip.PrefixFrom(p.ip, p.mesh.opts.Subnet.Bits()), host.ip); err != nil {
			return err
		}
	}
	if p.ip6.IsValid() {
		return p.address(eth0, netip.PrefixFrom(p.ip6, p.mesh.opts.Subnet6.Bits()), host.ip6)
	}
	return nil
}

// hardwareAddr is the same for each Pod that has the address: whoever knows the one before it as its neighbour would send to nobody,
// until it asks again after seconds.
func (p *Pod) hardwareAddr() net.HardwareAddr {
	ip := p.ip
	if !ip.IsValid() {
		ip = p.ip6
	}
	bytes := ip.AsSlice()
	return append(net.HardwareAddr{0x02, 0xf8}, bytes[len(bytes)-4:]...) // 02: locally administered
}

// awaitUp waits until a link can send. The kernel finds out that the two ends of a pair are up in
// its own time, and the bridge drops what comes before: a first packet sent too early is only
// repeated after a second.
func awaitUp(name string) error {
	var state netlink.LinkOperState
	var err error
	if !await(5*time.Second, func() bool {
		var link netlink.Link
		if link, err = netlink.LinkByName(name); err != nil {
			return true
		}
		state = link.Attrs().OperState
		return state == netlink.OperUp
	}) {
		err = fmt.Errorf("its state is still %s", state)
	}
	if err != nil {
		return fmt.Errorf("wait for %s to be up: %w", name, err)
	}
	return nil
}

func (p *Pod) address(link netlink.Link, a netip.Prefix, gateway netip.Addr) error {
	if err := addAddr(link, a); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IP(gateway.AsSlice())}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add the default route via %s: %w", gateway, err)
	}
	return nil
}

func addAddr(link netlink.Link, a netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP: net.IP(a.Addr().AsSlice()), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen()),
	}}
	if a.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add %s to %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}

// AddLoopback gives the loopback of the Pod an address, unless it is one of loopback, which it has.
func (p *Pod) AddLoopback(ip netip.Addr) error {
	if ip.IsLoopback() {
		return nil
	}
	return p.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback: %w", err)
		}
		return addAddr(lo, netip.PrefixFrom(ip, ip.BitLen()))
	})
}

// sysctl sets a value in the calling thread's network namespace; key is a path below /proc/sys.
func sysctl(key, value string) error {
	if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
		if strings.HasPrefix(key, "net/ipv6/") && errors.Is(err, fs.ErrNotExist) {
			return nil // a kernel without IPv6 has none to switch off
		}
		return fmt.Errorf("set %s: %w", strings.ReplaceAll(key, "/", "."), err)
	}
	return nil
}

// Task is the id of the thread that holds the Pod's namespaces, one of this process: [RunAs] enters them from another one.
func (p *Pod) Task() int { return p.thread.tid }

// Name is the Pod's name.
func (p *Pod) Name() string { return p.name }

// IP is the Pod's IPv4 address, or the zero Addr.
func (p *Pod) IP() netip.Addr { return p.ip }

// IP6 is the Pod's IPv6 address, or the zero Addr.
func (p *Pod) IP6() netip.Addr { return p.ip6 }

func (p *Pod) gateway() *Pod {
	if p.mesh.host != nil {
		return p.mesh.host
	}
	return p
}

// SetHosts replaces the names in the Pod's /etc/hosts; localhost and the Pod's own stay. Running
// processes see it at their next look.
func (p *Pod) SetHosts(hosts map[string]netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hosts = maps.Clone(hosts)
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	for _, ip := range []netip.Addr{p.ip, p.ip6} {
		if ip.IsValid() {
			fmt.Fprintf(&b, "%s %s\n", ip, p.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		fmt.Fprintf(&b, "%s %s\n", hosts[name], name)
	}
	// The new text first and the cut after it: a reader in between never finds an empty file.
	if _, err := p.hostsFile.WriteAt([]byte(b.String()), 0); err != nil {
		return fmt.Errorf("write the Pod's /etc/hosts: %w", err)
	}
	if err := p.hostsFile.Truncate(int64(b.Len())); err != nil {
		return fmt.Errorf("cut the Pod's /etc/hosts: %w", err)
	}
	return nil
}

// Do runs fn on the Pod's thread, that is in all its namespaces, and returns fn's error. Other
// calls to the Pod wait meanwhile, so fn must not block for long, must not call the Pod's
// methods, and must not end its goroutine (no testing.T.Fatal).
func (p *Pod) Do(fn func() error) error {
	if err := p.thread.do(fn); err != nil {
		return fmt.Errorf("in Pod %s: %w", p.name, err)
	}
	return nil
}
