package jwks

import (
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"
)

// Mode says who fetches the keys of rules with jwksUri (PILOT_JWT_ENABLE_REMOTE_JWKS). [control-plane 1.2.19]
type Mode uint8

// Modes, with Istio's names "istiod" and "false", "hybrid" and "true", "envoy".
const (
	// Discovery: the control plane, for all.
	Discovery Mode = iota
	// Hybrid: proxies, from hosts that are services of the mesh, and the control plane from all others.
	Hybrid
	// Proxies: proxies only. Nobody fetches keys from hosts that are not services of the mesh.
	Proxies
)

// ParseMode returns the mode of a value of PILOT_JWT_ENABLE_REMOTE_JWKS, which is one that package settings accepts.
func ParseMode(text string) Mode {
	switch text {
	case "true", "hybrid":
		return Hybrid
	case "envoy":
		return Proxies
	}
	return Discovery
}

// Remote returns the URL from which proxies may fetch the keys of a rule, with its host and port; false if the control plane fetches
// them, from what the issuer's discovery document says or in mode Discovery, and if there are none to be fetched.
func (m Mode) Remote(r *security.JWTRule) (url, host string, port uint32, ok bool) {
	if m == Discovery || r.GetJwks() != "" || r.GetJwksUri() == "" {
		return "", "", 0, false
	}
	u, err := ParseURL(r.GetJwksUri())
	if err != nil {
		return "", "", 0, false
	}
	port = 80
	if u.Scheme == "https" {
		port = 443
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		port = uint32(n)
	}
	return r.GetJwksUri(), strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), port, true
}

// Fetches reports whether the control plane fetches the keys of a rule, at least for some proxies.
func (m Mode) Fetches(r *security.JWTRule) bool {
	_, _, _, remote := m.Remote(r)
	return m != Proxies || !remote
}
