package discovery

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

func (p *plane) sync() map[string]syncEntry {
	p.t.Helper()
	var list []syncEntry
	_, body := p.get(p.addr.HTTP, "/debug/syncz")
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		p.t.Fatal(err)
	}
	out := map[string]syncEntry{}
	for _, e := range list {
		out[e.Proxy] = e
	}
	return out
}

// appliedTo is the page about one object.
func (p *plane) appliedTo(kind, namespace, name string) appliedEntry {
	p.t.Helper()
	code, body := p.get(p.addr.HTTP, "/debug/applied?kind="+kind+"&namespace="+namespace+"&name="+name)
	return p.oneEntry(code, body)
}

// appliedFile is the page about a file with one object.
func (p *plane) appliedFile(yaml string) appliedEntry {
	p.t.Helper()
	code, body := p.post(yaml)
	return p.oneEntry(code, body)
}

func (p *plane) post(yaml string) (int, string) {
	p.t.Helper()
	resp, err := http.Post("http://"+p.addr.HTTP+"/debug/applied?file=edit.yaml", "application/yaml", strings.NewReader(yaml))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (p *plane) oneEntry(code int, body string) appliedEntry {
	p.t.Helper()
	var out appliedAnswer
	if err := json.Unmarshal([]byte(body), &out); err != nil || code != http.StatusOK || len(out.Objects) != 1 {
		p.t.Fatalf("response %d: %s (%v)", code, body, err)
	}
	return out.Objects[0]
}

const strictReviews = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: w, namespace: shop}\nspec: {selector: {matchLabels: {app: reviews}}, mtls: {mode: STRICT}}\n"

// A generation is a commit. A proxy that joins does not raise it, and one that a commit does not concern
// is at it at once.
func TestGenerationsAreTheSameForAllProxies(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	at := func(what string, generation uint64) {
		t.Helper()
		wait.Until(t, what, func() bool {
			got := p.sync()
			for _, e := range got {
				if e.Generation != generation || e.Applied != generation || e.Behind != nil {
					return false
				}
			}
			return len(got) == 2
		})
	}
	c := p.dial("", "").open()
	c.expect("RDS", "9080")
	other := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	other.expect("RDS", "9080")
	at("both are at the first generation", 1)
	p.emit(shop, false)
	at("nothing has changed", 1)
	p.emit("apiVersion: v1\nkind: Namespace\nmetadata: {name: of-no-concern}\n", false)
	at("an object that concerns nobody", 2)
	p.emit(strictReviews, false)
	// The client has not answered yet, since it answers only below.
	wait.Until(t, "only the proxy that it concerns is behind", func() bool {
		got := p.sync()
		return got["reviews-1.shop"].Applied == 2 && got["reviews-1.shop"].Behind != nil && got["reviews-1.shop"].Behind.Generation == 3 && got["other-1.shop"].Applied == 3 &&
			got["reviews-1.shop"].Generation == 3
	})
	c.untilGone("virtualInbound", "raw_buffer")
	at("both are at the third generation", 3)
	if err := c.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "one has left", func() bool { return len(p.sync()) == 1 })
	c = p.dial("", "").open()
	c.expect("RDS", "9080")
	at("one has come back", 3)
}

func TestAppliedSaysWhomAChangeConcernsAndWhoHasIt(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	a := p.dial("", "").open()
	a.expect("RDS", "9080")
	b := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	b.expect("RDS", "9080")
	expect := func(what string, get func() appliedEntry, state string, generation uint64, applied, of int) (last appliedEntry) {
		t.Helper()
		wait.Until(t, what, func() bool {
			last = get()
			if last.State != state || last.Generation != generation || last.Proxies != of || last.Applied > applied {
				t.Errorf("%s: %+v, want %q in generation %d, applied %d/%d", what, last, state, generation, applied, of)
				return true
			}
			return last.Applied == applied
		})
		return last
	}
	page := func(kind, name string) func() appliedEntry {
		return func() appliedEntry { return p.appliedTo(kind, "shop", name) }
	}
	expect("a Service that both have from the start", page("svc", "reviews"), stateInForce, 1, 2, 2)
	if got := p.appliedTo("vs", "shop", "reviews"); got.State != stateUnknown || got.Generation != 0 {
		t.Errorf("an object that nobody has reported: %+v", got)
	}
	first := route("{name: first, route: [{destination: {host: reviews}}]}")
	if got := p.appliedFile(first); got.State != stateOther {
		t.Errorf("a file that was not read yet: %+v", got)
	}
	p.emit(first, false)
	var got appliedEntry
	wait.Until(t, "it is sent to both", func() bool {
		got = expect("nobody has answered", page("VirtualService", "reviews"), stateInForce, 2, 0, 2)
		return len(got.Behind) == 2 && len(got.Behind[0].Types) > 0 && got.Behind[0].Types[0].State == typeSent
	})
	if len(got.Behind) != 2 || got.Behind[0].Proxy != "other-1.shop" || got.Behind[0].Generation != 2 || got.Behind[0].Since == "" ||
		len(got.Behind[0].Types) != 1 || got.Behind[0].Types[0].Type != "RDS" || got.Behind[0].Types[0].State != typeSent {
		t.Errorf("behind are %+v", got.Behind)
	}
	a.until("9080", "first")
	expect("one has answered", page("virtualservices", "reviews"), stateInForce, 2, 1, 2)
	b.until("9080", "first")
	expect("both have", func() appliedEntry { return p.appliedFile(first) }, stateInForce, 2, 2, 2)
	p.emit(strictReviews, false)
	a.untilGone("virtualInbound", "raw_buffer")
	expect("a policy that selects one", page("pa", "w"), stateInForce, 3, 1, 1)
	p.emit("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop}\n", false)
	expect("an object that nothing is made from", page("sa", "a"), stateInForce, 4, 0, 0)

	// A change that one refuses.
	refused := false
	b.refuses = func(r *discoveryv3.DeltaDiscoveryResponse) string {
		if r.TypeUrl == xds.RDS.URL() {
			refused = true
			return "9080: no such filter"
		}
		return ""
	}
	second := route("{name: second, route: [{destination: {host: reviews}}]}")
	p.emit(second, false)
	a.until("9080", "second")
	b.wait("the response that it refuses", func() bool { return refused })
	wait.Until(t, "the refusal", func() bool {
		got = expect("one refuses it", func() appliedEntry { return p.appliedFile(second) }, stateInForce, 5, 1, 2)
		return len(got.Behind) == 1 && got.Behind[0].Refused
	})
	if len(got.Behind) != 1 || !got.Behind[0].Refused || len(got.Behind[0].Types) != 1 || got.Behind[0].Types[0].State != typeRefused ||
		got.Behind[0].Types[0].Message != "9080: no such filter" || strings.Join(got.Behind[0].Types[0].Resources, " ") != "9080" {
		t.Errorf("behind are %+v", got.Behind)
	}
	// It does not stand in the way of other changes.
	p.emit("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\nspec: {host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}\n", false)
	for _, c := range []*client{a, b} {
		go c.takeAll()
	}
	wait.Until(t, "both have the DestinationRule", func() bool { return p.appliedTo("dr", "shop", "r").Applied == 2 })
	if e := p.sync()["other-1.shop"]; e.Applied != 4 || e.Behind == nil || e.Behind.Generation != 5 {
		t.Errorf("the proxy that refuses is at %+v", e)
	}

	// Rejected, and removed.
	bad := route("{name: third, route: [{destination: {host: reviews}, weight: -1}]}")
	if got := p.appliedFile(bad); got.State != stateRejected || len(got.Problems) == 0 || !strings.Contains(got.Problems[0].Text, "-1") {
		t.Errorf("a version that is invalid: %+v", got)
	}
	p.emit(bad, false)
	if got := p.appliedTo("vs", "shop", "reviews"); got.State != stateRejected || got.Generation != 5 || len(got.Problems) == 0 {
		t.Errorf("an object of which the newest version is invalid: %+v", got)
	}
	if code, body := p.post("kind: VirtualService\n---\n{"); code != http.StatusOK || !strings.Contains(body, `"problems"`) || !strings.Contains(body, "edit.yaml:1") {
		t.Errorf("a file that cannot be parsed: %d %s", code, body)
	}
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.VirtualService, Namespace: "shop", Name: "reviews"}}}})
	if got := p.appliedTo("vs", "shop", "reviews"); got.State != stateRemoved || got.Generation != 7 || got.Proxies != 2 {
		t.Errorf("an object that is removed: %+v", got)
	}
	_, body := p.get(p.addr.HTTP, "/debug/applied")
	var all appliedAnswer
	if err := json.Unmarshal([]byte(body), &all); err != nil || all.Generation != 7 || all.Started == "" {
		t.Errorf("all objects: %v, %s", err, body)
	}
	var names []string
	for _, e := range all.Objects {
		names = append(names, string(e.Kind))
	}
	if got := strings.Join(names, " "); got != "DestinationRule PeerAuthentication Pod Service ServiceAccount" {
		t.Errorf("objects in force: %s", got)
	}
	for path, want := range map[string]string{
		"?kind=vs&namespace=shop": "missing name", "?kind=deployment&name=x": "invalid kind", "?name=x": "invalid kind",
	} {
		if code, body := p.get(p.addr.HTTP, "/debug/applied"+path); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// While no proxy is served, nothing has been applied by all.
func TestAppliedSaysThatNobodyIsServed(t *testing.T) {
	p := start(t)
	p.emit(shop, false)
	if _, body := p.get(p.addr.HTTP, "/debug/applied?kind=svc&namespace=shop&name=reviews"); !strings.Contains(body, `"not_served": "configuration has not been read yet"`) {
		t.Error(body)
	}
}
