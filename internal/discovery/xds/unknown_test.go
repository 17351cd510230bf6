package xds

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// A client that comes from an instance which knew more than this one claims what this one does not know. That is not removed while the
// source is behind, nor for some seconds after it has caught up; the client counts as in sync meanwhile. Then it is removed by
// itself, listeners before clusters.
func TestWhatAnotherInstanceKnewIsNotRemovedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := func(name, content string) *Resource { return NewResource(CDS, name, []byte(content)) }
		old := cluster("other", "1").Version
		v := (&View{Generation: 5}).put(cluster("a", "1"), cluster("other", "2"), naming(NewResource(LDS, "l", []byte("1")), "a"))
		class := &oneClass{latest: NewLatestView(v)}
		s := New(class, quiet(t), nil)
		var behind atomic.Bool
		behind.Store(true)
		s.BehindIf(behind.Load)
		g := open(t, dial(t, s, nil))
		responses := make(chan *discoveryv3.DeltaDiscoveryResponse, 10)
		go func() {
			for {
				m, err := g.Recv()
				if err != nil {
					return
				}
				_ = g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}) // the test may be over
				responses <- m
			}
		}()
		// next is what comes within a time, by type and name.
		next := func(within time.Duration) (sent, removed []string) {
			end := time.After(within)
			for {
				select {
				case m := <-responses:
					typ, _ := ParseType(m.GetTypeUrl())
					for _, r := range m.GetResources() {
						sent = append(sent, typ.String()+" "+r.GetName())
					}
					for _, n := range m.GetRemovedResources() {
						removed = append(removed, typ.String()+" "+n)
					}
				case <-end:
					return sent, removed
				}
			}
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: CDS.URL(), InitialResourceVersions: map[string]string{
			"a": v.Of(CDS).Get("a").Version, "other": old, "new": old, "newer": old, "never": old,
		}})
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL(), InitialResourceVersions: map[string]string{"l": v.Of(LDS).Get("l").Version, "m": "1"}})
		if sent, removed := next(time.Minute + time.Second); !slices.Equal(sent, []string{"CDS other"}) || len(removed) > 0 {
			t.Errorf("%q are sent and %q removed while the source is behind, want the changed cluster", sent, removed)
		}
		if got := class.latest.Progress(); got != (Progress{}) {
			t.Errorf("it is at %+v, want all applied", got)
		}
		v = v.put(cluster("new", "1"), cluster("newer", "2"))
		v.Generation = 6
		class.latest.Publish(v)
		behind.Store(false)
		if sent, removed := next(unknownLimit - time.Millisecond); !slices.Equal(sent, []string{"CDS newer"}) || len(removed) > 0 {
			t.Errorf("%q are sent and %q removed when the source has caught up, want what it has in another version of what is known now", sent, removed)
		}
		if sent, removed := next(2 * unknownLimit); len(sent) > 0 || !slices.Equal(removed, []string{"LDS m", "CDS never"}) {
			t.Errorf("%q are sent and %q removed later, want what is still unknown removed", sent, removed)
		}
		if got := class.latest.Progress(); got != (Progress{}) {
			t.Errorf("it is at %+v, want all applied", got)
		}
	})
}

// A stream whose client claims nothing unknown remembers nothing of it.
func TestClaimsThatAreKnownCostNothing(t *testing.T) {
	v, names := fleetView()
	versions := map[string]string{}
	for r := range v.Of(CDS).All() {
		versions[r.Name] = r.Version
	}
	s := follow(true, nil, v)
	if s.Step(&Request{Type: CDS, Initial: versionsOf(versions)}); s.unknown != nil {
		t.Errorf("%d known names are remembered", len(s.unknown.names[CDS]))
	}
	versions[names[0]] = "older"
	s = follow(true, nil, v)
	if s.Step(&Request{Type: CDS, Initial: versionsOf(versions)}); s.unknown != nil {
		t.Errorf("a name that is known in another version is remembered: %v", s.unknown.names[CDS])
	}
}
