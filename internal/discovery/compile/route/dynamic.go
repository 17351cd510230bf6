package route

import (
	"fmt"
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httpfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// perFilter returns the configuration of filters for a route to the destination; nil for none. host is that of filterState.
func (d Destination) perFilter(caps mesh.Capability, host string) map[string]*anypb.Any {
	out := d.filterState(caps, host)
	if d.Session != nil {
		if out == nil {
			out = map[string]*anypb.Any{}
		}
		out[SessionFilter] = d.Session
	}
	return out
}

// filterState returns the configuration, for a route to the destination, of the filter that sets what connections depend on; nil for none.
// host is what the route rewrites the Host header to, empty if it does not.
func (d Destination) filterState(caps mesh.Capability, host string) map[string]*anypb.Any {
	switch {
	case !caps.Has(mesh.FilterState):
		return nil
	case d.Dynamic != nil:
		return map[string]*anypb.Any{FilterStateFilter: marshal.MustAny(d.dynamic(host))}
	case d.OwnALPN:
		return map[string]*anypb.Any{FilterStateFilter: filterOff()}
	}
	return nil
}

// dynamic sets the name that is resolved, and the port, which is never that of the Host header: else whoever may send a request
// through the proxy chooses the port. A name that is not one of the destination's is "-", which nothing resolves.
func (d Destination) dynamic(host string) *httpfilterstatev3.Config {
	name := fmt.Sprintf(`%%CEL(re.extract(request.host, r'%s', r'\1'))%%`, cluster.HostPattern(d.Dynamic.Host))
	if host != "" {
		name = "-"
		if m := regexp.MustCompile(cluster.HostPattern(d.Dynamic.Host)).FindStringSubmatch(host); m != nil {
			name = strings.ReplaceAll(m[1], "%", "%%")
		}
	}
	out := &httpfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{
		{Key: key("envoy.upstream.dynamic_host"), Value: text(fmt.Sprintf("%s:%d", name, d.Dynamic.Port), false)},
	}}
	if d.OwnALPN {
		// What the filter sets on all routes is undone: a request has no response yet, so that the value is empty.
		out.OnRequestHeaders = append(out.OnRequestHeaders, &filterstatev3.FilterStateValue{
			Key: key("envoy.network.application_protocols"), Value: text("%RESP(:status)%", true), SharedWithUpstream: filterstatev3.FilterStateValue_ONCE,
		})
	}
	return out
}

func key(name string) *filterstatev3.FilterStateValue_ObjectKey {
	return &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: name}
}

// text is a value with Envoy's format; what has no value is "-", or nothing if omit is set.
func text(format string, omit bool) *filterstatev3.FilterStateValue_FormatString {
	return &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
		OmitEmptyValues: omit,
		Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: format},
		}},
	}}
}
