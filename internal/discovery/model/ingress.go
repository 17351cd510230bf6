package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Ingress is a listener of a Sidecar for inbound connections. [control-plane 1.9.23]
type Ingress struct {
	// Host names the Sidecar in operations of traces, "name.namespace".
	Host     string
	Port     uint32
	Protocol mesh.Protocol
	// Bind is the address that the listener binds to; empty if it is for captured connections.
	Bind string
	// To is where connections go.
	To IngressEndpoint
	// TLS ends TLS of clients outside the mesh; nil for none.
	TLS *networking.ServerTLSSettings
}

// IngressEndpoint is where the connections of an Ingress go: to an address or a Unix socket ("unix://PATH"), or to the address that
// the client used if Address is empty. Port is 0 for the client's, and for a socket.
type IngressEndpoint struct {
	Address string
	// Own is set if Address is the workload's own, or would be.
	Own  bool
	Port uint32
}

// Name is that of the listener, if it binds.
func (i Ingress) Name() string { return i.Bind + "_" + strconv.Itoa(int(i.Port)) }

// Ingress returns the listeners that the Sidecar of a workload has for inbound connections, sorted by port, each port once; false if
// they follow from the workload's services.
func (m *Model) Ingress(r *incr.Reader, w mesh.Workload) ([]Ingress, bool) {
	row, ok := m.sidecarOf(r, w)
	if !ok || len(row.Spec.GetIngress()) == 0 {
		return nil, false
	}
	var out []Ingress
	for _, l := range row.Spec.Ingress {
		i := Ingress{
			Host: row.Name + "." + row.Namespace, Port: l.GetPort().GetNumber(), Protocol: mesh.ParseProtocol(l.GetPort().GetProtocol()),
			TLS: l.GetTls(), To: ingressEndpoint(l.GetDefaultEndpoint(), w.Addresses),
		}
		if i.Protocol == mesh.UDP || i.Port == 0 {
			continue // package config says so
		}
		if l.GetCaptureMode() == networking.CaptureMode_NONE {
			if i.Bind = cmp.Or(l.GetBind(), ownAddress(w.Addresses, false)); i.Bind == "" {
				continue // nothing is known of the proxy's address, at which clients would connect
			}
			if l.GetDefaultEndpoint() == "" { // the client's destination is the listener itself
				i.To = IngressEndpoint{Address: loopbackOf(i.Bind), Port: i.Port}
			}
		}
		out = append(out, i)
	}
	slices.SortStableFunc(out, func(a, b Ingress) int { return cmp.Compare(a.Port, b.Port) })
	return slices.CompactFunc(out, func(a, b Ingress) bool { return a.Port == b.Port }), true
}

// InboundPool returns the limits that the Sidecar of a workload sets for a port: those of its listener, else those of all of them;
// nil for none. [control-plane 1.9.24]
func (m *Model) InboundPool(r *incr.Reader, w mesh.Workload, port uint32) *networking.ConnectionPoolSettings {
	row, ok := m.sidecarOf(r, w)
	if !ok {
		return nil
	}
	for _, l := range row.Spec.Ingress {
		if l.GetPort().GetNumber() == port && l.GetConnectionPool() != nil {
			return l.ConnectionPool
		}
	}
	return row.Spec.GetInboundConnectionPool()
}

func (m *Model) sidecarOf(r *incr.Reader, w mesh.Workload) (*Sidecar, bool) {
	if w.Sidecar == "" {
		return nil, false
	}
	row, ok := incr.Get(r, m.tables.sidecars, w.Sidecar)
	return row, ok && row.Spec != nil
}

// inboundSidecar returns the key of a Sidecar if it determines inbound listeners or clusters, else "", so that workloads share
// what they have inbound; and whether these depend on the proxy's addresses.
func (m *Model) inboundSidecar(r *incr.Reader, key string) (of string, addresses bool) {
	if key == "" {
		return "", false
	}
	row, ok := incr.Get(r, m.tables.sidecars, key)
	if !ok || len(row.Spec.GetIngress()) == 0 && row.Spec.GetInboundConnectionPool() == nil {
		return "", false
	}
	for _, l := range row.Spec.Ingress {
		if l.GetCaptureMode() == networking.CaptureMode_NONE && (l.GetBind() == "" || ingressEndpoint(l.GetDefaultEndpoint(), "").Own) {
			addresses = true
		}
	}
	return key, addresses
}

// ingressEndpoint parses a defaultEndpoint. Of the workload's own addresses, which are separated by commas, it is the first of the
// family.
func ingressEndpoint(text, own string) IngressEndpoint {
	if strings.HasPrefix(text, mesh.UnixSocket) {
		return IngressEndpoint{Address: text}
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return IngressEndpoint{}
	}
	port, _ := strconv.ParseUint(text[i+1:], 10, 16)
	e := IngressEndpoint{Address: strings.Trim(text[:i], "[]"), Port: uint32(port)}
	if e.Address == "0.0.0.0" || e.Address == "::" {
		e.Own, e.Address = true, ownAddress(own, e.Address == "::")
	}
	return e
}

// ownAddress returns the first address of a family, else the first.
func ownAddress(list string, v6 bool) string {
	first := ""
	for _, text := range strings.Split(list, ",") {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		if ip.Is6() == v6 {
			return text
		}
		first = cmp.Or(first, text)
	}
	return first
}

func loopbackOf(bind string) string {
	if ip, err := netip.ParseAddr(bind); err == nil && ip.Is6() {
		return "::1"
	}
	return "127.0.0.1"
}
