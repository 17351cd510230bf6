package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// bound is how long a test waits for a condition before it fails.
const bound = 30 * time.Second

// run is a running source and what it has emitted.
type run struct {
	t      *testing.T
	source *Source
	stop   func()

	mu       sync.Mutex
	state    map[object.Key]object.Object
	removed  []object.Key
	problems []object.Problem
	synced   bool
	batches  int
	changes  map[object.Key]int
	more     chan struct{}
}

func start(t *testing.T, o Options) *run {
	t.Helper()
	r := &run{t: t, source: newSource(t, o), state: map[object.Key]object.Object{}, changes: map[object.Key]int{}, more: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.source.Run(ctx, r.take) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(bound):
			t.Error("Run does not return at the end of its context")
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *run) take(b object.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced && len(b.Changes) > 0 && !b.Synced {
		r.t.Errorf("changes before the sync: %v", b.Changes)
	}
	r.batches++
	r.synced = r.synced || b.Synced
	for _, c := range b.Changes {
		r.changes[c.Key]++
		if c.Object == nil {
			r.removed = append(r.removed, c.Key)
			delete(r.state, c.Key)
		} else {
			r.state[c.Key] = *c.Object
		}
	}
	if b.Problems != nil {
		r.problems = b.Problems
	}
	close(r.more)
	r.more = make(chan struct{})
}

// until waits for a condition of what was emitted. The lock is held while it is evaluated.
func (r *run) until(what string, condition func() bool) {
	r.t.Helper()
	limit := time.After(bound)
	for {
		r.mu.Lock()
		ok, more := condition(), r.more
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-more:
		case <-time.After(10 * time.Millisecond): // conditions may also be of the server
		case <-limit:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("%s: not within %s: %d objects, removed %v, synced %v, problems %v", what, bound, len(r.state), r.removed, r.synced, r.problems)
		}
	}
}

// has is a condition: an object exists.
func (r *run) has(keys ...object.Key) func() bool {
	return func() bool {
		for _, k := range keys {
			if _, ok := r.state[k]; !ok {
				return false
			}
		}
		return true
	}
}

// says is a condition: there is one problem of the source itself with a text, and no other; "" for none.
func (r *run) says(text string) func() bool {
	return func() bool {
		if text == "" {
			return len(r.problems) == 0
		}
		return len(r.problems) == 1 && strings.Contains(r.problems[0].Error(), text)
	}
}

// nothingRemoved fails the test if an object has been removed.
func (r *run) nothingRemoved() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.removed) > 0 {
		r.t.Errorf("removed %v", r.removed)
	}
}

func key(kind object.Kind, name string) object.Key {
	return object.Key{Kind: kind, Namespace: "shop", Name: name}
}

func service(name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {ports: [{name: http, port: %d}]}\n", name, port)
}

func route(name, extra string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: shop}\nspec: {hosts: [%s], http: [{%sroute: [{destination: {host: a}}]}]}\n", name, name, extra)
}

func (r *run) port(name string) uint32 {
	if o, ok := r.state[key(object.Service, name)]; ok {
		return o.Spec.(*object.ServiceSpec).Ports[0].Port
	}
	return 0
}

// filled is a server with some objects, and a source that has read them.
func filled(t *testing.T, change func(*Options)) (*fake, *run) {
	t.Helper()
	f := newFake(t)
	for i := range 3 {
		f.put(t, service(fmt.Sprintf("s%d", i), 80))
		f.put(t, route(fmt.Sprintf("r%d", i), ""))
	}
	o := options(f)
	if change != nil {
		change(&o)
	}
	r := start(t, o)
	r.until("the sync", func() bool { return r.synced && len(r.state) == 6 })
	return f, r
}

// Whatever happens to the connection, nothing is removed, what was removed meanwhile is, and changes are read again.
func TestNothingIsRemovedWithoutProof(t *testing.T) {
	refuse := func(code int) func(*http.Request) int { return func(*http.Request) int { return code } }
	for name, break_ := range map[string]func(*fake){
		"watches are cut":                   func(*fake) {},
		"versions are forgotten":            func(f *fake) { f.forget() },
		"too many requests":                 func(f *fake) { f.refuseWith(refuse(http.StatusTooManyRequests)) },
		"an internal error":                 func(f *fake) { f.refuseWith(refuse(http.StatusInternalServerError)) },
		"unavailable":                       func(f *fake) { f.refuseWith(refuse(http.StatusServiceUnavailable)) },
		"unauthorized":                      func(f *fake) { f.refuseWith(refuse(http.StatusUnauthorized)) },
		"forbidden":                         func(f *fake) { f.refuseWith(refuse(http.StatusForbidden)) },
		"not found":                         func(f *fake) { f.refuseWith(refuse(http.StatusNotFound)) },
		"forbidden, and versions forgotten": func(f *fake) { f.forget(); f.refuseWith(refuse(http.StatusForbidden)) },
		"not found, and versions forgotten": func(f *fake) { f.forget(); f.refuseWith(refuse(http.StatusNotFound)) },
	} {
		for _, noStream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streams %v", name, !noStream), func(t *testing.T) {
				t.Parallel()
				f, r := filled(t, nil)
				f.mu.Lock()
				f.noStream = noStream
				f.mu.Unlock()
				before := f.count("watch /api/v1/services") + f.count("list /api/v1/services")
				break_(f)
				f.Cut()
				f.delete(key(object.Service, "s2"))
				f.put(t, service("s1", 81))
				f.put(t, route("r3", ""))
				f.mu.Lock()
				refused := f.refuse != nil
				f.mu.Unlock()
				if refused {
					r.until("attempts", func() bool {
						return f.count("watch /api/v1/services")+f.count("list /api/v1/services") > before+3
					})
					r.nothingRemoved()
				}
				f.refuseWith(nil)
				r.until("what has changed meanwhile", func() bool {
					return r.port("s1") == 81 && r.port("s2") == 0 && r.has(key(object.VirtualService, "r3"))()
				})
				r.mu.Lock()
				if want := []object.Key{key(object.Service, "s2")}; !slices.Equal(r.removed, want) {
					t.Errorf("removed %v, want %v", r.removed, want)
				}
				r.mu.Unlock()
				r.until("no delay", func() bool { _, behind := r.source.Behind(); return !behind })
				r.until("no problem", r.says(""))
			})
		}
	}
}

// A server that is away for long changes nothing but how far behind the source is, and is one problem: also one whose connections
// are accepted by something before it, such as a load balancer, and closed without a response.
func TestServerAway(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) int{
		"unavailable": func(*http.Request) int { return http.StatusServiceUnavailable },
		"closed":      func(*http.Request) int { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) { serverAway(t, answer) })
	}
}

func serverAway(t *testing.T, answer func(*http.Request) int) {
	f, r := filled(t, func(o *Options) { o.Patience = time.Millisecond })
	f.refuseWith(answer)
	f.Cut()
	r.until("one problem", r.says("Kubernetes: the API server cannot be read: "))
	since, behind := r.source.Behind()
	if !behind || time.Since(since) > bound || time.Since(since) < 0 {
		t.Errorf("behind since %v, %v", since, behind)
	}
	before := f.count("list /api/v1/services") + f.count("watch /api/v1/services")
	r.mu.Lock()
	batches := r.batches
	r.mu.Unlock()
	r.until("further attempts", func() bool { return f.count("list /api/v1/services")+f.count("watch /api/v1/services") > before+10 })
	r.mu.Lock()
	if r.batches != batches {
		t.Errorf("%d batches in the meantime", r.batches-batches)
	}
	r.mu.Unlock()
	if again, _ := r.source.Behind(); !again.Equal(since) {
		t.Errorf("behind since %v, then since %v", since, again)
	}
	r.nothingRemoved()
	f.refuseWith(nil)
	r.until("the end of the problem", r.says(""))
	r.until("no delay", func() bool { _, behind := r.source.Behind(); return !behind })
}

// A watch of the definitions that could not be opened for a time, and is opened again without a list, ends the problem.
func TestDefinitionsAreWatchedAgainWithoutAList(t *testing.T) {
	f, r := filled(t, func(o *Options) { o.Patience = time.Millisecond })
	const group = "list /apis/networking.istio.io"
	asked := f.count(group)
	// A watch that has had an event is opened again where it ended.
	f.set(definitionsResource, map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "others.example.com"}})
	r.until("the event of the definition", func() bool { return f.count(group) > asked })
	f.refuseWith(func(*http.Request) int { return http.StatusTooManyRequests })
	f.Cut()
	r.until("a problem", r.says("Kubernetes: the API server cannot be read: "))
	f.refuseWith(nil)
	r.until("the end of the problem", r.says(""))
	r.until("no delay", func() bool { _, behind := r.source.Behind(); return !behind })
}

// A kind that must not be read is one visible problem; the others go on.
func TestForbiddenKind(t *testing.T) {
	f, r := filled(t, nil)
	f.refuseWith(func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/virtualservices") {
			return http.StatusForbidden
		}
		return 0
	})
	f.forget()
	f.Cut()
	r.until("a problem", r.says("VirtualService objects cannot be read: /apis/networking.istio.io/v1/virtualservices is refused; the objects last read stay in force"))
	f.put(t, service("s0", 81))
	r.until("a change of another kind", func() bool { return r.port("s0") == 81 })
	r.nothingRemoved()
	f.refuseWith(nil)
	r.until("the end of the problem", r.says(""))
}

// Nothing is served before every kind has been read; a kind that must not be read from the start is told.
func TestNoSyncWithoutEveryKind(t *testing.T) {
	f := newFake(t)
	f.put(t, service("s0", 80))
	var mu sync.Mutex
	refused := true
	f.refuseWith(func(r *http.Request) int {
		mu.Lock()
		defer mu.Unlock()
		if refused && strings.HasSuffix(r.URL.Path, "/nodes") {
			return http.StatusForbidden
		}
		return 0
	})
	r := start(t, options(f))
	r.until("a problem", r.says("Kubernetes: Node objects cannot be read: /api/v1/nodes is refused; nothing is served until it has been read once"))
	before := f.count("list /api/v1/nodes")
	r.until("further attempts", func() bool { return f.count("list /api/v1/nodes") > before+5 })
	r.mu.Lock()
	if r.synced {
		t.Error("synced without the Nodes")
	}
	r.mu.Unlock()
	mu.Lock()
	refused = false
	mu.Unlock()
	r.until("the sync", func() bool { return r.synced && r.port("s0") == 80 })
	r.until("the end of the problem", r.says(""))
}

// A role of an earlier version has no permission for the kinds that were added since: what it allows is served, and the rest is told.
func TestNoPermissionForTheExtensions(t *testing.T) {
	f := newFake(t)
	f.put(t, service("s0", 80))
	f.put(t, "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: w, namespace: shop}\nspec: {url: 'file:///a.wasm'}\n")
	f.refuseWith(func(r *http.Request) int {
		if strings.HasPrefix(r.URL.Path, "/apis/extensions.istio.io/v1alpha1/") {
			return http.StatusForbidden
		}
		return 0
	})
	o := options(f)
	old := object.Object{Key: key(object.WasmPlugin, "old"), Spec: &extensions.WasmPlugin{}, Saved: time.Unix(1, 0)}
	o.Remembered = []object.Object{old}
	r := start(t, o)
	r.until("the sync", func() bool { return r.synced && r.port("s0") == 80 && r.has(old.Key)() })
	const path = "/apis/extensions.istio.io/v1alpha1/"
	r.until("the problem", r.says("WasmPlugin and TrafficExtension objects cannot be read: "+path+"wasmplugins is refused; "+path+"trafficextensions is refused; those of the cluster have no effect, and what was read before stays in force"))
	f.refuseWith(nil)
	r.until("the objects", func() bool { return r.has(key(object.WasmPlugin, "w"))() && !r.has(old.Key)() })
	r.until("the end of the problems", r.says(""))

	// Taken away again, what was read stays in force.
	f.refuseWith(func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/wasmplugins") {
			return http.StatusForbidden
		}
		return 0
	})
	f.forget()
	f.Cut()
	r.until("a problem again", r.says("WasmPlugin objects cannot be read: /apis/extensions.istio.io/v1alpha1/wasmplugins is refused; the objects last read stay in force"))
	if !r.has(key(object.WasmPlugin, "w"))() {
		t.Error("the object is gone")
	}
}

// Ingresses that must not be read, as with the role of an older version, are one problem. Everything else is served, what was read before stays
// in force, and they are read as soon as they may be.
func TestIngressesThatMustNotBeRead(t *testing.T) {
	f := newFake(t)
	f.put(t, service("s0", 80))
	f.put(t, "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web, namespace: shop}\nspec: {defaultBackend: {service: {name: s0, port: {number: 80}}}}\n")
	f.put(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\nspec: {controller: istio.io/ingress-controller}\n")
	f.refuseWith(func(r *http.Request) int {
		if strings.HasPrefix(r.URL.Path, "/apis/networking.k8s.io/") {
			return http.StatusForbidden
		}
		return 0
	})
	o := options(f)
	o.Remembered = []object.Object{{Key: key(object.Ingress, "old"), Spec: &object.IngressSpec{}, Saved: time.Unix(1, 0)}}
	f.mu.Lock()
	f.hang = func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/pods") }
	f.mu.Unlock()
	r := start(t, o)
	refusals := f.count("list /apis/networking.k8s.io/v1/ingresses") + 20
	r.until("many refusals", func() bool { return f.count("list /apis/networking.k8s.io/v1/ingresses") > refusals })
	r.mu.Lock()
	if r.synced || len(r.problems) > 0 {
		t.Errorf("before the Pods have been read: synced %v, problems %v", r.synced, r.problems)
	}
	r.mu.Unlock()
	f.mu.Lock()
	f.hang = nil
	f.mu.Unlock()
	f.CloseClientConnections()
	r.until("the sync", func() bool { return r.synced && r.port("s0") == 80 && r.has(key(object.Ingress, "old"))() })
	const refused = " is refused"
	r.until("the problem", r.says("IngressClass and Ingress objects cannot be read: /apis/networking.k8s.io/v1/ingressclasses"+refused+"; /apis/networking.k8s.io/v1/ingresses"+refused+"; those of the cluster have no effect, and what was read before stays in force"))
	f.put(t, service("s0", 81))
	r.until("a change of another kind", func() bool { return r.port("s0") == 81 })

	f.refuseWith(nil)
	r.until("the Ingress", func() bool {
		return r.has(key(object.Ingress, "web"), object.Key{Kind: object.IngressClass, Name: "istio"})() && !r.has(key(object.Ingress, "old"))()
	})
	r.until("no problem", r.says(""))

	// The permission is taken away again: what was read stays in force.
	f.refuseWith(func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/ingresses") {
			return http.StatusForbidden
		}
		return 0
	})
	f.forget()
	f.Cut()
	r.until("the problem again", r.says("Ingress objects cannot be read: /apis/networking.k8s.io/v1/ingresses is refused; the objects last read stay in force"))
	if r.mu.Lock(); !r.has(key(object.Ingress, "web"))() {
		t.Error("the Ingress is gone")
	}
	r.mu.Unlock()
}

// A kind whose definition is installed later is read; if it is removed, so are its objects.
func TestDefinitionsComeAndGo(t *testing.T) {
	f := newFake(t)
	for _, k := range object.Kinds() {
		if strings.Contains(nameOfDefinition(k), "istio.io") {
			f.undefine(k)
		}
	}
	f.put(t, service("s0", 80))
	r := start(t, options(f))
	r.until("the sync without any", func() bool { return r.synced && r.port("s0") == 80 })
	f.define(object.VirtualService)
	f.put(t, route("r0", ""))
	r.until("a route", r.has(key(object.VirtualService, "r0")))
	f.put(t, route("r0", "timeout: soon, "))
	r.until("a problem", func() bool { return len(r.problems) == 1 && r.problems[0].Key == key(object.VirtualService, "r0") })
	f.undefine(object.VirtualService)
	r.until("no route", func() bool { return !r.has(key(object.VirtualService, "r0"))() })
	r.until("no problem", r.says(""))
	f.define(object.VirtualService)
	f.put(t, route("r1", ""))
	r.until("a route again", r.has(key(object.VirtualService, "r1")))
}

// A definition that is removed while the server cannot be reached takes its objects with it, once that is known.
func TestDefinitionRemovedMeanwhile(t *testing.T) {
	f, r := filled(t, nil)
	f.refuseWith(func(*http.Request) int { return http.StatusServiceUnavailable })
	f.Cut()
	f.undefine(object.VirtualService)
	f.forget()
	r.nothingRemoved()
	f.refuseWith(nil)
	r.until("no routes", func() bool { return len(r.state) == 3 })
	r.until("no problem", r.says(""))
}

// Without the permission to read definitions, the kinds that are served are found by asking for them. That a kind is
// not served is then no proof that its objects do not exist.
func TestDefinitionsMustNotBeRead(t *testing.T) {
	f := newFake(t)
	f.undefine(object.Sidecar)
	f.put(t, route("r0", ""))
	f.refuseWith(func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/customresourcedefinitions") {
			return http.StatusForbidden
		}
		return 0
	})
	o := options(f)
	sidecar := object.Object{Key: key(object.Sidecar, "s"), Spec: &networking.Sidecar{}, Saved: time.Unix(1, 0)}
	o.Remembered = []object.Object{sidecar}
	r := start(t, o)
	r.until("the sync", func() bool { return r.synced && r.has(key(object.VirtualService, "r0"), sidecar.Key)() })
}

// A kind is read in its own versions, whatever else its group serves.
func TestVersionOfAKind(t *testing.T) {
	f := newFake(t)
	r := start(t, options(f))
	r.until("the sync", func() bool { return r.synced })
	if f.count("watch /apis/networking.istio.io/v1beta1/proxyconfigs") == 0 || f.count("watch /apis/networking.istio.io/v1/virtualservices") == 0 {
		t.Errorf("requests %v", f.requests)
	}
}

// A group that serves only an earlier version is read in it.
func TestServedVersion(t *testing.T) {
	f := newFake(t)
	f.versions["networking.istio.io"] = []string{"v1alpha3", "v2"}
	f.undefine(object.ProxyConfig) // it has no such version
	f.put(t, route("r0", ""))
	r := start(t, options(f))
	r.until("the route", r.has(key(object.VirtualService, "r0")))
	if f.count("watch /apis/networking.istio.io/v1alpha3/virtualservices") == 0 {
		t.Errorf("requests %v", f.requests)
	}
}

// A kind that is served only in versions that are not read is told. It is not waited for, and what an earlier process has read of it
// stays in force.
func TestAKindWithoutAReadableVersion(t *testing.T) {
	f := newFake(t)
	for _, k := range object.Kinds() { // others of its group would be told as well
		if r := decode.ResourceOf(k); r.Group == "networking.istio.io" && k != object.VirtualService {
			f.undefine(k)
		}
	}
	f.versions["networking.istio.io"] = []string{"v3", "v2"}
	f.put(t, service("s0", 80))
	f.put(t, route("r0", ""))
	o := options(f)
	o.Remembered = []object.Object{{Key: key(object.VirtualService, "old"), Spec: &networking.VirtualService{}, Saved: time.Unix(1, 0)}}
	r := start(t, o)
	r.until("the sync", func() bool {
		return r.synced && r.port("s0") == 80 && r.has(key(object.VirtualService, "old"))() && !r.has(key(object.VirtualService, "r0"))()
	})
	r.until("the problem", r.says("VirtualService objects cannot be read: CustomResourceDefinition virtualservices.networking.istio.io serves v3, v2: want one of v1, v1beta1, v1alpha3; those of the cluster have no effect, and what was read before stays in force"))
	if _, behind := r.source.Behind(); !behind {
		t.Error("not behind")
	}
	f.serveVersions("networking.istio.io", "v3", "v1")
	r.until("the route", func() bool {
		return r.has(key(object.VirtualService, "r0"))() && !r.has(key(object.VirtualService, "old"))()
	})
	r.until("no problem", r.says(""))

	// The version is taken away again: an object that was read stays in force.
	f.serveVersions("networking.istio.io", "v3")
	f.define(object.VirtualService)
	f.Cut()
	r.until("the problem again", r.says("serves v3: want one of v1, v1beta1, v1alpha3; the objects last read stay in force"))
	if !r.has(key(object.VirtualService, "r0"))() {
		t.Error("the route is gone")
	}
	f.undefine(object.VirtualService)
	r.until("no route", func() bool { return !r.has(key(object.VirtualService, "r0"))() })
	r.until("no problem without the definition", r.says(""))
}

// Before policies that deny requests can be read, nothing is served, unless the kind is ignored.
func TestAPolicyWithoutAReadableVersion(t *testing.T) {
	f := newFake(t)
	f.undefine(object.AuthorizationPolicy)
	f.undefine(object.RequestAuthentication)
	f.versions["security.istio.io"] = []string{"v2"}
	f.put(t, service("s0", 80))
	f.put(t, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n")
	r := start(t, options(f))
	const text = "PeerAuthentication objects cannot be read: CustomResourceDefinition peerauthentications.security.istio.io serves v2: want one of v1, v1beta1, or name it in PILOT_IGNORE_RESOURCES to go on without these objects; nothing is served until it has been read once"
	r.until("the problem", r.says(text))
	o := options(f)
	o.Ignore = []string{"peerauthentications.security.istio.io"}
	without := start(t, o)
	without.until("the sync without them", func() bool { return without.synced && without.port("s0") == 80 && len(without.problems) == 0 })
	r.mu.Lock()
	if r.synced {
		t.Error("synced without policies")
	}
	r.mu.Unlock()
	f.serveVersions("security.istio.io", "v2", "v1")
	r.until("the policy", func() bool {
		return r.synced && r.has(key(object.PeerAuthentication, "strict"))() && len(r.problems) == 0
	})
}

// A definition of which no version is served for longer than a new one needs is told, too.
func TestADefinitionWithoutAServedVersion(t *testing.T) {
	f := newFake(t)
	f.undefine(object.AuthorizationPolicy)
	f.undefine(object.RequestAuthentication)
	f.versions["security.istio.io"] = []string{}
	r := start(t, options(f))
	r.until("the problem", r.says("PeerAuthentication objects cannot be read: CustomResourceDefinition peerauthentications.security.istio.io serves no version: want one of v1, v1beta1"))
	f.serveVersions("security.istio.io", "v1")
	r.until("the sync", func() bool { return r.synced && len(r.problems) == 0 })
}

// What an earlier process has saved is in force while an object cannot be decoded, and only then.
func TestRemembered(t *testing.T) {
	f := newFake(t)
	f.put(t, route("broken", "timeout: soon, "))
	f.put(t, route("good", ""))
	old := func(name string) object.Object {
		return object.Object{Key: key(object.VirtualService, name), Spec: &networking.VirtualService{Hosts: []string{"old"}}, Saved: time.Unix(1, 0)}
	}
	o := options(f)
	o.Remembered = []object.Object{old("broken"), old("good"), old("gone"), {Key: key(object.Secret, "s"), Spec: &object.SecretSpec{}}}
	r := start(t, o)
	r.until("the sync", func() bool { return r.synced })
	r.until("the state", func() bool {
		broken, good := r.state[key(object.VirtualService, "broken")], r.state[key(object.VirtualService, "good")]
		return len(r.state) == 2 && !broken.Saved.IsZero() && good.Saved.IsZero() && good.Spec.(*networking.VirtualService).Hosts[0] == "good"
	})
	r.until("a problem", func() bool {
		return len(r.problems) == 1 && r.problems[0].Key == key(object.VirtualService, "broken") && r.problems[0].Field == "spec.http[0].timeout"
	})
}

// A server that never answers, or answers late, delays only what it does not answer.
func TestServerHangs(t *testing.T) {
	f, r := filled(t, nil)
	f.mu.Lock()
	f.hang = func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/pods") }
	f.mu.Unlock()
	f.Cut()
	f.put(t, service("s0", 81))
	r.until("a change of another kind", func() bool { return r.port("s0") == 81 })
	r.until("a delay", func() bool { _, behind := r.source.Behind(); return behind })
	r.nothingRemoved()
	r.stop()
}

// A status that changes is not a change of an object.
func TestStatusIsNoChange(t *testing.T) {
	f, r := filled(t, nil)
	f.put(t, strings.Replace(route("r0", ""), "spec:", "status: {conditions: [{type: Ready}]}\nspec:", 1))
	f.put(t, strings.Replace(service("s0", 80), "spec:", "status: {conditions: [{type: Ready, status: \"True\"}]}\nspec:", 1))
	f.put(t, service("s1", 81))
	f.put(t, route("r9", ""))
	// The watch of a kind has its events in order.
	r.until("changes", func() bool { return r.port("s1") == 81 && r.has(key(object.VirtualService, "r9"))() })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range []object.Key{key(object.VirtualService, "r0"), key(object.Service, "s0")} {
		if n := r.changes[k]; n != 1 {
			t.Errorf("%s was emitted %d times, want once", k, n)
		}
	}
}

func TestScopeOfRequests(t *testing.T) {
	f := newFake(t)
	f.put(t, service("s0", 80))
	f.put(t, strings.ReplaceAll(service("s0", 80), "shop", "other"))
	f.put(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	f.put(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n")
	f.put(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: ''}\n")
	f.put(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: istio-system}\ndata: {mesh: ''}\n")
	f.put(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: shop}\n")
	o := options(f)
	o.Only, o.Ignore, o.Include = "shop", []string{"*", "nodes"}, []string{"virtualservices.*"}
	r := start(t, o)
	r.until("the sync", func() bool { return r.synced })
	r.mu.Lock()
	defer r.mu.Unlock()
	want := []object.Key{key(object.Service, "s0"), {Kind: object.Namespace, Name: "shop"}, {Kind: object.ConfigMap, Namespace: "istio-system", Name: "istio"}}
	if len(r.state) != len(want) || !r.has(want...)() {
		t.Errorf("objects %v", r.state)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.requests {
		for _, not := range []string{"secrets", "serviceaccounts", "nodes", "/sidecars", "/api/v1/services"} {
			if strings.HasSuffix(path, not) {
				t.Errorf("requested %s", path)
			}
		}
	}
	if f.requests["watch /apis/networking.istio.io/v1/namespaces/shop/virtualservices"] == 0 {
		t.Errorf("requests %v", f.requests)
	}
}
