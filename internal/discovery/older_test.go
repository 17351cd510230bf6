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
	list := []xds.Connection{at("a-1", "a.shop", "", 1), at("a-3", "a.shop", "", 3), at("a-2", "a.shop", "", 2), at("a-4", "a.shop", "CDS", 4), at("b-1", "b.shop", "", 5)}
	for range 2 {
		if got := slices.Sorted(maps.Keys(older(list))); !slices.Equal(got, []string{"a-1", "a-2"}) {
			t.Errorf("older are %q", got)
		}
		slices.Reverse(list)
	}
}
