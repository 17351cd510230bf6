package discovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// observed is a plane whose objects are observed, as in a cluster.
func observed(t *testing.T, changed func([]object.Key)) (*plane, *observer) {
	t.Helper()
	p := start(t)
	var o *observer
	p.server.loop.ask(func() { o = newObserver(p.server.loop, p.server.xds.Connection, changed) })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p, o
}

var reviewsRoute = object.Key{Kind: object.VirtualService, Namespace: "shop", Name: "reviews"}

// generation gives an object of routes a generation.
func generation(n int, text string) string {
	return strings.ReplaceAll(text, "metadata: {name: reviews, namespace: shop}", fmt.Sprintf("metadata: {name: reviews, namespace: shop, generation: %d}", n))
}

// until waits until an object is observed to have counts, and returns the observation.
func (o *observer) until(t *testing.T, k object.Key, inForce int64, want objectstatus.Counts) (got objectstatus.Observation) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("%s is observed", k), func() error {
		var ok bool
		if got, ok = o.of(k); !ok || got.InForce != inForce || got.Counts != want {
			return fmt.Errorf("%+v, %v; want %+v of generation %d", got, ok, want, inForce)
		}
		return nil
	})
	return got
}

func TestObserverCountsTheProxiesOfAnObject(t *testing.T) {
	p, o := observed(t, func([]object.Key) {})
	p.emit(shop+"---\n"+generation(1, route("{name: first, route: [{destination: {host: reviews}}]}")), true)
	o.until(t, reviewsRoute, 1, objectstatus.Counts{})
	a, b := p.dial("", "").open(), p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	a.until("9080", "first")
	b.until("9080", "first")
	p.emit(generation(2, route("{name: second, route: [{destination: {host: reviews}}]}")), false)
	o.until(t, reviewsRoute, 2, objectstatus.Counts{Proxies: 2})
	go a.takeAll()
	o.until(t, reviewsRoute, 2, objectstatus.Counts{Proxies: 2, Applied: 1})
	go b.takeAll()
	o.until(t, reviewsRoute, 2, objectstatus.Counts{Proxies: 2, Applied: 2})
	// A version that changes nothing for proxies is applied by all that use the object.
	p.emit(generation(3, route("{name: second, route: [{destination: {host: reviews}}]}")), false)
	o.until(t, reviewsRoute, 3, objectstatus.Counts{Proxies: 2, Applied: 2})
	p.batch(object.Batch{Changes: []object.Change{{Key: reviewsRoute}}})
	wait.Until(t, "the object is gone", func() bool { _, ok := o.of(reviewsRoute); return !ok })
}

func TestObserverHasVerdictsAndRefusals(t *testing.T) {
	p, o := observed(t, func([]object.Key) {})
	p.emit(shop+"---\n"+generation(1, route("{name: first, route: [{destination: {host: reviews}}]}")), true)
	a := p.dial("", "").open().refusing("9080", "second")
	go a.takeAll()
	p.emit(generation(2, route("{name: second, route: [{destination: {host: reviews}, weight: -1}]}")), false)
	var got objectstatus.Observation
	wait.NoError(t, "the rejection is observed", func() error {
		if got, _ = o.of(reviewsRoute); got.Generation != 2 || got.InForce != 1 || len(got.Findings) != 1 || got.Findings[0].Code != objectstatus.CodeRejected {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	p.emit(generation(3, route("{name: second, route: [{destination: {host: reviews}}]}")), false)
	got = o.until(t, reviewsRoute, 3, objectstatus.Counts{Proxies: 1, Refused: 1})
	wait.NoError(t, "the refusal is observed", func() error {
		if got, _ = o.of(reviewsRoute); len(got.Findings) != 0 || len(got.Refusals) != 1 || !strings.Contains(got.Refusals[0].Text, "RDS 9080 is refused") {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	p.emit(generation(4, route("{name: third, route: [{destination: {host: reviews}}]}")), false)
	if got = o.until(t, reviewsRoute, 4, objectstatus.Counts{Proxies: 1, Applied: 1}); len(got.Refusals) != 0 {
		wait.Until(t, "the refusal is gone", func() bool { got, _ := o.of(reviewsRoute); return len(got.Refusals) == 0 })
	}
}

// The loop is asked about the objects that have changed, and not about all.
func TestObserverLooksAtWhatHasChanged(t *testing.T) {
	seen := make(chan []object.Key, 10)
	p, o := observed(t, func(keys []object.Key) { seen <- slices.Clone(keys) })
	var text strings.Builder
	for i := range 200 {
		fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r%d, namespace: shop, generation: 1}\nspec: {host: h%d.example.com}\n", i, i)
	}
	p.emit(shop+text.String(), true)
	for known := 0; known < 200; {
		known += len(<-seen)
	}
	if n := len(o.Keys()); n != 200 {
		t.Errorf("%d objects are known", n)
	}
	p.emit("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r7, namespace: shop, generation: 2}\nspec: {host: h7.example.com}\n", false)
	if changed := <-seen; len(changed) != 1 || changed[0].Name != "r7" {
		t.Errorf("%v", changed)
	}
}
