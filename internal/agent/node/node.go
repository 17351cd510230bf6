// Package node works out who a proxy is and how it is configured, from what its surroundings say.
//
// Build is a pure function: the environment, the flags, the contents of the files and the
// addresses of the interfaces come in one value, and the facts of the proxy go out. It asks
// no cloud for metadata and no resolver for a name, so nothing outside the machine can hold
// up a start. The agent's wiring collects the files and addresses.
// Names and precedence are Istio's [agent 1.3, 1.4, 1.5, B5–B7].
package node

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// ContractVersion is what a node says in ISTIO_VERSION where nothing else is set: the
// Istio release whose node contract this agent speaks. Control planes gate features on it.
const ContractVersion = "1.31.1"

// Input is everything that decides a node. The zero value of each field means "absent".
type Input struct {
	Role  mesh.Role
	Flags Flags
	// Env is the process environment, one value a name.
	Env      map[string]string
	Hostname string
	// MeshFile, Labels and Annotations are whole files; nil where a file does not exist.
	// Labels and Annotations have the downward API's form: key="value", one a line.
	MeshFile, Labels, Annotations []byte
	// ConfigFile is a file of proxy configuration, which counts as PROXY_CONFIG does and goes over it.
	ConfigFile []byte
	// CPULimit is how many CPUs this process may use, rounded up, where ISTIO_CPU_LIMIT does not say it; 0 for no limit.
	CPULimit int
	// Interfaces are the machine's network interfaces in their order.
	Interfaces []Interface
}

// Flags are the command-line values that decide a node or its configuration.
// Empty and 0 mean that the flag was not given.
type Flags struct {
	Domain, ServiceCluster, OutlierLogPath, TemplateFile string
	// Concurrency is Envoy's number of workers.
	Concurrency int
	STSPort     int
}

// Interface is a network interface and its addresses.
type Interface struct {
	Name  string
	Addrs []netip.Addr
}

// Facts are what is known of a node. They share no memory with the Input.
type Facts struct {
	ID       mesh.NodeID
	Cluster  string
	Locality mesh.Locality
	// Metadata is ready for the bootstrap: strings, float64, bool, []any and map[string]any.
	Metadata map[string]any
	// IPs are the node's addresses, the primary one first; at least one.
	IPs []netip.Addr
	// Identity is who the node claims to be; the CA decides from the token.
	Identity mesh.Identity
	// Config is the effective proxy configuration and ConfigSource the inputs it came from.
	Config       *meshv1.ProxyConfig
	ConfigSource []string
	// Env is the environment with proxyMetadata beneath it: one namespace for users.
	Env                 map[string]string
	Labels, Annotations map[string]string
	// Warnings are sentences for the start log.
	Warnings []string
}

// Build decides the node. Its errors name the input that cannot be read, or say that the
// node has no address; both are mistakes of configuration.
func Build(in Input) (*Facts, error) {
	f := &Facts{}
	var err error
	if f.Labels, err = parseDownward(in.Labels); err != nil {
		return nil, fmt.Errorf("read pod labels: %w", err)
	}
	if f.Annotations, err = parseDownward(in.Annotations); err != nil {
		return nil, fmt.Errorf("read pod annotations: %w", err)
	}
	if err := f.configure(in); err != nil {
		return nil, err
	}
	f.Env = overlay(f.Config.GetProxyMetadata(), in.Env)
	if err := f.address(in); err != nil {
		return nil, err
	}
	f.identify(in)
	if err := f.describe(in); err != nil {
		return nil, err
	}
	f.warn()
	f.Cluster = serviceCluster(f)
	f.Locality = locality(f)
	return f, nil
}

// overlay returns a map of both, top's values winning.
func overlay(bottom, top map[string]string) map[string]string {
	out := make(map[string]string, len(bottom)+len(top))
	for k, v := range bottom {
		out[k] = v
	}
	for k, v := range top {
		out[k] = v
	}
	return out
}

// address collects the node's addresses: INSTANCE_IP first, then the interfaces',
// without those that no other node could reach.
func (f *Facts) address(in Input) error {
	seen := map[netip.Addr]bool{}
	add := func(ip netip.Addr) {
		ip = ip.Unmap().WithZone("")
		if !seen[ip] {
			seen[ip] = true
			f.IPs = append(f.IPs, ip)
		}
	}
	for _, s := range mesh.List(f.Env["INSTANCE_IP"]) {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("read environment INSTANCE_IP: %q is no IP address", s)
		}
		add(ip)
	}
	excluded := map[string]bool{}
	for _, name := range mesh.List(f.Annotations["traffic.sidecar.istio.io/excludeInterfaces"]) {
		excluded[name] = true
	}
	for _, i := range in.Interfaces {
		for _, ip := range i.Addrs {
			if excluded[i.Name] || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
				continue
			}
			add(ip)
		}
	}
	if len(f.IPs) == 0 {
		return errors.New("find the node's address: no interface has one besides loopback; set INSTANCE_IP")
	}
	return nil
}

// identify fills the node id and the identity.
func (f *Facts) identify(in Input) {
	name := first(f.Env["POD_NAME"], in.Hostname, "unnamed")
	ns := first(f.Env["POD_NAMESPACE"], "default")
	f.ID = mesh.NodeID{
		Role:   in.Role,
		IP:     f.IPs[0],
		ID:     name + "." + ns,
		Domain: first(in.Flags.Domain, ns+".svc.cluster.local"),
	}
	f.Identity = mesh.Identity{
		TrustDomain:    first(f.Env["TRUST_DOMAIN"], mesh.DefaultTrustDomain),
		Namespace:      ns,
		ServiceAccount: first(f.Env["SERVICE_ACCOUNT"], "default"),
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

// warn tells of what is asked for and will not happen.
func (f *Facts) warn() {
	const plain = ":15010"
	if f.Config.GetControlPlaneAuthPolicy() == meshv1.AuthenticationPolicy_NONE && !strings.HasSuffix(f.Config.GetDiscoveryAddress(), plain) {
		f.Warnings = append(f.Warnings, "controlPlaneAuthPolicy NONE: discovery is spoken to in plaintext at port 15010 only, and over TLS at "+f.Config.GetDiscoveryAddress())
	}
}

// serviceCluster names the proxy's own service: what the user said, else what its labels
// and its workload suggest. [agent F5]
func serviceCluster(f *Facts) string {
	name, ns := f.Config.GetServiceCluster(), f.Identity.Namespace
	if name != "" && name != defaultServiceCluster {
		return name
	}
	workload := mesh.Text(f.Metadata["WORKLOAD_NAME"])
	app := first(f.Labels["app"], workload, defaultServiceCluster)
	canonical := first(f.Labels["service.istio.io/canonical-name"], f.Labels["app.kubernetes.io/name"], app)
	switch f.Config.GetTracingServiceName() {
	case meshv1.ProxyConfig_CANONICAL_NAME_ONLY:
		return canonical
	case meshv1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
		return canonical + "." + ns
	default:
		return app + "." + ns
	}
}

// locality reads where the node runs from its labels, as the platform or the user put them.
func locality(f *Facts) mesh.Locality {
	const key = "topology.istio.io/locality"
	if s := first(f.Labels[key], f.Annotations[key], f.Labels["istio-locality"]); s != "" {
		return mesh.ParseLocality(s)
	}
	return mesh.Locality{
		Region:  f.Labels["topology.kubernetes.io/region"],
		Zone:    f.Labels["topology.kubernetes.io/zone"],
		Subzone: f.Labels["topology.istio.io/subzone"],
	}
}

// parseDownward reads the downward API's text: key="value" a line, the value quoted as Go
// quotes. Empty lines are passed over.
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
			return nil, fmt.Errorf("line %d: the value of %s is not a quoted string", n+1, k)
		}
		out[strings.TrimSpace(k)] = v
	}
	return out, nil
}
