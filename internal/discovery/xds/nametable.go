package xds

import (
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// nameTableLabel is the name of the name tables' type in metrics and nonces.
const nameTableLabel = "nds"

// NameTable is the names that the agents of a class resolve. It is immutable.
type NameTable struct {
	// Version identifies the contents.
	Version  string
	resource *anypb.Any
}

// NewNameTable returns a table of an encoded message of mesh.NameTableType, which must not be changed any more.
func NewNameTable(version string, body []byte) *NameTable {
	return &NameTable{Version: version, resource: &anypb.Any{TypeUrl: mesh.NameTableType, Value: body}}
}

// Body is the encoded message.
func (t *NameTable) Body() []byte {
	if t == nil {
		return nil
	}
	return t.resource.Value
}

// noNames is the table of classes that have none: agents that nevertheless ask for one forward every query. Agents of Istio
// answer SERVFAIL to every query until they have a table. [control-plane 1.6.6] [agent N3]
var noNames = NewNameTable("empty", nil)

// nameStream is what one stream's agent has of its name table. It is not a Type: Envoy does not know it, and a proxy without
// it has everything applied.
type nameStream struct {
	wanted  bool
	current *NameTable // of the newest view
	nonces  uint64
	sent    string // version of the last response
	open    bool   // it is not acknowledged yet
}

func (n *nameStream) nonce() string { return nameTableLabel + "-" + strconv.FormatUint(n.nonces, 10) }

// nameTable handles a request for the table.
func (s *stream) nameTable(r Request) error {
	n := &s.names
	switch {
	case r.Unsubscribe.n > 0 && r.Names.n == 0:
		*n = nameStream{nonces: n.nonces, current: n.current}
		return nil
	case r.Nonce == "":
		n.wanted, n.sent, n.open = true, "", false
	case !n.open || r.Nonce != n.nonce():
		return nil // it answers an older response
	case r.Refused:
		n.open = false
		s.server.metrics.allRejects.WithLabelValues(nameTableLabel).Inc()
		s.logRefused("agent refused the table of names", "connection", s.conn.status.ID, "version", n.sent, "message", truncate([]byte(r.Message), maxMessage))
	default:
		n.open = false
	}
	return s.sendNames()
}

// sendNames sends the current table, unless the agent did not ask for it, was sent it, or has not answered the last response.
func (s *stream) sendNames() error {
	n, t := &s.names, s.names.current
	if t == nil {
		t = noNames
	}
	if !n.wanted || n.open || n.sent == t.Version {
		return nil
	}
	n.nonces++
	n.sent, n.open = t.Version, true
	var m any = &discoveryv3.DiscoveryResponse{VersionInfo: t.Version, TypeUrl: mesh.NameTableType, Nonce: n.nonce(), Resources: []*anypb.Any{t.resource}}
	if s.conn.status.Delta {
		// One resource without a name, as Istio sends it.
		m = &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: t.Version, TypeUrl: mesh.NameTableType, Nonce: n.nonce(),
			Resources: []*discoveryv3.Resource{{Version: t.Version, Resource: t.resource}}}
	}
	if err := s.wire.SendMsg(m); err != nil {
		s.server.metrics.pushes.WithLabelValues(nameTableLabel + "_senderr").Inc()
		return err
	}
	s.server.metrics.pushes.WithLabelValues(nameTableLabel).Inc()
	return nil
}
