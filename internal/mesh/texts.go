package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unique"
)

// Texts are values of a node's metadata that are texts, by which EnvoyFilters select proxies. The zero value has none. They are
// comparable, and the proxies of one workload, which mostly say the same, share them in memory. [control-plane 1.9.26]
type Texts struct{ pairs unique.Handle[string] }

// textsSeparator ends keys and values of Texts, which have none in them.
const textsSeparator = "\x00"

// metadataOfProxies are the keys of a node's metadata that are not among Texts because every proxy has values of its own, or
// because the control plane knows better.
var metadataOfProxies = map[string]bool{
	"NAME": true, "NAMESPACE": true, "CLUSTER_ID": true, "NETWORK": true, "ISTIO_VERSION": true, "INSTANCE_IPS": true, EpochKey: true,
}

// IsText reports whether the value of a key of a node's metadata is kept if it is a text.
func IsText(key, value string) bool {
	return key != "" && !metadataOfProxies[key] && len(key) <= maxText && len(value) <= maxText && !strings.Contains(key+value, textsSeparator)
}

// NewTexts returns the texts in metadata for which IsText is true.
func NewTexts(metadata map[string]any) Texts {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if value, ok := metadata[key].(string); ok && IsText(key, value) {
			b.WriteString(key + textsSeparator + value + textsSeparator)
		}
	}
	if b.Len() == 0 {
		return Texts{}
	}
	return Texts{unique.Make(b.String())}
}

// String returns the keys and values; its length is what they take.
func (t Texts) String() string {
	if t == (Texts{}) {
		return ""
	}
	return t.pairs.Value()
}

// Get returns the value of a key; false if there is none.
func (t Texts) Get(key string) (string, bool) {
	rest := t.String()
	for rest != "" {
		var k, v string
		k, rest, _ = strings.Cut(rest, textsSeparator)
		v, rest, _ = strings.Cut(rest, textsSeparator)
		if k == key {
			return v, true
		}
	}
	return "", false
}

// Uncomparable says why no proxy is selected by a value of a key of its metadata, for people; empty if there may be some.
func Uncomparable(key, value string) string {
	switch {
	case key == "LABELS":
		return "is no text, and matches no proxy; use workloadSelector"
	case key == "ANNOTATIONS" || key == "PLATFORM_METADATA" || key == proxyConfigKey:
		return "is no text, and matches no proxy; use a variable ISTIO_META_… of the proxy"
	case key == EpochKey:
		return "is another one for each Envoy of a proxy, and matches none; remove it"
	case len(key) > maxText || len(value) > maxText:
		return fmt.Sprintf("is longer than %d bytes, and matches no proxy; use a shorter one", maxText)
	}
	return ""
}
