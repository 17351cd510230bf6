// Package ui_test tests the page of the control plane in a real browser: what it shows, and for whom it can be used.
//
// Chromium runs headless. Pictures of what it shows are kept in screenshots, which git ignores, for people to look at.
package ui_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if _, err := chromium(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// screens are those that the page has to be readable on.
var screens = []screen{{1280, 900, false}, {1280, 900, true}, {400, 800, false}, {400, 800, true}}

// route is a VirtualService of the shop, whose header names its version.
func route(namespace, host, version string, weights string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[2]s, namespace: %[1]s}
spec: {hosts: [%[2]s], http: [{name: %[3]s, headers: {response: {set: {x-version: %[3]s}}}, route: [%[4]s]}]}
---`, namespace, host, version, weights)
}

// shop is a mesh with a bit of everything.
func shop() string {
	out := ""
	for i, name := range []string{"frontend", "catalog", "cart", "payments"} {
		out += service("shop", name, i, "v1")
	}
	out += service("shop", "reviews", 10, "v1", "v2") + service("ops", "legacy", 11, "v1")
	return out + `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: reviews, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, mtls: {mode: STRICT}, portLevelMtls: {9080: {mode: PERMISSIVE}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: payments, namespace: shop}
spec:
  selector: {matchLabels: {app: payments}}
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/cart]}}]
    to: [{operation: {methods: [POST]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  rules: [{from: [{source: {namespaces: [shop]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: catalog, namespace: shop}
spec:
  selector: {matchLabels: {app: catalog}}
  action: DENY
  rules: [{from: [{source: {namespaces: [ops]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: legacy, namespace: ops}
spec: {}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: broken, namespace: shop}
spec: {hosts: [cart], http: [{route: [{destination: {host: cart}, weight: -1}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: dangling, namespace: shop}
spec: {hosts: [catalog], http: [{route: [{destination: {host: catalogue}}]}]}
---` + route("shop", "reviews", "first", "{destination: {host: reviews, subset: v1}, weight: 90}, {destination: {host: reviews, subset: v2}, weight: 10}")
}

// shown is the text of a part of the page as a person reads it.
func shown(p *page, selector string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf("document.querySelector(%q).innerText", selector))
}

// goTo chooses a section.
func (p *page) goTo(section string) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf("(location.hash = %q, true)", section))
	p.await(fmt.Sprintf("!document.getElementById(%q).hidden", section))
}

func TestThePageFollowsTheMesh(t *testing.T) {
	b := launch(t)
	p := start(t, shop())
	p.connect("reviews-v1", "shop", "reviews", "")
	p.connect("cart-v1", "shop", "cart", "rejected")
	page := b.open(p.page(), screens[0])
	page.await("document.getElementById('connection').innerText === 'Live'")
	page.goTo("proxies")
	page.await("document.querySelectorAll('#proxies tbody tr').length === 2")
	page.await("(document.querySelector('#proxies tbody').innerText.match(/in sync/g) || []).length === 2")
	text := shown(page, "#proxies")
	for _, want := range []string{"reviews-v1.shop", "sidecar", "epoch 2", "CDS", "synced", "none: plaintext"} {
		if !strings.Contains(text, want) {
			t.Errorf("proxies lack %q: %s", want, text)
		}
	}
	page.goTo("problems")
	text = shown(page, "#problems")
	for _, want := range []string{"VirtualService shop/broken", "mesh.yaml:", "spec.http[0].route[0].weight", "VirtualService shop/dangling", "catalogue"} {
		if !strings.Contains(text, want) {
			t.Errorf("problems lack %q: %s", want, text)
		}
	}

	p.write("edit.yaml", route("shop", "catalog", "rejected", "{destination: {host: catalog}}"))
	page.await("[...rows.proxies.values()].some((p) => p.refusal && p.refusal.holds)")
	page.goTo("proxies")
	page.await("/rejected is not a retry policy that this Envoy has/.test(document.querySelector('#proxies').innerText)")
	if first := shown(page, "#proxies tbody tr"); !strings.Contains(first, "cart-v1.shop") || !strings.Contains(first, "RDS") {
		t.Errorf("the proxy that refuses is not the first: %s", first)
	}
	page.goTo("changes")
	page.await("/VirtualService shop\\/catalog/.test(document.querySelector('#changes tbody tr').innerText) && /1 of 2 applied/.test(document.querySelector('#changes tbody tr').innerText)")
	text = shown(page, "#changes tbody tr")
	for _, want := range []string{"edit.yaml:", "rules run in", "resource", " moved, ", "\u00a0ms", "\u00a0kB"} {
		if !strings.Contains(text, want) {
			t.Errorf("the change lacks %q: %s", want, text)
		}
	}
	p.write("edit.yaml", route("shop", "catalog", "good", "{destination: {host: catalog}}"))
	page.await("/2 of 2 applied in/.test(document.querySelector('#changes tbody tr').innerText)")
	page.goTo("proxies")
	page.await("/a later version is accepted/.test(document.querySelector('#proxies').innerText)")
	if n := eval[int](page, "document.querySelectorAll('#changes tbody tr:first-child .mono wbr').length"); n < 2 {
		t.Errorf("a path may be broken after %d slashes", n)
	}
	page.goTo("services")
	text = shown(page, "#services tbody")
	for _, want := range []string{"payments.shop.svc.cluster.local", "cluster.local/ns/shop/sa/cart, for POST", "STRICT", "PERMISSIVE", "reviews v1 90\u00a0%", "v2 1 (50\u00a0%)", "nobody", "but not: namespace ops"} {
		if !strings.Contains(text, want) {
			t.Errorf("services lack %q: %s", want, text)
		}
	}
	eval[bool](page, "([...document.querySelectorAll('#services tbody a.name')].find((a) => /^cart/.test(a.textContent)).click(), true)")
	page.await("document.activeElement.id === 'map-title' && document.activeElement.textContent === 'cart.shop.svc.cluster.local'")
	text = shown(page, "#map .sides")
	for _, want := range []string{"May talk to it", "allowed 4 services", "denied 1 service", "It may talk to", "depends 1 service", "reviews.shop.svc.cluster.local – PERMISSIVE · v1 90\u00a0%, v2 10\u00a0%", "payments.shop.svc.cluster.local"} {
		if !strings.Contains(text, want) {
			t.Errorf("the map lacks %q: %s", want, text)
		}
	}
	// The picture says of each service what it is about, and leads to its map.
	nodes := eval[[]string](page, "[...document.querySelectorAll('#map .picture .node')].map((g) => [...g.querySelectorAll('text')].map((x) => x.textContent).join(': '))")
	for _, want := range []string{"cart.shop: STRICT · v1", "reviews.shop: PERMISSIVE · v1 90\u00a0%, v2 10\u00a0%"} {
		if !slices.Contains(nodes, want) {
			t.Errorf("the picture lacks %q: %q", want, nodes)
		}
	}
	if legend := shown(page, "#map .legend"); !strings.Contains(legend, "depends on the request") {
		t.Errorf("legend %q", legend)
	}
	eval[bool](page, "([...document.querySelectorAll('#map .picture .node')].find((g) => /reviews/.test(g.textContent)).setAttribute('id', 'chosen'), true)")
	page.click("#chosen text")
	page.await("document.activeElement.id === 'map-title' && document.activeElement.textContent === 'reviews.shop.svc.cluster.local'")
	for _, s := range screens {
		page.see(s)
		if n := eval[int](page, "new Set([...document.querySelectorAll('nav li')].map((e) => Math.round(e.getBoundingClientRect().left))).size"); s.width < 600 && n != 2 {
			t.Errorf("%s: the sections are in %d columns, want 2", s, n)
		}
		eval[bool](page, "(location.hash = 'services/' + encodeURIComponent([...rows.services.keys()].find((k) => /cart/.test(k))), true)")
		page.await("document.querySelector('#map .sides')")
		page.shoot("map-" + s.String())
		for _, section := range eval[[]string](page, "Object.keys(views)") {
			page.goTo(section)
			page.shoot(section + "-" + s.String())
		}
	}
	if c := page.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(c, "\n"))
	}
}
