package podplan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// gateway is a Gateway that may need a router.
type gateway struct {
	source
	selector map[string]string
	*gatewayPorts
	// own is set for those of the Gateway API, which have a router of their own.
	own bool
}

// gatewayPorts are the ports of listeners.
type gatewayPorts struct {
	ports []uint16
	// schemes has "https" for the ports that speak TLS, and "" for those that speak neither TLS nor HTTP.
	schemes map[uint16]string
}

// installed are the routers that an installation of Istio has, by the selector that its documentation uses.
var installed = []string{"ingressgateway", "egressgateway"}

// gatewayNamespace is where they are.
const gatewayNamespace = "istio-system"

func (m *maker) readGateway(s source, group string, text []byte) error {
	g := gateway{source: s, gatewayPorts: &gatewayPorts{schemes: map[uint16]string{}}}
	switch group {
	case "networking.istio.io":
		var body struct {
			Spec struct {
				Selector map[string]string `json:"selector"`
				Servers  []struct {
					Port struct {
						Number   uint16 `json:"number"`
						Protocol string `json:"protocol"`
					} `json:"port"`
				} `json:"servers"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(text, &body); err != nil {
			return fieldError(err)
		}
		g.selector = body.Spec.Selector
		for _, server := range body.Spec.Servers {
			g.add(server.Port.Number, server.Port.Protocol)
		}
	case "gateway.networking.k8s.io":
		var body struct {
			Spec struct {
				GatewayClassName string `json:"gatewayClassName"`
				Listeners        []struct {
					Port     uint16 `json:"port"`
					Protocol string `json:"protocol"`
				} `json:"listeners"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(text, &body); err != nil {
			return fieldError(err)
		}
		if body.Spec.GatewayClassName != "istio" {
			return nil
		}
		g.own = true
		for _, l := range body.Spec.Listeners {
			g.add(l.Port, l.Protocol)
		}
	default:
		return nil
	}
	m.gateways = append(m.gateways, g)
	return nil
}

// listenerSet has the ports that a ListenerSet adds to a Gateway of the Gateway API, which is named as "namespace/name".
type listenerSet struct {
	gateway string
	gatewayPorts
}

func (m *maker) readListenerSet(s source, group string, text []byte) error {
	if group != "gateway.networking.k8s.io" {
		return nil
	}
	var body struct {
		Spec struct {
			ParentRef struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
			} `json:"parentRef"`
			Listeners []struct {
				Port     uint16 `json:"port"`
				Protocol string `json:"protocol"`
			} `json:"listeners"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return fieldError(err)
	}
	parent := body.Spec.ParentRef
	set := listenerSet{cmp.Or(parent.Namespace, s.meta.Namespace) + "/" + parent.Name, gatewayPorts{schemes: map[uint16]string{}}}
	for _, l := range body.Spec.Listeners {
		set.add(l.Port, l.Protocol)
	}
	m.sets = append(m.sets, set)
	return nil
}

// joinSets adds the ports of ListenerSets to their Gateways. Whether the Gateways let them in, the control plane decides: a router does not listen at a
// port that it has no listener for.
func (m *maker) joinSets() {
	for _, g := range m.gateways {
		for _, set := range m.sets {
			if g.own && set.gateway == g.meta.Namespace+"/"+g.meta.Name {
				g.join(set.gatewayPorts)
			}
		}
	}
}

// ownLabels are those of the router of a Gateway of the Gateway API.
func (g gateway) ownLabels() map[string]string {
	return map[string]string{"gateway.networking.k8s.io/gateway-name": g.meta.Name, "istio.io/gateway-name": g.meta.Name}
}

// add adds a port, which speaks a protocol.
func (g *gatewayPorts) add(port uint16, protocol string) {
	g.ports = append(g.ports, port)
	switch strings.ToUpper(protocol) {
	case "HTTPS", "TLS":
		g.schemes[port] = "https"
	case "TCP", "MONGO", "MYSQL", "REDIS", "UDP":
		g.schemes[port] = ""
	}
}

// join adds the ports of others, which speak what they did before if they are there already.
func (g *gatewayPorts) join(others gatewayPorts) {
	for _, port := range others.ports {
		if slices.Contains(g.ports, port) {
			continue
		}
		g.ports = append(g.ports, port)
		if scheme, given := others.schemes[port]; given {
			g.schemes[port] = scheme
		}
	}
}

// Scheme is that of URLs of a port of a router, by the Gateways that select it: "http", "https", or "" for a port that
// speaks neither.
func (p *Plan) Scheme(router Pod, port uint16) string {
	for _, g := range p.gateways {
		selected := g.selector
		if g.own {
			selected = g.ownLabels()
		}
		scheme, given := g.schemes[port]
		if given && (!g.own || g.meta.Namespace == router.Namespace) && !slices.ContainsFunc(slices.Collect(maps.Keys(selected)), func(name string) bool { return router.Labels[name] != selected[name] }) {
			return scheme
		}
	}
	return "http"
}

// addGateways adds the routers that Gateways select and the directory does not have: those of an installation of
// Istio, and one for each Gateway of the Gateway API, as in a cluster.
func (m *maker) addGateways() {
	m.joinSets()
	for _, name := range installed {
		labels := map[string]string{"app": "istio-" + name, "istio": name}
		var ports []uint16
		for _, g := range m.gateways {
			if !g.own && maps.Equal(g.selector, map[string]string{"istio": name}) {
				ports = append(ports, g.ports...)
			}
		}
		if len(ports) > 0 && !m.hasRouter(labels) {
			m.addRouter(gatewayNamespace, "istio-"+name, labels, ports)
		}
	}
	for _, g := range m.gateways {
		if name := g.meta.Name + "-istio"; g.own && len(g.ports) > 0 {
			m.addRouter(g.meta.Namespace, name, g.ownLabels(), g.ports)
		}
	}
	for i := range m.pending {
		m.pending[i].injected = m.injected(m.pending[i])
	}
}

// hasRouter reports whether a workload has the labels of a router.
func (m *maker) hasRouter(labels map[string]string) bool {
	return slices.ContainsFunc(m.pending, func(w workload) bool {
		return w.template.Metadata.Labels["istio"] == labels["istio"]
	})
}

// addRouter adds a Pod with a router, and its Service with an address.
func (m *maker) addRouter(namespace, name string, labels map[string]string, ports []uint16) {
	w := workload{source: source{kind: "Deployment", meta: meta{Namespace: namespace, Name: name}}, replicas: 1}
	w.template.Metadata.Labels = labels
	w.template.Metadata.Annotations = map[string]string{"inject.istio.io/templates": gatewayTemplate}
	w.template.Spec.ServiceAccountName = name
	m.pending = append(m.pending, w)
	p := pendingService{source: source{kind: "Service", meta: w.meta}, service: Service{Namespace: namespace, Name: name, Selector: labels}}
	var list []any
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		p.service.Ports = append(p.service.Ports, ServicePort{Number: port, Target: fmt.Sprint(port)})
		list = append(list, map[string]any{"name": fmt.Sprintf("port-%d", port), "port": port, "targetPort": port})
	}
	p.added = map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name, "namespace": namespace, "labels": labels},
		"spec": map[string]any{"selector": labels, "ports": list},
	}
	m.services = append(m.services, p)
	m.plan.Notes = append(m.plan.Notes, Note{Text: fmt.Sprintf("added %s/%s, a router that Gateways of the directory ask for and no workload is", namespace, name)})
}
