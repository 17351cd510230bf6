package discovery

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// key returns a JWK with an id.
func key(id string) string {
	return `{"crv":"Ed25519","kid":"` + id + `","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
}

// issuer is a server of keys; while body is empty it answers with status 500.
type issuer struct {
	*httptest.Server
	body  atomic.Value
	asked atomic.Int64
}

func newIssuer(t *testing.T, body string) *issuer {
	t.Helper()
	i := &issuer{}
	i.body.Store(body)
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		if text, _ := i.body.Load().(string); text != "" {
			fmt.Fprint(w, text)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(i.Close)
	return i
}

// again waits until the issuer was asked more often.
func (i *issuer) again(t *testing.T, times int64) {
	t.Helper()
	before := i.asked.Load()
	wait.Until(t, "the keys are fetched again", func() bool { return i.asked.Load() >= before+times })
}

func tokens(app, url string) string {
	return "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: " + app + ", namespace: shop}\nspec: {selector: {matchLabels: {app: " + app + "}}, jwtRules: [{issuer: a, jwksUri: '" + url + "'}]}\n"
}

// often fetches keys often, also from this host.
func often(o *Options) {
	o.Keys = KeyOptions{Interval: 5 * time.Millisecond, check: func(netip.Addr) error { return nil }}
}

const unknownKeys = "ubWb3rKJ3GDSHgOLgRz9We03X9tkJKqyy-C2MQWiV0s"

func TestKeysAreFetchedForTheSelectedProxiesOnly(t *testing.T) {
	i := newIssuer(t, "")
	p := start(t, often)
	p.emit(shop+"---\n"+tokens("reviews", i.URL), true)
	wait.Until(t, "the first fetch has failed", func() bool { code, _ := p.get(p.addr.HTTP, "/ready"); return code == http.StatusOK })
	reviews := p.dial("", "").open()
	other := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	reviews.until("virtualInbound", unknownKeys)
	other.expect("LDS", "virtualInbound")
	said := func(part string) {
		t.Helper()
		wait.NoError(t, "the object's verdict", func() error {
			for _, o := range p.objects() {
				if o.Object == "RequestAuthentication shop/reviews" && o.Field == "spec.jwtRules[0].jwksUri" && strings.Contains(o.Text, part) {
					return nil
				}
			}
			return fmt.Errorf("objects say %+v, want %q", p.objects(), part)
		})
	}
	said("status 500; none are known, so that every token is refused")
	i.body.Store(`{"keys":[` + key("one") + `]}`)
	reviews.until("virtualInbound", `"kid":"one"`)
	said("1 keys were fetched from " + i.URL)
	generation := func() (g uint64) {
		p.server.loop.ask(func() { g = p.server.loop.views.generation })
		return g
	}
	i.body.Store(`{"keys":[` + key("one") + `,` + key("two") + `]}`)
	reviews.until("virtualInbound", `"kid":"two"`)
	before, seen := generation(), len(other.seen)
	// The same keys in another order and form move nothing.
	i.body.Store(`{"keys": [ ` + key("two") + ", \n" + strings.Replace(key("one"), `{`, `{"x5t": "a", `, 1) + `], "of": "a"}`)
	i.again(t, 20)
	if after := generation(); after != before {
		t.Errorf("generation %d after equal keys, %d before", after, before)
	}
	i.body.Store("")
	said("stay in force")
	if text := reviews.text("virtualInbound"); !strings.Contains(text, `"kid":"two"`) {
		t.Errorf("the last good keys are gone: %q", text)
	}
	_, metrics := p.get(p.addr.Monitoring, "/metrics")
	for _, want := range []string{`pilothouse_jwks_sources{state="last_good"} 1`, `pilothouse_jwks_sources{state="fetched"} 0`, "pilot_jwks_resolver_network_fetch_fail_total ", "pilot_jwks_resolver_network_fetch_success_total "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	i.body.Store(`{"keys":[` + key("three") + `]}`)
	reviews.until("virtualInbound", `"kid":"three"`)
	if generation() == before {
		t.Error("rotated keys are no new generation")
	}
	if len(other.seen) != seen {
		t.Error("a proxy that the object does not select was sent something")
	}
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.RequestAuthentication, Namespace: "shop", Name: "reviews"}}}})
	reviews.untilGone("virtualInbound", `"kid"`)
	p.server.loop.ask(func() {
		if k := p.server.loop.keys; len(k.states)+len(k.objects)+len(k.rules)+len(k.savedAs) != 0 {
			t.Errorf("something is left of a removed object: %+v", k)
		}
	})
}

// A restart while the issuer is away verifies tokens with the saved keys, unless they are too old.
func TestKeysAreSaved(t *testing.T) {
	i := newIssuer(t, `{"keys":[`+strings.Replace(key("one"), `{`, `{"d": "c2VjcmV0LXBhcnQ", `, 1)+`]}`)
	l := newLife(t, map[string]string{"shop.yaml": shop, "tokens.yaml": tokens("reviews", i.URL)})
	l.adjust = often
	l.start()
	l.ready(http.StatusOK, "ready")
	l.listener().until("virtualInbound", `"kid":"one"`)
	i.body.Store("")
	for range 2 {
		l.restart(func() {})
		l.listener().until("virtualInbound", `"kid":"one"`)
		wait.Until(t, "the verdict", func() bool {
			return strings.Contains(fmt.Sprint(l.plane.objects()), "stay in force")
		})
	}
	l.stop()
	path := filepath.Join(l.state, savedFile)
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "c2VjcmV0LXBhcnQ") {
		t.Fatalf("private parts are saved, or nothing: %v", err)
	}
	set, err := saved.Decode(text)
	if err != nil || len(set.Keys) != 1 || set.Keys[0].URL != i.URL || time.Since(set.Keys[0].Fetched) > time.Hour {
		t.Fatalf("%+v, %v", set.Keys, err)
	}
	set.Keys[0].Fetched = set.Keys[0].Fetched.Add(-maxSavedAge)
	e := saved.Encoder{Keys: set.Keys}
	var objects []*object.Object
	for n := range set.Objects {
		objects = append(objects, &set.Objects[n])
	}
	if text, err = e.Encode(set.Written, set.Place, objects); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.start()
	l.ready(http.StatusOK, "ready")
	l.listener().until("virtualInbound", unknownKeys)
	i.body.Store(`{"keys":[` + key("two") + `]}`)
	l.listener().until("virtualInbound", `"kid":"two"`)
}

// A server that never answers holds up readiness for two seconds at the start, and afterwards only the object that names it.
func TestDeadIssuersHoldUpNothing(t *testing.T) {
	dead := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer dead.Close()
	good := newIssuer(t, `{"keys":[`+key("one")+`]}`)
	var log wait.Output
	p := start(t, often, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	began := time.Now()
	p.emit(shop+"---\n"+tokens("other", dead.URL)+"---\n"+tokens("reviews", good.URL), true)
	wait.Until(t, "proxies are served", func() bool { code, _ := p.get(p.addr.HTTP, "/ready"); return code == http.StatusOK })
	if took := time.Since(began); took < firstKeys {
		t.Errorf("ready after %s, although the keys of one object were not fetched", took)
	}
	if text := log.String(); !strings.Contains(text, "not ready yet") || strings.Contains(text, "level=ERROR") {
		t.Errorf("the log:\n%s", text)
	}
	c := p.dial("", "").open()
	c.expect("LDS", "virtualInbound")
	if text := c.text("virtualInbound"); !strings.Contains(text, `"kid":"one"`) {
		t.Errorf("the first listener has not the keys that were fetched: %q", text)
	}
	// A rule is added whose keys cannot be fetched: the object stays as it was, everything else goes on.
	more := strings.Replace(tokens("reviews", good.URL), "]}", ", {issuer: b, jwksUri: '"+dead.URL+"/b'}]}", 1)
	p.emit(more+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), false)
	c.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	c.until("9080", "second")
	c.until("virtualInbound", unknownKeys)
	if text := c.text("virtualInbound"); !strings.Contains(text, `"kid":"one"`) {
		t.Errorf("the keys of the other rule are gone: %q", text)
	}
	// What has been waited for is not waited for again.
	p.server.loop.ask(func() {
		if k := p.server.loop.keys; len(k.first.held) != 0 || !k.until().IsZero() {
			t.Errorf("something waits: %+v", k.first)
		}
	})
	p.emit(strings.Replace(more, "issuer: b", "issuer: another.example", 1), false)
	c.until("virtualInbound", "another.example")
}

// Whoever calls with valid tokens notices nothing when a workload gets its first RequestAuthentication, or one with another URL: proxies are
// never sent keys that nobody has.
func TestObjectsWaitForTheirKeys(t *testing.T) {
	one, two := newIssuer(t, `{"keys":[`+key("one")+`]}`), newIssuer(t, `{"keys":[`+key("two")+`]}`)
	p := start(t, often)
	p.emit(shop, true)
	c := p.dial("", "").open()
	c.expect("LDS", "virtualInbound")
	p.emit(tokens("reviews", one.URL), false)
	c.until("virtualInbound", `"kid":"one"`)
	p.emit(tokens("reviews", two.URL), false)
	c.until("virtualInbound", `"kid":"two"`)
	p.emit(tokens("reviews", one.URL+"/x"), false)
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.RequestAuthentication, Namespace: "shop", Name: "reviews"}}}})
	c.untilGone("virtualInbound", "jwt_authn")
	p.server.loop.ask(func() {
		if k := p.server.loop.keys; len(k.first.held)+len(k.wanted) != 0 {
			t.Errorf("a removed object waits: %+v", k.first)
		}
	})
	if strings.Contains(strings.Join(c.seen, ""), unknownKeys) {
		t.Error("a proxy was sent keys that nobody has")
	}
}

// An object that is written again while it waits waits no longer for it, and what was written last is applied.
func TestHeldObjects(t *testing.T) {
	k := newKeyring(nil, func(jwks.Source, string) {}, slog.New(slog.DiscardHandler))
	k.first.served = true
	at := func(url string) object.Change {
		return object.Change{
			Key:    object.Key{Kind: object.RequestAuthentication, Namespace: "shop", Name: "x"},
			Object: &object.Object{Spec: &security.RequestAuthentication{JwtRules: []*security.JWTRule{{Issuer: "a", JwksUri: url}}}},
		}
	}
	now := time.Unix(1000, 0)
	if got := k.hold([]object.Change{at("https://a.example"), {Key: object.Key{Kind: object.Service}}}, now); len(got) != 1 || got[0].Key.Kind != object.Service {
		t.Errorf("applied at once: %v", got)
	}
	k.hold([]object.Change{at("https://b.example")}, now.Add(time.Second))
	if k.want(); len(k.wanted) != 1 || k.wanted[jwks.Source{URL: "https://b.example"}] == 0 {
		t.Errorf("wanted: %v", k.wanted)
	}
	if got := k.until(); !got.Equal(now.Add(firstKeys)) {
		t.Errorf("released at %s", got)
	}
	if got := k.release(now.Add(firstKeys - 1)); len(got) != 0 {
		t.Errorf("released: %v", got)
	}
	if got := k.release(now.Add(firstKeys)); len(got) != 1 || got[0].Object.Spec.(*security.RequestAuthentication).JwtRules[0].JwksUri != "https://b.example" {
		t.Errorf("released: %v", got)
	}
	if got := k.hold([]object.Change{at("https://b.example")}, now); len(got) != 1 || !k.until().IsZero() {
		t.Error("held again")
	}
}

// Objects share a source; the last one takes it away, and the longest timeout counts.
func TestKeyringSharesSources(t *testing.T) {
	put := map[jwks.Source]string{}
	var wanted map[jwks.Source]time.Duration
	k := newKeyring([]saved.KeySet{
		{Source: jwks.Source{URL: "https://a.example"}, Keys: pki.NoKeys}, {Source: jwks.Source{URL: "https://gone.example"}, Keys: pki.NoKeys},
		{Source: jwks.Source{URL: "https://b.example"}, Keys: "{}"}, {Source: jwks.Source{URL: "file:///x"}, Keys: pki.NoKeys},
	}, func(s jwks.Source, keys string) { put[s] = keys }, nil)
	k.onWant = func(w map[jwks.Source]time.Duration) { wanted = w }
	if len(put) != 2 {
		t.Errorf("saved keys: %v", put)
	}
	l := newLife(t, map[string]string{"tokens.yaml": tokens("x", "https://a.example")})
	l.start()
	name := object.Key{Kind: object.RequestAuthentication, Namespace: "shop", Name: "x"}
	var o object.Object
	l.plane.server.loop.ask(func() { o, _ = l.plane.server.loop.store.Get(name) })
	again := name
	again.Name = "y"
	k.apply(object.Change{Key: name, Object: &o})
	k.apply(object.Change{Key: again, Object: &o})
	k.want()
	source := jwks.Source{URL: "https://a.example"}
	if len(wanted) != 1 || wanted[source] != jwks.DefaultTimeout || put[source] == "" || put[jwks.Source{URL: "https://gone.example"}] != "" {
		t.Errorf("wanted %v, stored %v", wanted, put)
	}
	k.apply(object.Change{Key: name})
	k.want()
	if len(wanted) != 1 || put[source] == "" {
		t.Errorf("wanted %v, stored %v after one of two is gone", wanted, put)
	}
	wanted = nil
	k.want()
	if wanted != nil {
		t.Error("told again without a change")
	}
	k.apply(object.Change{Key: again})
	k.want()
	if len(wanted) != 0 || put[source] != "" {
		t.Errorf("wanted %v, stored %v after both are gone", wanted, put)
	}
}
