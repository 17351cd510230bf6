package podplan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// serviceBody is the part of a Service that is read.
type serviceBody struct {
	Spec struct {
		Type      string            `json:"type"`
		ClusterIP string            `json:"clusterIP"`
		Selector  map[string]string `json:"selector"`
		Ports     []struct {
			Name        string          `json:"name"`
			Port        uint16          `json:"port"`
			TargetPort  json.RawMessage `json:"targetPort"`
			AppProtocol string          `json:"appProtocol"`
			Protocol    string          `json:"protocol"`
		} `json:"ports"`
	} `json:"spec"`
}

// pendingService is a Service before it has an address.
type pendingService struct {
	source
	service Service
	// d is where its address is to be written; nil if it has one or wants none, and if the Service was added.
	d *document
	// added is the object if it was added.
	added map[string]any
}

func (m *maker) readService(s source, text []byte, d *document) error {
	var body serviceBody
	if err := json.Unmarshal(text, &body); err != nil {
		return fieldError(err)
	}
	p := pendingService{source: s, service: Service{Namespace: s.meta.Namespace, Name: s.meta.Name, Selector: body.Spec.Selector}}
	for _, port := range body.Spec.Ports {
		p.service.Ports = append(p.service.Ports, ServicePort{
			Number: port.Port, Target: target(port.TargetPort, port.Port), Name: port.Name, Protocol: port.AppProtocol,
		})
	}
	switch ip := body.Spec.ClusterIP; {
	case ip == "None" || body.Spec.Type == "ExternalName":
	case ip != "":
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("spec.clusterIP: %w", err)
		}
		p.service.ClusterIP = addr
		m.used[addr] = p.owner()
	case m.o.AsWritten:
	case d == nil:
		m.note(s, "it gets no address in a list or in JSON: write it in a YAML document of its own, or give it a spec.clusterIP")
	default:
		p.d = d
	}
	m.services = append(m.services, p)
	return nil
}

// owner is the owner of the Service's address.
func (p pendingService) owner() string {
	return "Service " + p.service.Namespace + "/" + p.service.Name
}

// target is the targetPort as text; that of a Service without one is its port.
func target(raw json.RawMessage, port uint16) string {
	var number int
	var name string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return strconv.Itoa(int(port))
	case json.Unmarshal(raw, &number) == nil:
		return strconv.Itoa(number)
	case json.Unmarshal(raw, &name) == nil:
		return name
	}
	return ""
}

// addressServices gives addresses to the Services without one.
func (m *maker) addressServices() error {
	for _, p := range m.services {
		key := p.owner()
		if p.d != nil || p.added != nil {
			ip, err := m.address(key, m.o.Services)
			if err != nil {
				return err
			}
			p.service.ClusterIP = ip
			if spec, ok := p.added["spec"].(map[string]any); ok {
				spec["clusterIP"] = ip.String()
			} else {
				p.d.changed = withAddress(p.d.root, ip)
			}
		}
		if p.service.ClusterIP.IsValid() {
			m.plan.addresses[key] = p.service.ClusterIP
		}
		m.plan.Services = append(m.plan.Services, p.service)
	}
	return nil
}

// withAddress is a Service with an address, in which all else is on its line.
func withAddress(t *yamltree.Tree, ip netip.Addr) *yamltree.Tree {
	spec := &yamltree.Tree{Kind: yamltree.Mapping, Line: t.Line}
	if had := t.Get("spec"); had != nil {
		spec.Line = had.Line
		spec.Entries = slices.DeleteFunc(slices.Clone(had.Entries), func(e yamltree.Entry) bool { return e.Key == "clusterIP" })
	}
	address := yamltree.Entry{Key: "clusterIP", Line: spec.Line, Value: &yamltree.Tree{Kind: yamltree.String, Line: spec.Line, Text: ip.String()}}
	spec.Entries = slices.Insert(spec.Entries, 0, address)
	out := &yamltree.Tree{Kind: yamltree.Mapping, Line: t.Line, Entries: slices.Clone(t.Entries)}
	for i, e := range out.Entries {
		if e.Key == "spec" {
			out.Entries[i].Value = spec
			return out
		}
	}
	out.Entries = append(out.Entries, yamltree.Entry{Key: "spec", Line: spec.Line, Value: spec})
	return out
}

// HTTP reports whether the port is not declared to be of another protocol.
func (p ServicePort) HTTP() bool { return !declaresTCP(p.Name, p.Protocol) }

// Selects reports whether a Service has a Pod as endpoint.
func (s Service) Selects(p Pod) bool {
	if s.Namespace != p.Namespace || len(s.Selector) == 0 {
		return false
	}
	for k, v := range s.Selector {
		if p.Labels[k] != v {
			return false
		}
	}
	return true
}

// declarePorts adds the ports to which Services send to those of the Pods' first containers: a stand-in listens there.
func (m *maker) declarePorts() {
	for i := range m.plan.Pods {
		p := &m.plan.Pods[i]
		if p.Router || len(p.Containers) == 0 {
			continue
		}
		for _, s := range m.plan.Services {
			if s.Selects(*p) {
				for _, port := range s.Ports {
					p.declare(port)
				}
			}
		}
	}
}

// declare takes over what a Service says of the protocol of a port, and adds the port if it is a number that no
// container declares.
func (p *Pod) declare(port ServicePort) {
	http := port.HTTP()
	number, err := strconv.ParseUint(port.Target, 10, 16)
	for c := range p.Containers {
		for i := range p.Containers[c].Ports {
			have := &p.Containers[c].Ports[i]
			if err == nil && have.Number == uint16(number) || err != nil && have.Name == port.Target {
				have.HTTP = http
				return
			}
		}
	}
	if err == nil && number > 0 {
		p.Containers[0].Ports = append(p.Containers[0].Ports, Port{Number: uint16(number), HTTP: http})
	}
}
