package route

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// headerOps has the header operations of one direction.
type headerOps struct {
	add       []*corev3.HeaderValueOption
	remove    []string
	authority string
}

// operations returns those of set, then those of add, each sorted by name. Envoy does not allow them for
// pseudo-headers and Host: setting the authority becomes a host rewrite, the others are left out.
// [control-plane 1.7.17]
func operations(o *networking.Headers_HeaderOperations) headerOps {
	var out headerOps
	put := func(values map[string]string, action corev3.HeaderValueOption_HeaderAppendAction) {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if authority(name) {
				out.authority = values[name]
			} else if !reserved(name) {
				out.add = append(out.add, &corev3.HeaderValueOption{
					Header: &corev3.HeaderValue{Key: name, Value: formatted(values[name])}, AppendAction: action,
				})
			}
		}
	}
	put(o.GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	put(o.GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	for _, name := range o.GetRemove() {
		if !authority(name) && !reserved(name) {
			out.remove = append(out.remove, name)
		}
	}
	return out
}

// format matches a valid format of Envoy: text, %% and commands such as %REQ(:path)%.
var format = regexp.MustCompile(`^([^%]|%%|%[A-Z0-9_]+(\([^)]*\))?(:[0-9]+)?%)*$`)

// formatted escapes a value that is not a valid format, for which Envoy would reject the whole route
// configuration.
func formatted(value string) string {
	if format.MatchString(value) {
		return value
	}
	return strings.ReplaceAll(value, "%", "%%")
}

func authority(name string) bool {
	return strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority")
}

func reserved(name string) bool { return name == "" || name[0] == ':' }
