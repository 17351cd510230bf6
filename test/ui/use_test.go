package ui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// contrasts are the pairs of colors of text that is shown whose contrast is too small, by WCAG 2: 4.5 to 1.
const contrasts = `(() => {
  const light = (c) => { const v = c.map((x) => x / 255).map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const parse = (s) => s.match(/[\d.]+/g).map(Number);
  const background = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const out = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const svg = e.namespaceURI !== "http://www.w3.org/1999/xhtml";
    const style = getComputedStyle(e), a = light(parse(svg ? style.fill : style.color)), b = light(background(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.push(e.tagName + "." + e.className + " " + e.textContent.slice(0, 40) + ": " + ratio.toFixed(2));
  }
  return out;
})()`

// structure is what is wrong with the structure that assistive programs read: names, levels of headings, landmarks, ids.
const structure = `(() => {
  const out = [], shown = (e) => e.checkVisibility();
  let level = 0;
  for (const h of [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(shown)) {
    const n = Number(h.tagName[1]);
    if (n > level + 1) out.push("heading " + h.textContent + " is of level " + n + " after " + level);
    level = n;
  }
  if ([...document.querySelectorAll("h1")].filter(shown).length !== 1) out.push("not one h1");
  for (const tag of ["header", "nav", "main"]) if (document.querySelectorAll(tag).length !== 1) out.push("not one " + tag);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) out.push("id twice: " + id);
  for (const e of document.querySelectorAll("[aria-labelledby]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))) out.push("nothing has the id " + e.getAttribute("aria-labelledby"));
  if (!document.documentElement.lang || !document.title) out.push("no language or title");
  if (document.documentElement.scrollWidth > innerWidth) out.push("wider than the screen: " + document.documentElement.scrollWidth + " of " + innerWidth);
  for (const e of document.querySelectorAll("button, input, nav a")) if (shown(e) && (e.getBoundingClientRect().height < 18)) out.push("too small: " + e.outerHTML.slice(0, 100));
  return out;
})()`

// accessible are the nodes that a screen reader has, with their roles and names.
func (p *page) accessible() (out []struct{ role, name string }) {
	p.t.Helper()
	type value struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name value
		}
	}
	p.do("Accessibility.getFullAXTree", nil, &tree)
	for _, n := range tree.Nodes {
		if !n.Ignored {
			out = append(out, struct{ role, name string }{fmt.Sprint(n.Role.Value), strings.TrimSpace(fmt.Sprint(n.Name.Value))})
		}
	}
	return out
}

// controls are the roles of what a person can operate.
var controls = map[string]bool{"button": true, "link": true, "searchbox": true, "checkbox": true, "textbox": true, "DisclosureTriangle": true}

func TestThePageIsForEverybody(t *testing.T) {
	b := launch(t)
	p := start(t, shop())
	p.connect("cart-v1", "shop", "cart", "first")
	page := b.open(p.page(), screens[0])
	page.await("[...rows.proxies.values()].some((p) => p.refusal && p.refusal.holds)")
	chosen := "services/" + eval[string](page, "encodeURIComponent([...rows.services.keys()].find((k) => /payments/.test(k)))")
	for _, s := range screens {
		page.see(s)
		for _, section := range append(eval[[]string](page, "Object.keys(views)"), chosen) {
			eval[bool](page, fmt.Sprintf("(location.hash = %q, true)", section))
			page.await(fmt.Sprintf("current === made[%q]", strings.Split(section, "/")[0]))
			if section == chosen {
				page.await("document.querySelector('#map .sides')")
			}
			where := s.String() + " " + section
			for _, wrong := range eval[[]string](page, structure) {
				t.Errorf("%s: %s", where, wrong)
			}
			for _, wrong := range eval[[]string](page, contrasts) {
				t.Errorf("%s: contrast of %s, want 4.5", where, wrong)
			}
			seen := map[string]bool{}
			for _, n := range page.accessible() {
				seen[n.role] = true
				if controls[n.role] && n.name == "" {
					t.Errorf("%s: a %s without a name", where, n.role)
				}
			}
			for _, role := range []string{"banner", "navigation", "main", "table", "row", "columnheader", "rowheader", "cell", "status", "searchbox"} {
				if !seen[role] && !(role == "columnheader" && s.width < 600) {
					t.Errorf("%s: a screen reader finds no %s, only %v", where, role, seen)
				}
			}
		}
	}
}

func TestThePageIsUsedByKeyboard(t *testing.T) {
	b := launch(t)
	p := start(t, shop())
	page := b.open(p.page(), screens[0])
	page.await("rows.services.size === 6 && document.querySelector('#services tbody tr')")
	focus := func() string {
		return eval[string](page, "(document.activeElement === document.body ? 'BODY' : document.activeElement.innerText || document.activeElement.id || document.activeElement.tagName).trim()")
	}
	// Each Tab moves the focus on, visibly, through all controls.
	var visited []string
	for range 40 {
		page.key("Tab")
		at := focus()
		if at == "BODY" {
			break
		}
		visited = append(visited, at)
		if outline := eval[string](page, "getComputedStyle(document.activeElement).outlineStyle + ' ' + document.activeElement.matches(':focus-visible')"); outline != "solid true" {
			t.Errorf("the focus on %q is not visible: %s", at, outline)
		}
	}
	all := strings.Join(visited, "|")
	if !strings.HasPrefix(all, "Skip to the content|Pause updates|Services 6|Proxies 0|Changes 1|Problems 2 (1 error)|services-filter|") || !strings.Contains(all, "reviews.shop.svc.cluster.local") {
		t.Errorf("Tab visits %s", all)
	}
	// The first control skips to the content; a filter, a map, and back.
	eval[bool](page, "(document.activeElement.blur(), document.querySelector('.skip').focus(), true)")
	page.key("Enter")
	page.await("document.activeElement.id === 'main'")
	page.key("Tab")
	if at := focus(); at != "services-filter" {
		t.Errorf("after the skip, Tab leads to %q", at)
	}
	page.write("payments")
	page.await("document.querySelectorAll('#services tbody tr').length === 1")
	if count := shown(page, "#services .count"); count != "1 of 6" {
		t.Errorf("the count says %q", count)
	}
	page.key("Tab")
	page.key(" ")
	page.await("document.activeElement.checked")
	page.key("Tab")
	page.key("Enter")
	page.await("document.activeElement.id === 'map-title'")
	if text := shown(page, "#map"); !strings.Contains(text, "payments.shop") || !strings.Contains(text, "Policies: shop/payments") {
		t.Errorf("map: %s", text)
	}
	// An update does not move the focus, nor what is written.
	eval[bool](page, "(document.querySelector('#services tbody a.name').focus(), true)")
	p.write("more.yaml", service("shop", "payments-two", 200, "v1")+strings.Replace(route("shop", "payments", "moved", "{destination: {host: payments}}"), "---", "", 1))
	page.await("document.querySelectorAll('#services tbody tr').length === 2 && /moved/.test(document.querySelector('#services tbody').innerText)")
	if at := focus(); at != "payments.shop.svc.cluster.local" {
		t.Errorf("after an update, the focus is on %q", at)
	}
	// Updates can be stopped.
	eval[bool](page, "(document.getElementById('pause').focus(), true)")
	page.key("Enter")
	page.await("document.getElementById('pause').getAttribute('aria-pressed') === 'true' && /may be old/.test(document.getElementById('connection').innerText)")
	p.write("more.yaml", service("shop", "payments-three", 201, "v1"))
	page.await("[...rows.services.keys()].some((k) => /payments-three/.test(k))")
	if text := shown(page, "#services tbody"); strings.Contains(text, "payments-three") {
		t.Errorf("a paused page changes: %s", text)
	}
	page.key("Enter")
	page.await("/payments-three/.test(document.querySelector('#services tbody').innerText)")
	if c := page.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(c, "\n"))
	}
}

// Whoever may write objects, or is a proxy, must not run scripts in the browser of an operator.
func TestHostileTextIsText(t *testing.T) {
	const evil = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`
	b := launch(t)
	p := start(t, service("shop", "reviews", 1, "v1")+`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: '`+evil+`', namespace: shop}
spec: {hosts: [reviews], http: [{route: [{destination: {host: '`+evil+`'}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: evil, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, rules: [{from: [{source: {principals: ['`+evil+`']}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: evil, namespace: shop, labels: {app: reviews, version: '`+evil+`', security.istio.io/tlsMode: istio}}
status: {phase: Running, podIP: 10.99.9.9, conditions: [{type: Ready, status: "True"}]}
---`+route("shop", "reviews", "marked", "{destination: {host: reviews}}"))
	p.complaint = evil
	p.connect("reviews-v1", "shop", "reviews", "marked")
	page := b.open(p.page(), screens[0])
	page.await("[...rows.proxies.values()].some((p) => p.refusal)")
	for _, section := range append(eval[[]string](page, "Object.keys(views)"), "services/"+strings.ReplaceAll(evil, " ", "%20"), "services/%zz", "constructor", "__proto__") {
		eval[bool](page, fmt.Sprintf("(location.hash = %q, true)", section))
		page.await("current && document.querySelector('section:not([hidden])')")
	}
	eval[bool](page, "(location.hash = 'services/' + encodeURIComponent([...rows.services.keys()][0]), true)")
	page.await("document.querySelector('#map .sides')")
	text := ""
	for _, section := range eval[[]string](page, "Object.keys(views)") {
		page.goTo(section)
		text += shown(page, "main")
	}
	if n := strings.Count(text, evil); n < 3 {
		t.Errorf("hostile text is shown %d times, want in several places: %s", n, text)
	}
	if got := eval[string](page, "String(window.hacked) + document.querySelectorAll('main img, main script, main b, main iframe').length"); got != "undefined0" {
		t.Errorf("hostile text has become markup: %s", got)
	}
	page.goTo("proxies")
	page.shoot("hostile")
	// What the policy of contents rules out, whoever asks.
	for _, attempt := range []string{
		"document.body.innerHTML = '<p>x</p>'", "eval('1')", "document.write('x')", "new Function('1')()", "Object.assign(document.createElement('script'), {text: '1'})",
	} {
		if got := eval[string](page, "(() => { try { "+attempt+"; return 'done'; } catch (e) { return 'refused'; } })()"); got != "refused" {
			t.Errorf("%s: %s", attempt, got)
		}
	}
	if got := eval[int](page, "localStorage.length + sessionStorage.length + document.cookie.length"); got != 0 {
		t.Errorf("%d things are kept in the browser", got)
	}
	page.mu.Lock()
	defer page.mu.Unlock()
	for _, url := range page.requests {
		if !strings.HasPrefix(url, "http://"+p.addr.HTTP+"/ui/") && url != "about:blank" {
			t.Errorf("the page asks for %s", url)
		}
	}
}

// The page says that it has lost the control plane, and keeps what it shows.
func TestThePageTellsThatItIsAlone(t *testing.T) {
	b := launch(t)
	p := start(t, shop())
	page := b.open(p.page(), screens[2])
	page.await("document.getElementById('connection').innerText === 'Live' && document.querySelector('#services tbody tr')")
	p.stop()
	page.await("/^Connection lost: what is shown is as of /.test(document.getElementById('connection').innerText)")
	if !strings.Contains(shown(page, "#services"), "payments.shop") {
		t.Error("what was shown is gone")
	}
	page.shoot("alone")

	// Before the first update nothing is known, not that there is nothing.
	if got := eval[string](page, "(Object.values(rows).forEach((r) => r.clear()), made.services.render(), made.services.count.textContent + made.services.none.textContent)"); got != "" {
		t.Errorf("without any update it says %q", got)
	}
}

// A thousand services stay usable: what the document has is bounded, and a filter and an update are quick.
func TestAThousandServices(t *testing.T) {
	var yaml strings.Builder
	for i := range 1000 {
		yaml.WriteString(service(fmt.Sprintf("team-%02d", i%20), fmt.Sprintf("service-%04d", i), i, "v1", "v2"))
	}
	for i := range 20 {
		fmt.Fprintf(&yaml, "\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: own, namespace: team-%02d}\nspec: {rules: [{from: [{source: {namespaces: [team-%02d, team-00]}}]}]}\n---", i, i)
	}
	b := launch(t)
	p := start(t, yaml.String())
	page := b.open(p.page(), screens[0])
	page.await("rows.services.size === 1000 && document.querySelectorAll('#services tbody tr').length === 50")
	page.shoot("thousand-" + screens[0].String())
	eval[bool](page, "(location.hash = 'services/' + encodeURIComponent('Service/team-07/service-0007'), true)")
	page.await("document.querySelector('#map .sides')")
	if text := shown(page, "#map"); !strings.Contains(text, "allowed 99 services") || !strings.Contains(text, "denied 900 services") {
		t.Errorf("map %.600s", text)
	}
	eval[bool](page, "(document.querySelectorAll('#map details').forEach((d) => { d.open = true; }), true)")
	elements := eval[int](page, "document.querySelectorAll('*').length")
	if elements > 3000 {
		t.Errorf("the document has %d elements, want a number that does not grow with the mesh", elements)
	}
	render := eval[float64](page, "(() => { const a = performance.now(); for (let i = 0; i < 10; i++) { current.made = new Map(); current.body.replaceChildren(); current.render(); document.body.offsetHeight; } return (performance.now() - a) / 10; })()")
	filter := eval[float64](page, "(() => { const f = document.getElementById('services-filter'), a = performance.now(); for (const t of ['s', 'se', 'service-09', 'team-07']) { f.value = t; f.dispatchEvent(new Event('input')); document.body.offsetHeight; } return (performance.now() - a) / 4; })()")
	page.await("document.querySelector('#services .count').innerText === '50 of 1,000'")
	page.shoot("thousand-filtered-" + screens[0].String())
	p.write("edit.yaml", route("team-07", "service-0007", "moved", "{destination: {host: service-0007}}"))
	page.await("/moved/.test(document.querySelector('#services tbody').innerText)")
	t.Logf("%d elements; a page is drawn in %.1f ms, a filter takes %.1f ms", elements, render, filter)
	// A tenth of a second is what people notice. What grew with the mesh would take many times this even on a busy machine.
	if render > 10000 || filter > 10000 {
		t.Errorf("a page is drawn in %.0f ms, a filter takes %.0f ms", render, filter)
	}
	page.see(screens[2])
	page.shoot("thousand-" + screens[2].String())

	resp, err := http.Get("http://" + p.addr.HTTP + "/ui/neighbours?service=Service/team-07/service-0007")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Callers, Callees map[string]string }
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || len(got.Callers) != 999 || got.Callers["Service/team-00/service-0000"] != "allowed" || got.Callers["Service/team-01/service-0001"] != "denied" || got.Callees["Service/team-01/service-0001"] != "denied" {
		t.Errorf("%d callers, %v", len(got.Callers), err)
	}
	wait.Until(t, "the page is still live", func() bool { return shown(page, "#connection") == "Live" })
}
