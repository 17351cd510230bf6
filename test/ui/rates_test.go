package ui_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// Where a Prometheus server is named, services and the edges of the map have rates and errors; without one there are none.
func TestRatesAndErrors(t *testing.T) {
	var away atomic.Bool
	series := func(workload, namespace, host, value string) string {
		return fmt.Sprintf(`{"metric":{"reporter":"source","source_workload":%q,"source_workload_namespace":%q,"destination_service":%q},"value":[1,%q]}`, workload, namespace, host, value)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.FormValue("query")
		list := []string{
			series("frontend-v1", "shop", "cart.shop.svc.cluster.local", "12.5"), series("loader", "ops", "cart.shop.svc.cluster.local", "40"),
			series("cart-v1", "shop", "payments.shop.svc.cluster.local", "3"), series("legacy-v1", "ops", "cart.shop.svc.cluster.local", "1"),
			series("<img src=x onerror=alert(1)>", "ops", "cart.shop.svc.cluster.local", "0.5"),
		}
		if strings.Contains(q, "5..") {
			list = []string{series("frontend-v1", "shop", "cart.shop.svc.cluster.local", "0.25")}
		}
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, strings.Join(list, ","))
	}))
	defer s.Close()
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := launch(t)
	p := startWith(t, shop(), at)
	page := b.open(p.page(), screens[0])
	page.await("/54.0 requests\\/s, 0.5.% errors/.test(document.querySelector('#services tbody').innerText)")
	eval[bool](page, "(location.hash = 'services/' + encodeURIComponent([...rows.services.keys()].find((k) => /cart/.test(k))), true)")
	page.await("document.querySelector('#map .senders li')")
	text := shown(page, "#map")
	for _, want := range []string{
		"frontend.shop.svc.cluster.local: 12.5 requests/s, 2.0\u00a0% errors", "payments.shop.svc.cluster.local: 3.00 requests/s", "ops/loader: 40.0 requests/s", "ops/<img src=x onerror=alert(1)>: 0.50 requests/s",
		"legacy.ops.svc.cluster.local: 1.00 requests/s",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the map lacks %q: %s", want, text)
		}
	}
	edges := eval[[]string](page, "[...document.querySelectorAll('#map .picture text.rate')].map((e) => e.textContent + (e.matches('.failing') ? '!' : ''))")
	if got := strings.Join(edges, "|"); got != "12.5/s, 2.0\u00a0% errors!|1.00/s|3.00/s" {
		t.Errorf("edges %q", got)
	}
	if n := eval[int](page, "document.querySelectorAll('#map .picture .never').length"); n != 1 {
		t.Errorf("%d edges of callers that are denied, want that of legacy", n)
	}
	for _, s := range screens {
		page.see(s)
		for _, wrong := range append(eval[[]string](page, structure), eval[[]string](page, contrasts)...) {
			t.Errorf("%s: %s", s, wrong)
		}
		page.shoot("rates-" + s.String())
	}
	if c := page.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(c, "\n"))
	}
	away.Store(true)
	page.await("/requests are not known: Prometheus at .*: status 503/.test(document.getElementById('notes').innerText)")

	without := b.open(start(t, shop()).page(), screens[0])
	without.await("document.querySelectorAll('#services tbody tr').length === 6")
	eval[bool](without, "(location.hash = 'services/' + encodeURIComponent([...rows.services.keys()].find((k) => /cart/.test(k))), true)")
	without.await("document.querySelector('#map .sides')")
	if text := shown(without, "main"); strings.Contains(text, "requests/s") || strings.Contains(text, "Requests by workload") {
		t.Errorf("without a server: %s", text)
	}
}
