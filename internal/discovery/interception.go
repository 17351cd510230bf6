package discovery

import (
	"cmp"
	"fmt"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// uncaptured is one line about the sidecars whose traffic nothing captures, empty if there are none. They are sent what all sidecars are
// sent, of which they serve only the listeners that a Sidecar binds. [control-plane 1.5.16]
func uncaptured(connections []xds.Connection) string {
	proxies, first := map[string]bool{}, ""
	for _, c := range connections {
		m := c.Node.Metadata
		if c.Node.Role != mesh.Sidecar || m.Interception != mesh.InterceptionNone || m.Generator != "" { // gRPC libraries need no capture
			continue
		}
		proxies[c.Node.ID] = true
		first = min(cmp.Or(first, c.Node.ID), c.Node.ID)
	}
	if len(proxies) == 0 {
		return ""
	}
	return fmt.Sprintf("%d proxies with INTERCEPTION_MODE NONE, such as %s: nothing captures their traffic, so that it has neither mutual TLS nor policies, but at listeners that a Sidecar binds (captureMode NONE)", len(proxies), first)
}
