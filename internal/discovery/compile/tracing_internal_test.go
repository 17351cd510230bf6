package compile

import (
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
)

// Each field is that of the last entry for the mode that has it.
func TestMergeTracing(t *testing.T) {
	const client, server = telemetry.WorkloadMode_CLIENT, telemetry.WorkloadMode_SERVER
	tags := func(name string) map[string]*telemetry.Tracing_CustomTag {
		return map[string]*telemetry.Tracing_CustomTag{name: {}}
	}
	entries := []*telemetry.Tracing{
		{Providers: []*telemetry.ProviderRef{{Name: "a"}, {Name: "ignored"}}, RandomSamplingPercentage: wrapperspb.Double(10), CustomTags: tags("a"), DisableSpanReporting: wrapperspb.Bool(true)},
		{Match: &telemetry.Tracing_TracingSelector{Mode: client}, DisableSpanReporting: wrapperspb.Bool(false), RandomSamplingPercentage: wrapperspb.Double(0)},
		{Match: &telemetry.Tracing_TracingSelector{Mode: server}, Providers: []*telemetry.ProviderRef{{Name: "b"}}, CustomTags: tags("b"), EnableIstioTags: wrapperspb.Bool(false), UseRequestIdForTraceSampling: wrapperspb.Bool(false), DisableContextPropagation: wrapperspb.Bool(true)},
	}
	type result struct {
		disabled, withoutTags, ignoreID, alone bool
		provider, tag                          string
		sampling                               float64
	}
	for mode, want := range map[telemetry.WorkloadMode]result{
		client: {provider: "a", tag: "a", sampling: 0},
		server: {disabled: true, withoutTags: true, ignoreID: true, alone: true, provider: "b", tag: "b", sampling: 10},
	} {
		out, provider := listener.Tracing{Sampling: 1}, "default"
		got := result{disabled: mergeTracing(entries, mode, &out, &provider)}
		got.provider, got.sampling, got.withoutTags, got.ignoreID, got.alone = provider, out.Sampling, out.WithoutIstioTags, out.IgnoreRequestID, out.NoPropagation
		for name := range out.Tags {
			got.tag += name
		}
		if got != want {
			t.Errorf("%v: %+v, want %+v", mode, got, want)
		}
	}
}
