package mesh

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
)

// Tracing is what a node's ProxyConfig says of traces: that Envoy has a tracer from its bootstrap, and what is the case where no Telemetry
// says otherwise. The zero value says nothing. [control-plane 1.5.11]
type Tracing struct {
	// Tracer is set if the bootstrap has a tracer.
	Tracer bool
	// Sampling is the share of traced requests, in percent; 0 if it is not given.
	Sampling float64
	// MaxPathTagLength is the longest path in a span, in bytes; 0 for Envoy's default.
	MaxPathTagLength uint32
	// WithoutIstioTags is set if spans do not get Istio's tags.
	WithoutIstioTags bool `json:",omitempty"`
	// Tags are the tags of spans, which TracingTags decodes.
	Tags string
}

// TracingTag is a tag of spans: a value, or the name of a variable of Envoy's environment or of a header, with the value if that is not there.
type TracingTag struct {
	Name                         string
	Literal, Environment, Header string `json:",omitempty"`
	Default                      string `json:",omitempty"`
}

// maxTracingTags is how long the encoded tags of a node may be, in bytes.
const maxTracingTags = 4096

// tracers are the JSON names of the tracers that a ProxyConfig may have.
var tracers = []string{"zipkin", "lightstep", "datadog", "stackdriver", "openCensusAgent"}

// tracingKey is the JSON name of the field of ProxyConfig.
const tracingKey = "tracing"

// IsTracing reports whether the field of ProxyConfig with the JSON name says what is traced.
func IsTracing(name string) bool { return name == tracingKey }

// DecodeTracing returns what a node's metadata, in the form of JSON, says of traces. What cannot be read of it is as if it were not there. It
// returns false, and the zero value, if the tags are too long to be kept.
func DecodeTracing(v any) (t Tracing, ok bool) {
	fields, _ := v.(map[string]any)
	t.Tracer = slices.ContainsFunc(tracers, func(name string) bool {
		_, ok := fields[name].(map[string]any)
		return ok
	})
	if n, ok := fields["sampling"].(float64); ok && n > 0 && n <= 100 {
		t.Sampling = n
	}
	if n, ok := fields["maxPathTagLength"].(float64); ok && n >= 0 && n <= math.MaxUint32 && n == math.Trunc(n) {
		t.MaxPathTagLength = uint32(n)
	}
	if istio, ok := fields["enableIstioTags"].(bool); ok {
		t.WithoutIstioTags = !istio
	}
	all, _ := fields["customTags"].(map[string]any)
	var tags []TracingTag
	for _, name := range slices.Sorted(maps.Keys(all)) {
		tag := TracingTag{Name: name, Literal: inner(all[name], "literal", "value"), Environment: inner(all[name], "environment", "name"), Header: inner(all[name], "header", "name")}
		tag.Default = inner(all[name], "environment", "defaultValue") + inner(all[name], "header", "defaultValue") // a tag has one of them
		if name != "" && tag.Literal+tag.Environment+tag.Header != "" {
			tags = append(tags, tag)
		}
	}
	if len(tags) == 0 {
		return t, true
	}
	text, err := json.Marshal(tags)
	if err != nil || len(text) > maxTracingTags {
		return Tracing{}, false
	}
	t.Tags = string(text)
	return t, true
}

func inner(v any, field, name string) string {
	outer, _ := v.(map[string]any)
	fields, _ := outer[field].(map[string]any)
	s, _ := fields[name].(string)
	return s
}

// TracingTags returns the tags of t, sorted by name.
func (t Tracing) TracingTags() (out []TracingTag) {
	if json.Unmarshal([]byte(t.Tags), &out) != nil {
		return nil // there are none
	}
	return out
}

func tracing(config any) (Tracing, bool) {
	fields, _ := config.(map[string]any)
	return DecodeTracing(fields[tracingKey])
}
