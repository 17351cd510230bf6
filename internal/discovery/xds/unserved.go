package xds

import (
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Clients ask for types that other control planes serve, and some wait for the answer until their user gives up. So they
// are told at once that there is nothing.

// unservedPrefix begins the nonces of these answers. The rest stands for the names that were asked for, so that
// nothing is remembered of them.
const unservedPrefix = "none-"

// maxUnknownTypes bounds the unknown type URLs that are remembered to be logged once.
const maxUnknownTypes = 16

// healthURL is the type of health reports, to which agents expect no answer. [agent X9]
const healthURL = "type.googleapis.com/istio.v1.HealthInformation"

// isAnswered reports whether a request for a type that is not served is answered.
func isAnswered(url string) bool { return url != healthURL }

// answerUnserved answers a request for a type that is not served: the state of the world is empty, and the names of
// an incremental request are removed. [control-plane 1.6.21]
func (s *stream) answerUnserved(m incoming) error {
	s.logUnserved(m.url)
	if !isAnswered(m.url) || !asksForUnserved(m.req, s.delta) {
		return s.account.charge(-m.cost)
	}
	nonce := unservedNonce(m.req.Names)
	var answer any = &discoveryv3.DiscoveryResponse{VersionInfo: unservedPrefix, TypeUrl: m.url, Nonce: nonce}
	if s.delta {
		r := &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: unservedPrefix, TypeUrl: m.url, Nonce: nonce}
		for name := range m.req.Names.plain() {
			r.RemovedResources = append(r.RemovedResources, string(name))
		}
		answer = r
	}
	if err := s.wire.SendMsg(answer); err != nil {
		return err
	}
	return s.account.charge(-m.cost)
}

// asksForUnserved reports whether a request asks for something, and does not only acknowledge or unsubscribe.
func asksForUnserved(r Request, delta bool) bool {
	switch {
	case delta && r.Names.n > 0:
		return true
	case delta:
		return r.Nonce == "" && r.Unsubscribe.n == 0
	}
	return r.Nonce != unservedNonce(r.Names)
}

func unservedNonce(names nameList) string {
	return unservedPrefix + strconv.Itoa(names.n) + "-" + strconv.FormatUint(names.order, 16)
}

// logUnserved logs each type once for a stream.
func (s *stream) logUnserved(url string) {
	if s.unknownTypes[url] || len(s.unknownTypes) == maxUnknownTypes {
		return
	}
	if s.unknownTypes == nil {
		s.unknownTypes = map[string]bool{}
	}
	s.unknownTypes[url] = true
	s.log.Info("proxy asks for a type that is not served", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
		"type", url, "answered", isAnswered(url))
}
