package mesh

// ProxyConfigFields is a set of fields of ProxyConfig that a control plane reads in the metadata of
// the node, and that this one does not apply. [control-plane 1.5.11]
type ProxyConfigFields uint8

// proxyConfigFields are those fields in the order of their bits. Agents apply the field within that
// is named.
var proxyConfigFields = [...]struct{ name, agents string }{
	{"connectionSettings", "globalDownstreamConnectionLimit"},
	{"proxyHeaders", ""},
	{tracingKey, anyField}, // see TracingNotApplied
}

// anyField stands for all fields within a field.
const anyField = "*"

// TracingNotApplied is the set of the field for traces, of which nothing is applied if DecodeTracing says so.
const TracingNotApplied ProxyConfigFields = 1 << 2

// ProxyConfigField returns the set with the field that has the JSON name, if inner is a field within
// it that is not applied; else the empty set.
func ProxyConfigField(name, inner string) ProxyConfigFields {
	for i, f := range proxyConfigFields {
		if f.name == name && inner != f.agents && f.agents != anyField {
			return 1 << i
		}
	}
	return 0
}

// Names returns the JSON names of the fields, sorted.
func (f ProxyConfigFields) Names() []string {
	var out []string
	for i := range proxyConfigFields {
		if f&(1<<i) != 0 {
			out = append(out, proxyConfigFields[i].name)
		}
	}
	return out
}

// IsReadinessProbe reports whether the field of ProxyConfig with the JSON name is the readiness probe.
func IsReadinessProbe(name string) bool { return name == "readinessProbe" }

func hasReadinessProbe(config any) bool {
	fields, _ := config.(map[string]any)
	for name, v := range fields {
		if within, _ := v.(map[string]any); IsReadinessProbe(name) && len(within) > 0 {
			return true
		}
	}
	return false
}

// notApplied returns what is set and not applied of a ProxyConfig in the form of JSON. An empty
// object sets nothing.
func notApplied(config any) ProxyConfigFields {
	var out ProxyConfigFields
	fields, _ := config.(map[string]any)
	for name, v := range fields {
		within, _ := v.(map[string]any)
		for inner := range within {
			out |= ProxyConfigField(name, inner)
		}
	}
	return out
}
