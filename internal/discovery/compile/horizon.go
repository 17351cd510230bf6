package compile

import (
	"math"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// horizon is what a client sees of the endpoints in networks that it reaches through gateways only.
type horizon struct {
	gateways []model.NetworkGateway // of all networks
	far      []farEndpoint
	// scale is what weights are multiplied by, so that they can be divided among gateways.
	scale uint64
}

// farEndpoint is an endpoint of another network, and the gateways that it is reached through.
type farEndpoint struct {
	endpoint cluster.Endpoint
	through  []model.NetworkGateway
}

// maxScale bounds the scale: networks with more than ten gateways may get weights that are rounded.
const maxScale = 2520

// between returns the gateways between a client's network and an instance; none if it is reached directly: in the same
// network, in one that is not known, or in one without gateways.
func (h *horizon) between(network string, i *model.Instance) []model.NetworkGateway {
	if network == "" || i.Network == "" || i.Network == network {
		return nil
	}
	return model.GatewaysOf(h.gateways, i.Network, i.ClusterID)
}

func (h *horizon) add(e cluster.Endpoint, through []model.NetworkGateway) {
	h.far = append(h.far, farEndpoint{e, through})
	n := uint64(len(through))
	h.scale = max(h.scale, 1)
	if common := h.scale / gcd(h.scale, n) * n; common <= maxScale {
		h.scale = common
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// join adds gateways to the endpoints that are reached directly: of each locality one for each address, with the sum of
// the weights of the endpoints of that locality behind it.
func (h *horizon) join(direct []cluster.Endpoint) []cluster.Endpoint {
	if len(h.far) == 0 {
		return direct
	}
	for i := range direct {
		direct[i].Weight = clamp(uint64(direct[i].Weight) * h.scale)
	}
	type at struct {
		locality mesh.Locality
		priority uint32
		address  string
		port     uint32
	}
	index := map[at]int{}
	for _, f := range h.far {
		share := max(uint64(max(f.endpoint.Weight, 1))*h.scale/uint64(len(f.through)), 1)
		for _, g := range f.through {
			k := at{f.endpoint.Locality, f.endpoint.Priority, g.Address, g.Port}
			i, known := index[k]
			if !known {
				i = len(direct)
				index[k] = i
				direct = append(direct, cluster.Endpoint{Address: g.Address, Port: g.Port, Locality: f.endpoint.Locality, Priority: f.endpoint.Priority, Network: f.endpoint.Network, TLS: true, Gateway: true})
			}
			direct[i].Weight = clamp(uint64(direct[i].Weight) + share)
		}
	}
	return direct
}

// mergeGateways merges those gateways of one priority that have the same address: Envoy uses one of them only.
func mergeGateways(list []cluster.Endpoint) (out []cluster.Endpoint) {
	type at struct {
		priority uint32
		address  string
		port     uint32
	}
	index := map[at]int{}
	for _, e := range list {
		if !e.Gateway {
			out = append(out, e)
			continue
		}
		k := at{e.Priority, e.Address, e.Port}
		if i, known := index[k]; known {
			out[i].Weight = clamp(uint64(out[i].Weight) + uint64(e.Weight))
			continue
		}
		index[k] = len(out)
		out = append(out, e)
	}
	return out
}

// clamp returns a weight that Envoy accepts.
func clamp(n uint64) uint32 { return uint32(min(n, math.MaxUint32>>8)) }
