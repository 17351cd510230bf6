package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The types by which tools such as istioctl ask a control plane about itself. They are no Types: no
// proxy is configured by them, and a stream that begins with one is not a proxy's. [control-plane 1.6.10]
const (
	// debugPageURL is a page of /debug; the one name of the request is that of the page, and its query.
	debugPageURL = "istio.io/debug"
	// debugSyncURL has a ClientConfig for each proxy.
	debugSyncURL = debugPageURL + "/syncz"
	// debugDumpURL is the config dump of the proxy that the one name of the request says.
	debugDumpURL = debugPageURL + "/config_dump"
	// connectionsURL has a Node for each proxy; istioctl of before 1.13 asks for it.
	connectionsURL = "istio.io/connections"
)

// Introspection says who may ask a server about itself over xDS, and has the answers that the server
// does not know. Its functions may be called from many goroutines.
type Introspection struct {
	// Namespace is that of the control plane, whose identities may ask.
	Namespace string
	// Open allows everybody to ask.
	Open bool
	// Instance identifies the process, in the form that istioctl reads: JSON.
	Instance string
	// View returns the view of a connection, nil if there is none.
	View func(connection string) *View
	// Page returns a page of /debug by its name and query, such as "edsz?proxyID=a.b", or a text that
	// says why there is none.
	Page func(ctx context.Context, name string) []byte
}

// Introspect makes the server answer questions about itself. Call it before serving; without it they
// are refused.
func (s *Server) Introspect(i Introspection) { s.debug = i }

// isDebugType reports whether a type URL asks about the control plane.
func isDebugType(url string) bool {
	return url == debugPageURL || strings.HasPrefix(url, debugPageURL+"/") || url == connectionsURL
}

// allow returns an error if a caller may not ask.
func (i *Introspection) allow(who caller) error {
	switch {
	case i.Page == nil:
		return status.Error(codes.Unimplemented, debugPageURL+" is not served")
	case i.Open:
		return nil
	case who.proven && who.identity.Namespace == i.Namespace:
		return nil
	case who.proven:
		return status.Errorf(codes.PermissionDenied, "%s may not ask for %s: identities of namespace %s may", who.identity, debugPageURL, i.Namespace)
	}
	if ip, err := netip.ParseAddr(who.address); err == nil && mesh.IsLocalSource(ip) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s is served in plaintext to this host only: ask on the secure port, as an identity of namespace %s", debugPageURL, i.Namespace)
}

// debugAnswer is the last answer of one type on a stream.
type debugAnswer struct {
	nonce string
	names []string
}

// serveDebug serves a stream whose first request asks about the control plane. Its node is not read,
// since only the caller decides what is answered; it is not a proxy's, so it is in no list of proxies.
func (s *Server) serveDebug(st *stream, first incoming) error {
	if err := s.debug.allow(st.caller); err != nil {
		return err
	}
	if err := st.account.identify("of "+debugPageURL+", "+st.caller.text, st.caller.text); err != nil {
		return err
	}
	first.node = nil
	st.rest <- nil
	for m, err := first, error(nil); ; m, err = st.next(nil) {
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && !isDebugType(m.url) {
			err = &refusal{codes.InvalidArgument, reasonRequest, fmt.Sprintf("type %.200q on a stream of %s: open another stream for the resources of a proxy", m.url, debugPageURL)}
		}
		if err == nil {
			err = st.answerDebug(m)
		}
		if err != nil {
			return err
		}
	}
}

// answerDebug answers one request about the control plane. The answer to the last nonce is an
// acknowledgement; istioctl sends a nonce of its own with its first request.
func (s *stream) answerDebug(m incoming) error {
	if err := s.server.debug.allow(s.caller); err != nil {
		return err
	}
	names := m.req.Names.strings()
	if m.url != debugPageURL && m.url != debugDumpURL {
		names = nil // the answer is the same for all
	}
	last, again := s.debugged[m.url]
	if again && m.req.Nonce == last.nonce && (m.req.Refused || s.delta && len(names) == 0 || slices.Equal(names, last.names)) {
		return s.account.charge(-m.cost)
	}
	resources, err := s.server.debugResources(s.wire.Context(), m)
	if err != nil {
		return err
	}
	s.answers++
	nonce := "debug-" + strconv.FormatUint(s.answers, 10)
	if s.debugged == nil {
		s.debugged = map[string]debugAnswer{}
	}
	s.debugged[m.url] = debugAnswer{nonce: nonce, names: names}
	// The identifier belongs to every answer: "istioctl x version" reads nothing else.
	instance := &corev3.ControlPlane{Identifier: s.server.debug.Instance}
	var answer any = &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: nonce, TypeUrl: m.url, Nonce: nonce, Resources: resources, ControlPlane: instance}
	if !s.delta {
		r := &discoveryv3.DiscoveryResponse{VersionInfo: nonce, TypeUrl: m.url, Nonce: nonce, ControlPlane: instance}
		for _, resource := range resources {
			r.Resources = append(r.Resources, resource.Resource)
		}
		answer = r
	}
	if err := s.wire.SendMsg(answer); err != nil {
		return err
	}
	return s.account.charge(-m.cost)
}

// debugResources are the resources of an answer.
func (s *Server) debugResources(ctx context.Context, m incoming) ([]*discoveryv3.Resource, error) {
	switch m.url {
	case debugSyncURL:
		return s.clientConfigs(), nil
	case connectionsURL:
		return s.nodes(), nil
	}
	if m.url != debugPageURL && m.url != debugDumpURL {
		return nil, malformed("type %.200q is not served: want %s, %s or %s", m.url, debugPageURL, debugSyncURL, debugDumpURL)
	}
	if m.req.Names.n != 1 {
		return nil, malformed("%d resource names in a request for %s: want one", m.req.Names.n, m.url)
	}
	name := m.req.Names.strings()[0]
	if m.url == debugPageURL {
		return []*discoveryv3.Resource{{Name: name, Resource: &anypb.Any{TypeUrl: debugPageURL, Value: s.debug.Page(ctx, name)}}}, nil
	}
	var out []*discoveryv3.Resource
	// Without the proxy there are no resources: it may be connected to another instance, which
	// istioctl asks next.
	if c, ok := s.Find(name); ok {
		if v := s.debug.View(c.ID); v != nil {
			for _, part := range Dump(v).Configs {
				out = append(out, &discoveryv3.Resource{Name: part.TypeUrl, Resource: part})
			}
		}
	}
	return out, nil
}

// Find returns the newest connection of a proxy by its name, pod.namespace, or by the id of the
// connection.
func (s *Server) Find(name string) (found Connection, ok bool) {
	for _, c := range s.Connections() {
		if (c.Node.ID == name || c.ID == name) && (!ok || c.Since.After(found.Since)) {
			found, ok = c, true
		}
	}
	return found, ok
}

// clientConfigs says of each proxy what it was sent and what it has acknowledged.
func (s *Server) clientConfigs() []*discoveryv3.Resource {
	var out []*discoveryv3.Resource
	for _, c := range s.Connections() {
		config := &statusv3.ClientConfig{Node: &corev3.Node{Id: c.Node.ID, Metadata: nodeMetadata(&c)}}
		for _, t := range Types() {
			if of, asked := c.Types[t]; asked {
				config.GenericXdsConfigs = append(config.GenericXdsConfigs, c.genericConfig(t, of))
			}
		}
		slices.SortFunc(config.GenericXdsConfigs, func(a, b *statusv3.ClientConfig_GenericXdsConfig) int { return strings.Compare(a.TypeUrl, b.TypeUrl) })
		out = append(out, &discoveryv3.Resource{Name: c.Node.ID, Resource: marshal.MustAny(config)})
	}
	return out
}

func (c *Connection) genericConfig(t Type, of TypeStatus) *statusv3.ClientConfig_GenericXdsConfig {
	g := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: t.URL(), ConfigStatus: c.configStatus(of)}
	if !of.SentAt.IsZero() {
		g.LastUpdated = timestamppb.New(of.SentAt)
	}
	if of.Message != "" {
		g.ErrorState = &adminv3.UpdateFailureState{LastUpdateAttempt: timestamppb.New(of.Rejected), Details: of.Message}
	}
	return g
}

// configStatus is Envoy's term for the state of one type. A proxy that came back with everything that
// it should have was sent nothing and is synchronized.
func (c *Connection) configStatus(of TypeStatus) statusv3.ConfigStatus {
	switch {
	case of.Message != "":
		return statusv3.ConfigStatus_ERROR
	case of.SentNonce == "" && c.Applied == 0:
		return statusv3.ConfigStatus_NOT_SENT
	case of.SentNonce == of.AckedNonce:
		return statusv3.ConfigStatus_SYNCED
	}
	return statusv3.ConfigStatus_STALE
}

// nodes has the node of each proxy.
func (s *Server) nodes() []*discoveryv3.Resource {
	var out []*discoveryv3.Resource
	for _, c := range s.Connections() {
		node := &corev3.Node{Id: c.Node.ID, Metadata: nodeMetadata(&c)}
		// Nodes without it are not listed as proxies.
		node.Metadata.Fields["PROXY_CONFIG"] = structpb.NewStructValue(&structpb.Struct{})
		out = append(out, &discoveryv3.Resource{Name: c.Node.ID, Resource: marshal.MustAny(node)})
	}
	return out
}

// nodeMetadata is what istioctl shows of a proxy's metadata.
func nodeMetadata(c *Connection) *structpb.Struct {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for key, value := range map[string]string{
		"CLUSTER_ID": c.Node.Metadata.ClusterID, "NAMESPACE": c.Node.Namespace(), "ISTIO_VERSION": c.Node.Metadata.IstioVersion,
	} {
		if value != "" {
			out.Fields[key] = structpb.NewStringValue(value)
		}
	}
	return out
}
