package status

import (
	"bytes"
	"hash/maphash"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

const (
	// envoyPrefix is what Envoy puts before the names of all metrics, also of Istio's.
	envoyPrefix = "envoy_"
	istioPrefix = envoyPrefix + "istio_"
	// maxSeries is how many series of Istio's metrics are remembered, so that none is on a page twice.
	maxSeries = 1 << 17
)

// label is a label of a metric, with its value as it is on a page: escaped.
type label struct{ name, value string }

// istioMetrics gives Istio's metrics on Envoy's page their names and labels: the prefix of Envoy is removed, and the labels in which
// Envoy has several facts at once are split (mesh.SourceTag and the others).
type istioMetrics struct {
	seed   maphash.Seed
	seen   map[uint64]struct{}
	labels []label
	out    bytes.Buffer
}

// name returns the name of a family, without Envoy's prefix if it is one of Istio's.
func (*istioMetrics) name(n string) string {
	if strings.HasPrefix(n, istioPrefix) {
		return n[len(envoyPrefix):]
	}
	return n
}

// line returns a line with a sample as it is on the page; nil for one that the page has already: what peers say of themselves may
// have made two of Envoy's series one. The result is valid until the next call.
func (m *istioMetrics) line(line []byte) []byte {
	if !bytes.HasPrefix(line, []byte(istioPrefix)) {
		return line
	}
	line = line[len(envoyPrefix):]
	name, rest, ok := strings.Cut(string(line), "{")
	if !ok {
		return line
	}
	labels, value, ok := cutLabels(rest, m.labels[:0])
	if !ok {
		return line
	}
	m.labels = labels
	m.out.Reset()
	m.out.WriteString(name)
	m.out.WriteByte('{')
	for i, l := range istioLabels(strings.TrimPrefix(name, "istio_"), labels) {
		if i > 0 {
			m.out.WriteByte(',')
		}
		m.out.WriteString(l.name)
		m.out.WriteString(`="`)
		m.out.WriteString(l.value)
		m.out.WriteByte('"')
	}
	m.out.WriteByte('}')
	key := maphash.Bytes(m.seed, m.out.Bytes())
	if _, twice := m.seen[key]; twice {
		return nil
	}
	if len(m.seen) < maxSeries {
		m.seen[key] = struct{}{}
	}
	m.out.WriteString(value)
	return m.out.Bytes()
}

// cutLabels appends the labels of a sample, which begin after the brace, and returns what follows them.
func cutLabels(s string, labels []label) (out []label, rest string, ok bool) {
	for {
		if strings.HasPrefix(s, "}") {
			return labels, s[1:], true
		}
		name, after, found := strings.Cut(s, `="`)
		if !found {
			return nil, "", false
		}
		end := 0
		for end < len(after) && after[end] != '"' {
			if after[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(after) {
			return nil, "", false
		}
		labels = append(labels, label{strings.TrimPrefix(name, ","), after[:end]})
		s = after[end+1:]
		if !strings.HasPrefix(s, ",") && !strings.HasPrefix(s, "}") {
			return nil, "", false
		}
	}
}

// istioLabels returns the labels of one of Istio's metrics: those that Envoy has joined first, then the others in their order. A
// fact that is not known is "unknown", and a revision "latest".
func istioLabels(metric string, labels []label) []label {
	joined := map[string]string{}
	var others []label
	for _, l := range labels {
		switch l.name {
		case mesh.ReporterTag, mesh.SourceTag, mesh.DestinationTag, mesh.ServiceTag, mesh.SourcePrincipalTag, mesh.DestinationPrincipalTag:
			joined[l.name] = l.value
		default:
			others = append(others, l)
		}
	}
	reporter := joined[mesh.ReporterTag]
	if reporter == "" {
		return labels // not of the metrics of requests and connections
	}
	out := []label{{mesh.ReporterTag, reporter}}
	for _, side := range []string{mesh.SourceTag, mesh.DestinationTag} {
		principal := joined[side+"_principal"]
		fields := strings.Split(joined[side], ";")
		for i, name := range mesh.WorkloadFields {
			value := ""
			if i < len(fields) {
				value = fields[i]
			}
			if name == "workload_namespace" {
				if ns := namespaceOf(principal); ns != "" {
					value = ns // what a certificate says is true, whatever the peer says
				}
			}
			out = append(out, label{side + "_" + name, orUnknown(name, value)})
		}
		out = append(out, label{side + "_principal", orUnknown("", principal)})
	}
	host, namespace, _ := strings.Cut(joined[mesh.ServiceTag], ";")
	short := host
	if namespace == "" {
		host = "" // a cluster that is of no service, whose name stands for that of the service
	} else if first, rest, _ := strings.Cut(host, "."); strings.HasPrefix(rest, namespace+".svc.") {
		short = first
	}
	out = append(out, label{"destination_service", orUnknown("", host)}, label{"destination_service_name", orUnknown("", short)},
		label{"destination_service_namespace", orUnknown("", namespace)})
	if strings.HasPrefix(metric, "tcp_") {
		out = append(out, label{"request_protocol", "tcp"})
	}
	return append(append(out, label{"connection_security_policy", securityPolicy(reporter, joined)}), others...)
}

func orUnknown(field, value string) string {
	switch {
	case value != "":
		return value
	case field == "canonical_revision":
		return "latest"
	}
	return "unknown"
}

// namespaceOf returns the namespace in a principal, spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT; empty if it has none.
func namespaceOf(principal string) string {
	_, rest, ok := strings.Cut(principal, "/ns/")
	ns, _, end := strings.Cut(rest, "/")
	if !ok || !end {
		return ""
	}
	return ns
}

// securityPolicy is the label connection_security_policy: only a server knows it.
func securityPolicy(reporter string, joined map[string]string) string {
	switch {
	case reporter == "source":
		return "unknown"
	case joined[mesh.SourcePrincipalTag] != "" && joined[mesh.DestinationPrincipalTag] != "":
		return "mutual_tls"
	}
	return "none"
}
