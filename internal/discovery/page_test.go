package discovery

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestPageShowsProxiesAndProblems(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	c := p.dial("", "").open().refusing("9080", "second")
	c.until("9080", "first")
	secure := p.dial(p.token("shop", "default"), p.root()).open()
	secure.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	c.wait("a refusal", func() bool { return c.refused > 0 })
	secure.until("9080", "second")
	var plain, proven ui.Proxy
	var problems []ui.Problem
	wait.Until(t, "the page shows the refusal, and the object that it is traced to", func() bool {
		state := p.server.pageState()
		problems = state.Problems
		for _, x := range state.Proxies {
			if x.Identity == "" {
				plain = x
			} else {
				proven = x
			}
		}
		return plain.Refusal != nil && len(plain.Refusal.Resources) > 0 && plain.Behind != nil && proven.Behind == nil && len(problems) > 0
	})
	if r := plain.Refusal; r.Type != "RDS" || !r.Holds || !strings.Contains(r.Message, "second is bad") || len(r.Resources) != 1 || r.Resources[0] != "9080" || r.At.IsZero() || plain.Refusals != 1 {
		t.Errorf("refusal %+v of %+v", r, plain)
	}
	if plain.Name != "reviews-1.shop" || plain.Role != "sidecar" || plain.CertificateEnds != nil || plain.Behind.Since.IsZero() {
		t.Errorf("proxy %+v", plain)
	}
	if proven.Identity != "spiffe://cluster.local/ns/shop/sa/default" {
		t.Errorf("proxy %+v", proven)
	}
	states := map[string]string{}
	for _, x := range plain.Types {
		states[x.Name] = x.State
	}
	if states["RDS"] != "refused" || states["CDS"] != "synced" {
		t.Errorf("states %v", states)
	}
	p.emit(route("{name: third, route: [{destination: {host: reviews}}]}"), false)
	c.until("9080", "third")
	wait.Until(t, "the refusal is one of the past", func() bool {
		for _, x := range p.server.pageState().Proxies {
			if x.Refusal != nil {
				return !x.Refusal.Holds && strings.Contains(x.Refusal.Message, "second is bad") && x.Behind == nil
			}
		}
		return false
	})
	if len(problems) != 1 || problems[0].Object != "VirtualService shop/reviews" || !strings.Contains(problems[0].Text, "refused by 1 proxies") || !strings.Contains(problems[0].Origin, "input.yaml") {
		t.Errorf("problems %+v", problems)
	}
}

// The end of the certificate that a proxy connected with is the end of its stream, too.
func TestPageShowsTheEndOfACertificate(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	cert, creds := p.certificate(time.Hour)
	p.connect(p.addr.SecureGRPC, creds, "").open()
	var got ui.Proxy
	wait.Until(t, "the proxy is shown", func() bool {
		list := p.server.pageState().Proxies
		if len(list) == 1 {
			got = list[0]
		}
		return len(list) == 1
	})
	if got.CertificateEnds == nil || !got.CertificateEnds.Equal(cert.NotAfter) {
		t.Errorf("proxy %+v, want the end of its certificate, %s", got, cert.NotAfter)
	}
}

// A proxy that connects with a token has a certificate that this replica has issued, as agents do in a cluster, and renews it without
// connecting again.
func TestPageShowsTheEndOfAnIssuedCertificate(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	p.dial(p.token("shop", "default"), p.root()).open()
	ends := func() *time.Time {
		for _, x := range p.server.pageState().Proxies {
			return x.CertificateEnds
		}
		return nil
	}
	wait.Until(t, "the proxy is shown", func() bool { return len(p.server.pageState().Proxies) == 1 })
	if at := ends(); at != nil {
		t.Errorf("before a certificate is issued: %s", at)
	}
	for _, life := range []time.Duration{time.Hour, 2 * time.Hour} {
		cert, _ := p.certificate(life)
		if at := ends(); at == nil || !at.Equal(cert.NotAfter) {
			t.Errorf("the certificate ends at %v, want %s", at, cert.NotAfter)
		}
	}
}

func TestPageIsGuarded(t *testing.T) {
	p := synced(t)
	h := p.server.debugMux()
	ask := func(path, from, host, site, token string) int {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 8080})))
		cancel() // events end at once
		r := httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx)
		r.RemoteAddr, r.Host = from, host
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, path := range []string{"/ui/", "/ui/app.js", "/ui/style.css", "/ui/icon.svg", "/ui/events", "/ui"} {
		allowed := http.StatusOK
		if path == "/ui" {
			allowed = http.StatusFound
		}
		for _, c := range []struct {
			what, from, host, site, token string
			want                          int
		}{
			{"this host", "127.0.0.1:1", "localhost:8080", "same-origin", "", allowed},
			{"another host", "10.9.9.8:1", "10.9.9.9:8080", "", "", http.StatusUnauthorized},
			{"a page of another site", "127.0.0.1:1", "localhost:8080", "cross-site", "", http.StatusUnauthorized},
			{"another name", "127.0.0.1:1", "evil.example:8080", "", "", http.StatusUnauthorized},
			{"a workload", "10.9.9.8:1", "10.9.9.9:8080", "", p.token("shop", "default"), http.StatusForbidden},
			{"the control plane's namespace", "10.9.9.8:1", "10.9.9.9:8080", "", p.token("istio-system", "istiod"), allowed},
		} {
			if got := ask(path, c.from, c.host, c.site, c.token); got != c.want {
				t.Errorf("%s from %s: %d, want %d", path, c.what, got, c.want)
			}
		}
	}
	for _, path := range []string{"/ui/../debug/syncz", "/ui/assets", "/ui/hub.go"} {
		if got := ask(path, "10.9.9.8:1", "10.9.9.9:8080", "", ""); got == http.StatusOK {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// A page that is open does not keep the control plane from ending, and is told nothing but its end.
func TestPageEndsWithTheControlPlane(t *testing.T) {
	p := synced(t)
	resp, err := http.Get("http://" + p.addr.HTTP + "/ui/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for line := ""; !strings.HasPrefix(line, "data: {"); {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		var update map[string]ui.Change
		if text, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(text), &update); err != nil || len(update["proxies"].Set) != 1 {
				t.Errorf("first update %s, %v: want one proxy", text, err)
			}
		}
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("events end with %v", err)
	}
}
