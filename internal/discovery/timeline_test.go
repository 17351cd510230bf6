package discovery

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// lastEdit waits until the newest change of a plane is as wanted.
func (p *plane) lastEdit(what string, ok func(ui.Edit) bool) (e ui.Edit) {
	p.t.Helper()
	wait.Until(p.t, what, func() bool {
		all := p.server.pageState().Edits
		if len(all) == 0 {
			return false
		}
		e = all[len(all)-1]
		return ok(e)
	})
	return e
}

func TestTimelineTellsWhatAChangeMoved(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	first := p.lastEdit("the first read", func(e ui.Edit) bool { return e.Generation == 1 })
	if first.Count != 3 || len(first.Objects) != 3 || first.Proxies != 0 || first.At.IsZero() {
		t.Errorf("first read %+v, want three objects and no proxy", first)
	}
	c := p.dial("", "").open()
	c.until("9080", "first")
	other := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	other.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	c.until("9080", "second")
	other.until("9080", "second")
	e := p.lastEdit("both proxies have the change", func(e ui.Edit) bool { return e.Applied == 2 })
	if e.Count != 1 || e.Objects[0].Object != "VirtualService shop/reviews" || !strings.HasPrefix(e.Objects[0].Origin, "input.yaml:") || e.Objects[0].Removed {
		t.Errorf("objects %+v", e.Objects)
	}
	if e.Proxies != 2 || e.Gone != 0 || e.Resources != 1 || e.Bytes == 0 || e.Runs == 0 || e.Runs > 100 || e.Classes != 2 || e.Milliseconds <= 0 || e.AppliedMilliseconds < e.Milliseconds {
		t.Errorf("change %+v, want one resource, for two proxies of two classes", e)
	}
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.VirtualService, Namespace: "shop", Name: "reviews"}}}})
	c.untilGone("9080", "second")
	e = p.lastEdit("the removal", func(e ui.Edit) bool { return len(e.Objects) == 1 && e.Objects[0].Removed })
	if e.Objects[0].Origin != "" {
		t.Errorf("removal %+v", e)
	}
}

// A proxy that refuses a change has it when it has accepted a later version, and one that leaves is not waited for.
func TestTimelineCountsProxiesThatRefuseOrLeave(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	refuses := p.dial("", "").open().refusing("9080", "second")
	refuses.until("9080", "first")
	leaves := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open().refusing("9080", "second")
	leaves.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	refuses.wait("a refusal", func() bool { return refuses.refused > 0 })
	leaves.wait("a refusal", func() bool { return leaves.refused > 0 })
	second := p.lastEdit("the refused change", func(e ui.Edit) bool { return e.Proxies == 2 })
	if second.Applied != 0 || second.AppliedMilliseconds != 0 {
		t.Errorf("refused change %+v", second)
	}
	if err := leaves.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	of := func(generation uint64) ui.Edit {
		all := p.server.pageState().Edits
		return all[slices.IndexFunc(all, func(e ui.Edit) bool { return e.Generation == generation })]
	}
	wait.Until(t, "one has gone", func() bool { return of(second.Generation).Gone == 1 })
	p.emit(route("{name: third, route: [{destination: {host: reviews}}]}"), false)
	refuses.until("9080", "third")
	p.lastEdit("the repair", func(e ui.Edit) bool { return e.Proxies == 1 && e.Applied == 1 })
	if e := of(second.Generation); e.Applied != 1 || e.Gone != 1 {
		t.Errorf("after the repair: %+v", e)
	}
}

func TestTimelineIsBounded(t *testing.T) {
	tl := &timeline{}
	at := time.Unix(100, 0)
	for g := range uint64(maxEdits + 50) {
		tl.begin(g, at)
		tl.applied([]uint64{g}, at.Add(1500*time.Microsecond)) // before the loop has ended it
		tl.end(ui.Edit{Proxies: 1, Runs: g})
	}
	tl.applied([]uint64{3}, at) // forgotten
	all := tl.list()
	if len(all) != maxEdits || all[0].Generation != 50 || all[maxEdits-1].Generation != maxEdits+49 {
		t.Fatalf("%d changes from %d", len(all), all[0].Generation)
	}
	for _, e := range all {
		if e.Applied != 1 || e.AppliedMilliseconds != 1.5 || e.Proxies != 1 || e.Runs != e.Generation || !e.At.Equal(at) {
			t.Fatalf("change %+v", e)
		}
	}
}
