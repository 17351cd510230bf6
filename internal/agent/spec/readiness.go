package spec

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// Readiness is the probe by which the agent finds out the health of the application, to report it to the control plane: the
// readinessProbe of the proxy configuration. [agent X9, V8]
type Readiness struct {
	// Prober is the probe unless it is Exec. Its Timeout is 0.
	Prober
	// Exec is a command and its arguments.
	Exec []string
	// Host is where Prober connects to.
	Host netip.Addr
	// InitialDelay is the time before the first probe, Period that between two, Timeout the longest that one may take.
	InitialDelay, Period, Timeout time.Duration
	// Successes and Failures are how many results in a row are needed for a change, at least 1.
	Successes, Failures int
}

// Defaults of a readiness probe. They are those of Istio's agent, not Kubernetes'.
const (
	defaultPeriod    = 10
	defaultTimeout   = 1
	defaultThreshold = 1
)

// readiness reads a readiness probe; the result is nil if there is none. node is the node's address.
func readiness(p *networking.ReadinessProbe, node netip.Addr, statusPort int) (*Readiness, error) {
	if p == nil {
		return nil, nil
	}
	r := &Readiness{Host: node}
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.GetInitialDelaySeconds()}, {"periodSeconds", p.GetPeriodSeconds()}, {"timeoutSeconds", p.GetTimeoutSeconds()},
		{"successThreshold", p.GetSuccessThreshold()}, {"failureThreshold", p.GetFailureThreshold()},
	} {
		if n.value < 0 {
			return nil, fmt.Errorf("invalid %s %d: want 0 or more", n.name, n.value)
		}
	}
	seconds := func(n, otherwise int32) time.Duration {
		if n == 0 {
			n = otherwise
		}
		return time.Duration(n) * time.Second
	}
	r.InitialDelay = seconds(p.GetInitialDelaySeconds(), 0)
	r.Period, r.Timeout = seconds(p.GetPeriodSeconds(), defaultPeriod), seconds(p.GetTimeoutSeconds(), defaultTimeout)
	r.Successes, r.Failures = max(defaultThreshold, int(p.GetSuccessThreshold())), max(defaultThreshold, int(p.GetFailureThreshold()))
	host := ""
	var err error
	switch m := p.GetHealthCheckMethod().(type) {
	case *networking.ReadinessProbe_HttpGet:
		host = m.HttpGet.GetHost()
		r.HTTP, err = httpGet(m.HttpGet, statusPort)
	case *networking.ReadinessProbe_TcpSocket:
		host = m.TcpSocket.GetHost()
		r.TCPPort, err = port(m.TcpSocket.GetPort())
	case *networking.ReadinessProbe_Grpc:
		r.GRPC = &GRPCProbe{Service: m.Grpc.GetService()}
		r.GRPC.Port, err = port(m.Grpc.GetPort())
	case *networking.ReadinessProbe_Exec:
		r.Exec = m.Exec.GetCommand()
		if len(r.Exec) == 0 || r.Exec[0] == "" {
			err = errors.New("exec without a command: want a program and its arguments")
		}
	default:
		err = errors.New("no probe: want httpGet, tcpSocket, grpc or exec")
	}
	if err == nil && host != "" {
		r.Host, err = probeHost(host)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func port(n uint32) (int, error) {
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("invalid port %d: want 1–65535", n)
	}
	return int(n), nil
}

// probeHost reads where a probe connects to. Names are not resolved, since nothing outside of the machine may delay a probe.
func probeHost(host string) (netip.Addr, error) {
	if host == "localhost" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("invalid host %s: want an IP address, localhost, or none for that of the node", printable.Quote(host, 100))
	}
	return a, nil
}

// httpGet reads a probe over HTTP.
func httpGet(g *networking.HTTPHealthCheckConfig, statusPort int) (*HTTPProbe, error) {
	n, err := port(g.GetPort())
	if err != nil {
		return nil, err
	}
	var headers []headerJSON
	for _, h := range g.GetHttpHeaders() {
		headers = append(headers, headerJSON{Name: h.GetName(), Value: h.GetValue()})
	}
	p, err := httpProbe(g.GetPath(), g.GetScheme(), "", n, headers)
	if err != nil {
		return nil, fmt.Errorf("httpGet: %w", err)
	}
	if p.Port == statusPort && IsProberPath(p.Target) {
		return nil, fmt.Errorf("httpGet: the agent would probe itself at port %d: want the application's own path and port", statusPort)
	}
	return p, nil
}
