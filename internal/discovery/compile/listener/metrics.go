package listener

import (
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	accessdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	upstreamcodecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Metrics are those of a listener's requests and connections. [control-plane 1.11.2]
type Metrics struct {
	// On is set if a provider asks for them.
	On bool
	// Told is set if any listener of the mesh may have metrics: proxies then tell each other about their workloads. It does not depend on
	// the listener's own metrics: a server that counts must not be told lies by the application of a client that does not.
	Told bool
	// Overrides are what differs from Istio's standard, by the metrics' names without istio_.
	Overrides map[string]MetricOverride
}

// MetricOverride is what differs of one metric.
type MetricOverride struct {
	Disabled bool
	// Tags are the labels that differ: a format of access logs for the value, or empty for a label that is removed.
	Tags map[string]string
}

// MaxTag bounds each part of the value of a label that is added, in bytes: it may be what a client sends.
const MaxTag = 256

const (
	// peerNamespace and peerKey are where the listener of a server has what a client's proxy says of its workload.
	peerNamespace, peerKey = "pilothouse.peer", "workload"
	// maxPeer bounds the facts of a peer in a tag, in bytes.
	maxPeer = "512"
	// maxSeries bounds the counters and the histograms of a logger, each: their tags have what peers send.
	maxSeries = 5000
	// messages is how many messages a request of gRPC and its response have had until now. Envoy gives no format for either alone, and
	// a counter cannot be raised by a text of two numbers: it counts requests by both, and the agent multiplies.
	messages = "%FILTER_STATE(" + grpcStats + ":PLAIN)%"
)

// peerField is what a field of a peer's facts may consist of: what names of Kubernetes, and of clusters, have. What it does not
// match is left out, so that no peer can put other characters on a page of metrics.
const peerField = "[0-9A-Za-z_./:-]+"

// peerPattern has all of a header that is valid as its first group, which is empty for any other. It has no Unicode: what
// peers send need not be.
var peerPattern = "^((?:" + peerField + ";){6}" + peerField + `)$|^\C*$`

// own are the facts about the proxy's own workload. They are in the node's metadata: a listener is shared by the proxies of a scope or of a workload class.
const own = "xds.node.metadata." + mesh.WorkloadFactsKey

// measured reports whether the proxy has what the metrics need.
func (e Env) measured() bool { return e.Metrics.On && e.Caps.Has(mesh.Metrics) }

// tells reports whether the proxy tells others about its workload, and hears what they tell.
func (e Env) tells() bool { return e.Metrics.Told && e.Caps.Has(mesh.Metrics) }

// tellPeer returns the filters of requests to servers: they remove what an application has sent as mesh.PeerHeader, and tell a
// server that accepts the mesh's mutual TLS about this workload.
func tellPeer() []*hcmv3.HttpFilter {
	const value = "%CEL(xds.upstream_host_metadata.filter_metadata['envoy.transport_socket_match'].tlsMode == 'istio' ? " + own + " : '')%"
	return []*hcmv3.HttpFilter{
		headerMutation(removal(mesh.PeerHeader), &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: mesh.PeerHeader, Value: value},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}}}),
		httpFilter("envoy.filters.http.upstream_codec", &upstreamcodecv3.UpstreamCodec{}),
	}
}

func removal(header string) *mutationv3.HeaderMutation {
	return &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Remove{Remove: header}}
}

func headerMutation(list ...*mutationv3.HeaderMutation) *hcmv3.HttpFilter {
	return httpFilter("envoy.filters.http.header_mutation", &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{RequestMutations: list}})
}

// hearPeer returns the filter that takes mesh.PeerHeader from a request before anything else sees it. It is kept, if valid, of
// callers with mutual TLS only.
func (e Env) hearPeer(mutual bool) []*hcmv3.HttpFilter {
	switch {
	case !e.tells():
		return nil
	case !mutual:
		return []*hcmv3.HttpFilter{headerMutation(removal(mesh.PeerHeader))}
	}
	return []*hcmv3.HttpFilter{httpFilter("envoy.filters.http.header_to_metadata", &headertometadatav3.Config{RequestRules: []*headertometadatav3.Config_Rule{{
		Header: mesh.PeerHeader,
		OnHeaderPresent: &headertometadatav3.Config_KeyValuePair{
			MetadataNamespace: peerNamespace, Key: peerKey,
			RegexValueRewrite: &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: peerPattern}, Substitution: `\1`},
		},
		Remove: true,
	}}})}
}

// side is one end of a connection: what its metrics say of the peers and the service. A field is a format of Envoy's access logs,
// empty if nothing is known.
type side struct {
	reporter, source, destination, sourcePrincipal, destinationPrincipal, service string
	// mutual is set at servers for connections with mutual TLS.
	mutual bool
}

// clientSide is the side of a proxy that connects to servers.
func clientSide() side {
	const services = "xds.cluster_metadata.filter_metadata.istio.services"
	return side{
		reporter: "source", source: "%CEL(" + own + ")%", destination: "%UPSTREAM_METADATA(istio:workload)%",
		sourcePrincipal: "%UPSTREAM_LOCAL_URI_SAN%", destinationPrincipal: "%UPSTREAM_PEER_URI_SAN%",
		service: "%CEL('istio' in xds.cluster_metadata.filter_metadata && 'services' in xds.cluster_metadata.filter_metadata.istio ? " + services +
			"[0].host : xds.cluster_name)%;%CEL(" + services + "[0].namespace)%",
	}
}

// serverSide is the side of a proxy that accepts connections for a service, "host;namespace".
func serverSide(service string, mutual, http bool) side {
	s := side{reporter: "destination", destination: "%CEL(" + own + ")%", service: service}
	if mutual {
		s.mutual = true
		s.sourcePrincipal, s.destinationPrincipal = "%DOWNSTREAM_PEER_URI_SAN%", "%DOWNSTREAM_LOCAL_URI_SAN%"
		if http {
			s.source = "%DYNAMIC_METADATA(" + peerNamespace + ":" + peerKey + "):" + maxPeer + "%"
		}
	}
	return s
}

// tags are what metrics of both kinds have.
func (s side) tags(more ...[2]string) (out []*statsv3.Config_Tag) {
	for _, t := range append([][2]string{
		{mesh.ReporterTag, s.reporter}, {mesh.SourceTag, s.source}, {mesh.SourcePrincipalTag, s.sourcePrincipal}, {mesh.DestinationTag, s.destination},
		{mesh.DestinationPrincipalTag, s.destinationPrincipal}, {mesh.ServiceTag, s.service}, {"response_flags", "%RESPONSE_FLAGS%"},
	}, more...) {
		if t[1] != "" {
			out = append(out, &statsv3.Config_Tag{Name: t[0], ValueFormat: t[1]})
		}
	}
	return out
}

// metric is one counter or histogram.
type metric struct {
	name  string
	value string // a format; empty to count by one
	unit  statsv3.Config_Histogram_Unit
}

var (
	httpMetrics = []metric{
		{name: mesh.RequestsTotal},
		{mesh.RequestDuration, "%DURATION%", statsv3.Config_Histogram_Milliseconds},
		{mesh.RequestBytes, "%DOWNSTREAM_WIRE_BYTES_RECEIVED%", statsv3.Config_Histogram_Bytes},
		{mesh.ResponseBytes, "%DOWNSTREAM_WIRE_BYTES_SENT%", statsv3.Config_Histogram_Bytes},
	}
	messageMetrics = []metric{{name: mesh.RequestMessages}, {name: mesh.ResponseMessages}}
	openedMetrics  = []metric{{name: mesh.TCPOpened}}
	closedMetrics  = []metric{
		{name: mesh.TCPClosed}, {name: mesh.TCPSent, value: "%DOWNSTREAM_WIRE_BYTES_SENT%"}, {name: mesh.TCPReceived, value: "%DOWNSTREAM_WIRE_BYTES_RECEIVED%"},
	}
)

// tagsOf returns the tags of a metric, of which these are the standard. Labels that are joined in a tag are removed by the agent: whole is
// false then. [control-plane 1.11.2]
func (m Metrics) tagsOf(name string, standard []*statsv3.Config_Tag) (tags []*statsv3.Config_Tag, whole bool) {
	o := m.Overrides[name]
	var removed []string
	tags = slices.Clone(standard)
	for _, label := range slices.Sorted(maps.Keys(o.Tags)) {
		own := func(t *statsv3.Config_Tag) bool { return t.GetName() == label }
		switch {
		case slices.Contains(mesh.JoinedLabels, label):
			removed = append(removed, label)
		case label == mesh.RequestProtocol && !slices.ContainsFunc(tags, own):
			removed = append(removed, label)
		default:
			tags = slices.DeleteFunc(tags, own)
		}
		if format := o.Tags[label]; format != "" {
			tags = append(tags, &statsv3.Config_Tag{Name: mesh.AddedTagPrefix + label, ValueFormat: format})
		}
	}
	if len(removed) > 0 {
		tags = append(tags, &statsv3.Config_Tag{Name: mesh.RemovedTag, ValueFormat: strings.Join(removed, ",")})
	}
	return tags, len(removed) == 0
}

// statsLog returns the logger of those metrics that are not disabled, none if all are; filter may be nil.
func (m Metrics) statsLog(metrics []metric, standard []*statsv3.Config_Tag, filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	c := &statsv3.Config{StatsScope: &typev3.Scope{
		Prefix: "istio", EnableEviction: true, // a scope with a sharing_name crashes envoy --mode validate, 1.40
		MaxCounters: wrapperspb.UInt32(maxSeries), MaxHistograms: wrapperspb.UInt32(maxSeries),
	}}
	for _, one := range metrics {
		if m.Overrides[one.name].Disabled {
			continue
		}
		tags, whole := m.tagsOf(one.name, standard)
		if !whole || slices.ContainsFunc(tags, func(t *statsv3.Config_Tag) bool { return t.GetName() == mesh.MessagesTag }) {
			// The agent adds the series that differ in what it leaves out only: if Envoy forgot one, the sum would fall, as no counter does.
			c.StatsScope.EnableEviction = false
		}
		stat := &statsv3.Config_Stat{Name: one.name, Tags: tags}
		switch {
		case one.unit != statsv3.Config_Histogram_Unspecified:
			c.Histograms = append(c.Histograms, &statsv3.Config_Histogram{Stat: stat, Unit: one.unit, ValueFormat: one.value})
		case one.value != "":
			c.Counters = append(c.Counters, &statsv3.Config_Counter{Stat: stat, ValueFormat: one.value})
		default:
			c.Counters = append(c.Counters, &statsv3.Config_Counter{Stat: stat, ValueFixed: wrapperspb.UInt64(1)})
		}
	}
	if len(c.GetCounters())+len(c.GetHistograms()) == 0 {
		return nil
	}
	out := logger("envoy.access_loggers.stats", c)
	out.Filter = filter
	return []*accesslogv3.AccessLog{out}
}

// httpStats returns the loggers of the metrics of requests.
func (e Env) httpStats(s side) []*accesslogv3.AccessLog {
	if !e.measured() {
		return nil
	}
	const protocol = "%CEL('content-type' in request.headers && request.headers['content-type'].startsWith('application/grpc') ? 'grpc' : 'http')%"
	tags := s.tags([2]string{mesh.RequestProtocol, protocol}, [2]string{"response_code", "%RESPONSE_CODE%"}, [2]string{"grpc_response_status", "%GRPC_STATUS_NUMBER%"})
	out := e.Metrics.statsLog(httpMetrics, tags, nil)
	if e.Caps.Has(mesh.GRPCStats) {
		tags = append(tags, &statsv3.Config_Tag{Name: mesh.MessagesTag, ValueFormat: messages})
		out = append(out, e.Metrics.statsLog(messageMetrics, tags, grpcOnly())...)
	}
	return out
}

// grpcOnly takes the requests of gRPC.
func grpcOnly() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_HeaderFilter{HeaderFilter: &accesslogv3.HeaderFilter{
		Header: &routev3.HeaderMatcher{Name: "content-type", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "application/grpc"}},
		}},
	}}}
}

// connected is the type of a log that a TCP proxy writes when it has a connection to a server.
const connected = accessdatav3.AccessLogType_TcpUpstreamConnected

// neverConnected are the flags of connections that got none.
var neverConnected = []string{"UF", "UH", "NR", "NC", "UO", "URX"}

// tcpStats returns the loggers of the metrics of connections. They need a log when a connection is connected, which others have to leave out.
func (e Env) tcpStats(s side) []*accesslogv3.AccessLog {
	if !e.measured() {
		return nil
	}
	tags := s.tags()
	failed := &accesslogv3.AccessLogFilter{
		FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: neverConnected}},
	}
	return slices.Concat(
		e.Metrics.statsLog(openedMetrics, tags, logTypes(false, connected)),
		e.Metrics.statsLog(openedMetrics, tags, both(logTypes(true, connected), failed)),
		e.Metrics.statsLog(closedMetrics, tags, logTypes(true, connected)),
	)
}

func logTypes(exclude bool, types ...accessdatav3.AccessLogType) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: types, Exclude: exclude},
	}}
}

// both returns a filter that takes what both take; b may be nil.
func both(a, b *accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	if b == nil {
		return a
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
		AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{a, b}},
	}}
}
