package mesh

import "strings"

// Labels of services with sessions, and of endpoints that get no more of them. [control-plane 1.12.20]
const (
	// SessionLabel has the name of the cookie by which requests return to the endpoint of a session, and after a colon its path.
	SessionLabel = "istio.io/persistent-session"
	// SessionHeaderLabel has the name of a header in place of a cookie. It has no effect beside SessionLabel.
	SessionHeaderLabel = "istio.io/persistent-session-header"
	// DrainingLabel takes a workload out of use for all but the sessions that it has, whatever its value.
	DrainingLabel = "istio.io/draining"
)

// SessionCookie splits a value of SessionLabel. The path of a cookie without one is "/".
func SessionCookie(value string) (name, path string) {
	name, path, found := strings.Cut(value, ":")
	if !found {
		path = "/"
	}
	return name, path
}
