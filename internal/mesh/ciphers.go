package mesh

import (
	"slices"
	"strings"
)

// CipherSuites are the names of TLS 1.2 and below that Envoy knows, and that Istio documents. A resource with another name is
// rejected by Envoy as a whole. Suites of TLS 1.3 cannot be chosen.
var CipherSuites = []string{
	"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
	"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA",
	"ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES128-SHA256", "AES256-GCM-SHA384", "AES128-GCM-SHA256", "AES256-SHA", "AES128-SHA",
	"DES-CBC3-SHA",
}

// IsCipherSuites reports whether an element of a list of cipher suites is one that Envoy takes: a name, or "[A|B]", suites of equal
// preference.
func IsCipherSuites(group string) bool {
	if inner, ok := strings.CutPrefix(group, "["); ok {
		if group, ok = strings.CutSuffix(inner, "]"); !ok {
			return false
		}
		for s := range strings.SplitSeq(group, "|") {
			if !slices.Contains(CipherSuites, s) {
				return false
			}
		}
		return true
	}
	return slices.Contains(CipherSuites, group)
}

// KnownCipherSuites returns the elements of a list that Envoy takes.
func KnownCipherSuites(list []string) (out []string) {
	for _, s := range list {
		if IsCipherSuites(s) {
			out = append(out, s)
		}
	}
	return out
}
