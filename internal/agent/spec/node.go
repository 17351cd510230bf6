package spec

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The Pod's files, relative to the agent's working directory. [agent P22]
const (
	labelsFile      = "./etc/istio/pod/labels"
	annotationsFile = "./etc/istio/pod/annotations"
)

// pod reads the Pod's labels and annotations from their files.
func (b *builder) pod() error {
	n := &b.s.Node
	for _, f := range []struct {
		what, path string
		to         *map[string]string
	}{{"labels", labelsFile, &n.Labels}, {"annotations", annotationsFile, &n.Annotations}} {
		text, err := b.file(f.path)
		if err != nil {
			return err
		}
		if *f.to, err = parseDownward(text); err != nil {
			return fmt.Errorf("read pod %s %s: %w", f.what, f.path, err)
		}
	}
	return nil
}

// address collects the node's addresses: INSTANCE_IP first, then those of the interfaces,
// without addresses that other nodes cannot reach.
func (b *builder) address() error {
	n := &b.s.Node
	seen := map[netip.Addr]bool{}
	add := func(ip netip.Addr) {
		ip = ip.Unmap().WithZone("")
		if !seen[ip] {
			seen[ip] = true
			n.IPs = append(n.IPs, ip)
		}
	}
	for _, s := range b.set.List("INSTANCE_IP") {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			b.set.Fail("INSTANCE_IP", "invalid address %q: want an IP address", s)
			return nil
		}
		add(ip)
	}
	excluded := map[string]bool{}
	for _, name := range mesh.List(n.Annotations["traffic.sidecar.istio.io/excludeInterfaces"]) {
		excluded[name] = true
	}
	for _, i := range b.in.Host.Interfaces {
		for _, ip := range i.Addrs {
			if excluded[i.Name] || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
				continue
			}
			add(ip)
		}
	}
	if len(n.IPs) == 0 {
		return errors.New("find the node's address: no interface has one besides loopback: set INSTANCE_IP")
	}
	b.identify()
	return nil
}

// identify fills in the node id and the identity.
func (b *builder) identify() {
	n := &b.s.Node
	name := b.set.TextOr("POD_NAME", first(b.in.Host.Hostname, "unnamed"))
	ns := b.set.Text("POD_NAMESPACE")
	n.ID = mesh.NodeID{
		Role:   b.in.Role,
		IP:     n.IPs[0],
		ID:     name + "." + ns,
		Domain: b.set.TextOr("domain", ns+".svc.cluster.local"),
	}
	n.Identity = mesh.Identity{
		TrustDomain:    b.set.Text("TRUST_DOMAIN"),
		Namespace:      ns,
		ServiceAccount: b.set.Text("SERVICE_ACCOUNT"),
	}
}

// first returns the first string that is not empty.
func first(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

// serviceCluster returns the name of the proxy's own service: the flag's, else that of the configuration if it is
// not the default, else a name made from the labels and the workload. [agent F5]
func (b *builder) serviceCluster() string {
	n, config := &b.s.Node, b.s.Config
	name, ns := config.GetServiceCluster(), n.Identity.Namespace
	if b.set.TextOr("serviceCluster", "") != "" || name != "" && name != defaultServiceCluster {
		return name
	}
	workload := mesh.Text(n.Metadata["WORKLOAD_NAME"])
	app := first(n.Labels["app"], workload, defaultServiceCluster)
	canonical := first(n.Labels["service.istio.io/canonical-name"], n.Labels["app.kubernetes.io/name"], app)
	switch config.GetTracingServiceName() {
	case meshv1.ProxyConfig_CANONICAL_NAME_ONLY:
		return canonical
	case meshv1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
		return canonical + "." + ns
	default:
		return app + "." + ns
	}
}

// locality returns the node's locality from the labels that the platform or the user set. [agent B6]
func (b *builder) locality() mesh.Locality {
	const key = "topology.istio.io/locality"
	n := &b.s.Node
	if s := first(n.Labels[key], n.Annotations[key], n.Labels["istio-locality"]); s != "" {
		return mesh.ParseLocality(s)
	}
	return mesh.Locality{
		Region:  n.Labels["topology.kubernetes.io/region"],
		Zone:    n.Labels["topology.kubernetes.io/zone"],
		Subzone: n.Labels["topology.istio.io/subzone"],
	}
}

// parseDownward reads the downward API's format: key="value", one per line, the value quoted as in
// Go. Empty lines are skipped.
func parseDownward(data []byte) (map[string]string, error) {
	out := map[string]string{}
	for n, line := range strings.Split(string(data), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		k, quoted, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("line %d: want key=\"value\"", n+1)
		}
		v, err := unquote(strings.TrimSpace(quoted))
		if err != nil {
			return nil, fmt.Errorf("line %d: invalid value of %s: want a quoted string", n+1, k)
		}
		out[strings.TrimSpace(k)] = v
	}
	return out, nil
}

// unquote reads a quoted value; a value without quotes is returned unchanged.
func unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	return strconv.Unquote(s)
}
