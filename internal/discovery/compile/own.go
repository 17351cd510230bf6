package compile

import (
	"net/netip"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// ownEndpoints returns the load assignment of a proxy's own workload: the endpoints of its services that have the same label as
// the proxy, each once. Envoy compares the zones of these with those of a destination, and connects to none of them. [agent E7]
func (c *Compiler) ownEndpoints(r *incr.Reader, k Key) []byte {
	w := k.Workload.Value()
	label, value, _ := strings.Cut(w.Peers, "=")
	var out []cluster.Endpoint
	have := map[string]bool{}
	for _, p := range model.InboundPorts(w) {
		for _, i := range c.model.Instances(r, p.Service) {
			port, ok := i.Ports[p.Port]
			if _, err := netip.ParseAddr(i.Address); err != nil || !ok || have[i.Address] || i.Labels[label] != value {
				continue
			}
			have[i.Address] = true
			out = append(out, cluster.Endpoint{Address: i.Address, Port: port, Locality: i.Locality})
		}
	}
	return marshal.MustEncodedAny(cluster.Assignment(k.Name, renumberPriorities(out)))
}
