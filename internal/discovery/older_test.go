package discovery

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

func TestConnectionsOfProxiesThatHaveConnectedAgainAreOlder(t *testing.T) {
	at := func(id, proxy, only string, second int) xds.Connection {
		return xds.Connection{ID: id, Node: mesh.Node{NodeID: mesh.NodeID{ID: proxy}}, Only: only, Since: time.Unix(int64(second), 0)}
	}
	of := func(id, peer, epoch string, second int) xds.Connection {
		c := at(id, "c.shop", "", second)
		c.Peer, c.Node.Metadata.Epoch = peer, epoch
		return c
	}
	list := []xds.Connection{at("a-1", "a.shop", "", 1), at("a-3", "a.shop", "", 3), at("a-2", "a.shop", "", 2), at("a-4", "a.shop", "CDS", 4), at("b-1", "b.shop", "", 5),
		// Of the Envoys of one agent the higher epoch is newer, whenever they connected; another agent counts its own.
		of("c-1", "10.0.0.1:2000", "1", 7), of("c-2", "10.0.0.1:2000", "2", 6), of("c-0", "10.0.0.1:1000", "3", 5)}
	for range 2 {
		if got := slices.Sorted(maps.Keys(older(list))); !slices.Equal(got, []string{"a-1", "a-2", "c-0", "c-1"}) {
			t.Errorf("older are %q", got)
		}
		slices.Reverse(list)
	}
}
