package mesh

import (
	"cmp"
	"strings"
)

// PeerHeader is the header of requests in which the proxy of a client tells that of a server, by mutual TLS only, which workload it
// has: WorkloadFields, separated by semicolons. It is for metrics, never for authorization, and no application sees it.
const PeerHeader = "x-pilothouse-peer"

// The labels of workloads with the names of their service and its revision in metrics, and those that these are by default.
const (
	CanonicalNameLabel     = "service.istio.io/canonical-name"
	CanonicalRevisionLabel = "service.istio.io/canonical-revision"
	AppNameLabel           = "app.kubernetes.io/name"
	AppVersionLabel        = "app.kubernetes.io/version"
)

// Istio's standard metrics, without the prefix istio_. [control-plane 1.11.2]
const (
	RequestsTotal   = "requests_total"
	RequestDuration = "request_duration_milliseconds"
	RequestBytes    = "request_bytes"
	ResponseBytes   = "response_bytes"
	// The messages of gRPC in requests and in responses.
	RequestMessages  = "request_messages_total"
	ResponseMessages = "response_messages_total"
	TCPOpened        = "tcp_connections_opened_total"
	TCPClosed        = "tcp_connections_closed_total"
	TCPSent          = "tcp_sent_bytes_total"
	TCPReceived      = "tcp_received_bytes_total"
)

// The tags of the metrics in Envoy that are not labels of Istio's: each has several of them, so that Envoy formats few for each
// request. The agent splits them on its page of metrics.
const (
	ReporterTag             = "reporter"
	SourceTag               = "source"      // WorkloadFields of the client, separated by semicolons
	DestinationTag          = "destination" // WorkloadFields of the server, maybe only the first five
	ServiceTag              = "service"     // host;namespace, or the name of a cluster and a semicolon
	SourcePrincipalTag      = "source_principal"
	DestinationPrincipalTag = "destination_principal"
	// MessagesTag has how many messages a request of gRPC and its response have, with a comma between them: RequestMessages and
	// ResponseMessages count such requests in Envoy.
	MessagesTag = "messages"
	// RemovedTag has the labels that the agent leaves out, separated by commas; it adds the series that are one without them.
	RemovedTag = "removed"
	// AddedTagPrefix begins the tags that a Telemetry adds, so that none has the name of another; the agent removes it.
	AddedTagPrefix = "label_"
)

// RequestProtocol is a label that requests have in Envoy, and connections from the agent.
const RequestProtocol = "request_protocol"

// JoinedLabels are the labels of Istio's metrics that the agent makes of the tags above.
var JoinedLabels = func() []string {
	out := []string{
		ReporterTag, SourcePrincipalTag, DestinationPrincipalTag, "destination_service", "destination_service_name", "destination_service_namespace",
		"connection_security_policy",
	}
	for _, f := range WorkloadFields {
		out = append(out, SourceTag+"_"+f, DestinationTag+"_"+f)
	}
	return out
}()

// MetricNames are the names of Istio's standard metrics in the Telemetry API, with those that they have without istio_. [control-plane 1.11.2]
var MetricNames = map[string]string{
	"REQUEST_COUNT": RequestsTotal, "REQUEST_DURATION": RequestDuration, "REQUEST_SIZE": RequestBytes, "RESPONSE_SIZE": ResponseBytes,
	"GRPC_REQUEST_MESSAGES": RequestMessages, "GRPC_RESPONSE_MESSAGES": ResponseMessages,
	"TCP_OPENED_CONNECTIONS": TCPOpened, "TCP_CLOSED_CONNECTIONS": TCPClosed, "TCP_SENT_BYTES": TCPSent, "TCP_RECEIVED_BYTES": TCPReceived,
}

// WorkloadFactsKey is the key of the metadata in which our agent has the facts about its workload for metrics and PeerHeader, which
// WorkloadFacts makes.
const WorkloadFactsKey = "WORKLOAD_FACTS"

// WorkloadFacts returns WorkloadFields of a workload, separated by semicolons. What is not known is unknown, and the revision is
// latest; characters that names and labels do not have become underscores.
func WorkloadFacts(workload, namespace, cluster string, labels map[string]string) string {
	app, version := labels["app"], labels["version"]
	fields := []string{
		workload, namespace, cmp.Or(labels[CanonicalNameLabel], labels[AppNameLabel], app, workload),
		cmp.Or(labels[CanonicalRevisionLabel], labels[AppVersionLabel], version, "latest"), cluster, app, version,
	}
	for i, f := range fields {
		fields[i] = cmp.Or(strings.Map(factRune, f), "unknown")
	}
	return strings.Join(fields, ";")
}

func factRune(r rune) rune {
	switch {
	case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', strings.ContainsRune("-_./:", r):
		return r
	}
	return '_'
}

// WorkloadFields are the labels of a workload in metrics, without source_ or destination_, in the order of their values in
// PeerHeader. The first five are those of the metadata of endpoints.
var WorkloadFields = [...]string{"workload", "workload_namespace", "canonical_service", "canonical_revision", "cluster", "app", "version"}
