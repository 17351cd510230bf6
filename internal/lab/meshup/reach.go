package meshup

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// discoveryPorts are those of pilot-discovery, which the server that it asks cannot have as well where it is at the mesh's host.
var discoveryPorts = []string{"8080", "15010", "15012", "15014", "15017"}

// reach makes a server of this machine's network available to pilot-discovery, which has a network of its own, under the server's own name,
// so that its certificate is checked as ever, and to nobody else in the mesh. A Service of the mesh is its first Pod, as for other clients without a
// proxy. The forward ends with ctx.
func (m *Mesh) reach(ctx context.Context, at *url.URL) error {
	name := at.Hostname()
	port := cmp.Or(at.Port(), map[string]string{"http": "80", "https": "443"}[at.Scheme])
	if pod, ok := m.spec.hosts(PodSpec{})[name]; ok {
		return m.Net.Host().SetHosts(map[string]netip.Addr{name: pod})
	}
	ip, err := netip.ParseAddr(name)
	switch {
	case err == nil && m.Net.Contains(ip):
		return nil
	case err == nil:
		if err := m.Net.Host().AddLoopback(ip); err != nil {
			return err
		}
	case name == "localhost":
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	default:
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if err := m.Net.Host().SetHosts(map[string]netip.Addr{name: ip}); err != nil {
			return err
		}
	}
	if slices.Contains(discoveryPorts, port) {
		return fmt.Errorf("reach %s from pilot-discovery: port %s is pilot-discovery's own: want a server at another port%s", at, port, m.spec.namesakes(name))
	}
	l, err := m.Net.Host().Listen("tcp", net.JoinHostPort(ip.String(), port))
	if err != nil {
		return fmt.Errorf("reach %s from pilot-discovery: %w", at, err)
	}
	m.prometheus = net.JoinHostPort(name, port)
	m.forwards.Go(func() { Forward(ctx, ownOnly{l}, machine{}, m.prometheus) })
	return nil
}

// reachLimit is how long PrometheusError waits for a connection.
const reachLimit = 2 * time.Second

// PrometheusError says why the server of Options.Prometheus takes no connection from this machine now; nil if it does, is in a Pod, or there is
// none.
func (m *Mesh) PrometheusError(ctx context.Context) error {
	if m.prometheus == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	c, err := machine{}.Dial(ctx, "tcp", m.prometheus)
	if err != nil {
		host, _, _ := net.SplitHostPort(m.prometheus) // a host alone is not listened for
		m.podsMu.Lock()
		defer m.podsMu.Unlock()
		return fmt.Errorf("%w%s", err, m.spec.namesakes(host))
	}
	return c.Close()
}

// namesakes says what a host name without dots may have been meant for: the Services of that name, which pilot-discovery, being in no
// namespace, knows with theirs only. It is empty if there is none.
func (l *layout) namesakes(host string) string {
	var names []string
	for _, s := range l.services {
		if s.Name == host {
			names = append(names, s.Name+"."+s.Namespace)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("; for the mesh's own Service want %s", strings.Join(names, " or "))
}

// ownOnly is a listener for connections of its own host: from the address that they are for, or loopback. Pods, which have routes to the addresses of
// the mesh's host, are not let through to this machine's network.
type ownOnly struct{ net.Listener }

func (l ownOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, to := addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())
		if from == to || from.IsLoopback() {
			return c, nil
		}
		_ = c.Close() // nobody waits for the answer
	}
}

func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// machine dials from this machine's network.
type machine struct{}

func (machine) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}
