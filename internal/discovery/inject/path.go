package inject

import (
	"fmt"
	"strings"
)

// pathVariables are the variables that have a short name in the webhook's path.
var pathVariables = map[string]string{"cluster": envCluster, "net": envNetwork}

// maxPath bounds the path of the webhook, in bytes.
const maxPath = 8192

// ParsePath returns the variables of the webhook's path: /inject/NAME/VALUE/NAME/VALUE, or the older
// /inject:ENV:NAME=VALUE:ENV:NAME=VALUE with or without a slash before the first. The names cluster and net
// stand for ISTIO_META_CLUSTER_ID and ISTIO_META_NETWORK; others are variables of the proxy, in upper case.
// In a value --slash-- stands for a slash. The error says which part of the path is invalid. [control-plane 1.15.1]
func ParsePath(path string) (map[string]string, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("path of %d bytes: want at most %d", len(path), maxPath)
	}
	rest, ok := strings.CutPrefix(path, "/inject")
	if !ok || rest != "" && rest[0] != '/' && rest[0] != ':' {
		return nil, fmt.Errorf("invalid path %q: want /inject, or /inject/NAME/VALUE", clip(path))
	}
	rest = strings.Trim(rest, "/")
	if rest == "" {
		return nil, nil
	}
	var pairs []string
	if text, old := strings.CutPrefix(rest, ":ENV:"); old {
		for _, pair := range strings.Split(text, ":ENV:") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok {
				return nil, fmt.Errorf("invalid path %q: %q has no value", clip(path), clip(pair))
			}
			pairs = append(pairs, name, value)
		}
	} else {
		pairs = strings.Split(rest, "/")
	}
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("invalid path %q: %q has no value", clip(path), clip(pairs[len(pairs)-1]))
	}
	env := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		name := pathVariables[pairs[i]]
		if name == "" {
			name = strings.ToUpper(pairs[i])
		}
		if !isVariable(name) {
			return nil, fmt.Errorf("invalid path %q: invalid name %q of a variable", clip(path), clip(pairs[i]))
		}
		env[name] = strings.ReplaceAll(pairs[i+1], "--slash--", "/")
	}
	return env, nil
}

// isVariable reports whether a text is the name of an environment variable.
func isVariable(name string) bool {
	for i, r := range name {
		if r != '_' && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}
