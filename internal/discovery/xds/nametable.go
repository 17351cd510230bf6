package xds

import (
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// nameTableURL is the type of the table from which an agent answers captured DNS. Agents of
	// Istio ask for it on the proxy's stream, answer SERVFAIL to every question until it has come,
	// and pass on what is not in it. [control-plane 1.6.6] [agent N2, N3]
	nameTableURL = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	// nameTableVersion is that of the only table there is, which is empty: all names are the
	// cluster's own name servers' to know.
	nameTableVersion = "empty"
	nameTableLabel   = "nds"
)

// nameTable answers a request for the table. It is not a Type: Envoy does not know it, no view
// has it, and a proxy without it has everything applied.
func (s *stream) nameTable(r Request) error {
	if r.Refused {
		s.server.metrics.allRejects.WithLabelValues(nameTableLabel).Inc()
		s.server.log.Warn("agent refused the table of names", "connection", s.conn.status.ID, "message", truncate([]byte(r.Message), maxMessage))
	}
	if r.Nonce != "" || r.Unsubscribe.n > 0 && r.Names.n == 0 {
		return nil // it has the table, or wants it no more
	}
	s.tables++
	nonce := nameTableLabel + "-" + strconv.FormatUint(s.tables, 10)
	// One resource without a name, as Istio sends it; its message has no fields set.
	table := &anypb.Any{TypeUrl: nameTableURL}
	var m any = &discoveryv3.DiscoveryResponse{VersionInfo: nameTableVersion, TypeUrl: nameTableURL, Nonce: nonce, Resources: []*anypb.Any{table}}
	if s.conn.status.Delta {
		m = &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: nameTableVersion, TypeUrl: nameTableURL, Nonce: nonce,
			Resources: []*discoveryv3.Resource{{Version: nameTableVersion, Resource: table}}}
	}
	if err := s.wire.SendMsg(m); err != nil {
		s.server.metrics.pushes.WithLabelValues(nameTableLabel + "_senderr").Inc()
		return err
	}
	s.server.metrics.pushes.WithLabelValues(nameTableLabel).Inc()
	return nil
}
