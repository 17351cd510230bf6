package xds

import (
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/grpc"

	"github.com/pilothouse/pilothouse/test/wait"
)

// rig is a server, what it publishes, and a real Envoy that takes it.
type rig struct {
	*realEnvoy
	server *Server
	reg    *oneClass
	view   *View
	addr   string
	stop   func()
	said   *record
	// secrets are served if they are not nil.
	secrets Credentials
	// loses is a type whose responses get lost on their way; other values lose nothing.
	loses atomic.Int32
}

// lossy is a stream on which some responses get lost.
type lossy struct {
	grpc.ServerStream
	rig *rig
}

func (l lossy) SendMsg(m any) error {
	if r, ok := m.(*response); ok && int32(r.Type) == l.rig.loses.Load() {
		return nil
	}
	return l.ServerStream.SendMsg(m)
}

func (r *rig) intercept(srv any, g grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	return h(srv, lossy{g, r})
}

// record keeps what is logged.
type record struct {
	mu sync.Mutex
	b  strings.Builder
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// freeAddress is an address that no outgoing connection takes while a server is away.
func freeAddress(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(wait.FreePort(t)))
}

func newRig(t *testing.T, api string, v *View) *rig { return newRigWith(t, api, v, nil) }

// newRigWith is newRig for a gateway that gets secrets.
func newRigWith(t *testing.T, api string, v *View, secrets Credentials) *rig {
	r := &rig{view: v, addr: freeAddress(t), said: &record{}, secrets: secrets}
	r.loses.Store(-1)
	r.serve(t)
	r.realEnvoy = startEnvoy(t, r.addr, api)
	r.inSync("the first view")
	return r
}

// serve starts a new server, at the old address if there is one.
func (r *rig) serve(t *testing.T) {
	var l net.Listener
	wait.Until(t, "the server's port", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", r.addr)
		return err == nil
	})
	r.addr = l.Addr().String()
	r.reg = &oneClass{latest: NewLatestView(r.view)}
	r.server = New(r.reg, slog.New(slog.NewTextHandler(r.said, nil)), nil)
	var auth Authenticate
	if r.secrets != nil {
		r.server.ServeSecrets(r.secrets)
		auth = as(gateway)
	}
	r.stop = serveOn(t, l, r.server, auth, grpc.StreamInterceptor(r.intercept))
}

func (r *rig) publish(what string, v *View) {
	r.t.Helper()
	r.view = v
	r.reg.latest.Publish(v)
	r.inSync(what)
}

func (r *rig) inSync(what string) {
	r.t.Helper()
	wait.Until(r.t, what+" applied", func() bool {
		c := r.server.Connections()
		return len(c) == 1 && c[0].Applied == r.view.Generation
	})
}

func (r *rig) url(name string) string {
	wait.Until(r.t, "listener "+name, func() bool { return r.listening(name) != "" })
	return "http://" + r.listening(name) + "/"
}

func eachFlavour(t *testing.T, f func(t *testing.T, api string)) {
	for _, api := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(api, func(t *testing.T) {
			t.Parallel() // Envoy is waited for most of the time
			f(t, api)
		})
	}
}

func firstView(t *testing.T, port int) *View {
	return (&View{}).put(edsCluster(t, "web", 1), endpoints(t, "web", port), listener(t, "in", "r"), routes(t, "r", "/", "web"))
}

func TestRealEnvoyLosesNoRequestOverChanges(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		a, b := backend(t, "a"), backend(t, "b")
		r := newRig(t, api, firstView(t, a))
		url := r.url("in")
		wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a", "b")

		r.publish("other endpoints", r.view.put(endpoints(t, "web", b)))
		wait.Until(t, "an answer of b", func() bool { return fetch(url) == "b" })
		r.publish("a changed cluster", r.view.put(edsCluster(t, "web", 2)))
		wait.Until(t, "the changed cluster", func() bool { return strings.Contains(r.get("/config_dump?resource=dynamic_active_clusters"), `"2s"`) })
		// The next cluster instead of the one in use, all in one view.
		next := r.view.put(edsCluster(t, "next", 1), endpoints(t, "next", a), routes(t, "r", "/", "next")).drop(CDS, "web").drop(EDS, "web")
		r.publish("the next cluster", next)
		wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		wait.Until(t, "the end of the first cluster", func() bool { return !strings.Contains(r.get("/clusters"), "web::") })
		for i := range 20 {
			name, port := "web", a
			if i%2 == 1 {
				name, port = "next", b
			}
			r.publish("back and forth", r.view.put(edsCluster(t, name, 1), endpoints(t, name, port), routes(t, "r", "/", name)).
				drop(CDS, map[string]string{"web": "next", "next": "web"}[name]))
		}

		if sent, wrong := stop(); wrong != "" || sent < 100 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		r.settled()
	})
}

// aliens is a listener with a filter that Envoy does not know.
func aliens(t *testing.T, name string) *Resource {
	return NewResource(LDS, name, encode(t, &listenerv3.Listener{Name: name, Address: address(0),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "no.such.filter",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &corev3.Pipe{Path: "x"})}}}}}}))
}

func TestRealEnvoysRefusalIsReportedAndDoesNotLoop(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")))
		url := r.url("in")
		r.view = r.view.put(aliens(t, "bad"))
		r.reg.latest.Publish(r.view)
		nacked := func() TypeStatus { return r.server.Connections()[0].Types[LDS] }
		wait.Until(t, "the refusal", func() bool { return nacked().Rejects == 1 })
		if s := nacked(); len(s.RejectedName) != 1 || s.RejectedName[0] != "bad" || !strings.Contains(s.Message, "no.such.filter") {
			t.Errorf("refused %q because of %q, want bad because of no.such.filter", s.RejectedName, s.Message)
		}
		// Other types go on.
		b := backend(t, "b")
		r.reg.latest.Publish(r.view.put(endpoints(t, "web", b)))
		wait.Until(t, "an answer of b", func() bool { return fetch(url) == "b" })
		if n := r.stat("listener_manager.lds.update_rejected"); n != 1 {
			t.Errorf("Envoy refused %d listener updates, want 1", n)
		}
		if n := strings.Count(r.said.String(), "proxy refused configuration"); n != 1 {
			t.Errorf("logged %d refusals, want 1:\n%s", n, r.said)
		}
		r.publish("the listener mended", r.view.put(endpoints(t, "web", b), listener(t, "bad", "r")))
		wait.Until(t, "the mended listener", func() bool { return fetch(r.url("bad")) == "b" })
	})
}

func TestRealEnvoyIsSentNothingAgainByANewServer(t *testing.T) {
	r := newRig(t, "DELTA_GRPC", firstView(t, backend(t, "a")))
	url := r.url("in")
	wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
	finish := storm(url, "a")
	r.stop()
	if n := len(r.server.Connections()); n != 0 {
		t.Errorf("%d connections after the end, want 0", n)
	}
	r.serve(t)
	wait.Until(t, "the proxy back", func() bool { c := r.server.Connections(); return len(c) == 1 && c[0].Applied == r.view.Generation })
	wait.Until(t, "all subscriptions back", func() bool { return r.stat("control_plane.connected_state") == 1 })
	if c := r.server.Connections()[0]; c.Sent != 0 {
		t.Errorf("sent to a proxy that has everything: %+v", c.Types)
	}
	// Only what has changed.
	r.publish("one change", r.view.put(endpoints(t, "web", backend(t, "a"))))
	for typ, s := range r.server.Connections()[0].Types {
		if want := map[Type]string{EDS: "1"}[typ]; s.SentNonce != want {
			t.Errorf("sent for one endpoint: %s %q, want %q", typ, s.SentNonce, want)
		}
	}
	if sent, wrong := finish(); wrong != "" || sent == 0 {
		t.Errorf("of %d requests one got %q", sent, wrong)
	}
	r.settled()
}

func TestRealEnvoyIsNotStuckOnAClusterWithoutEndpoints(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		a := backend(t, "a")
		r := newRig(t, api, firstView(t, a))
		r.publish("a cluster whose endpoints do not exist", r.view.put(edsCluster(t, "empty", 1)))
		r.publish("another cluster", r.view.put(edsCluster(t, "more", 1), endpoints(t, "more", a), routes(t, "r", "/", "more")))
		url := r.url("in")
		wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
		r.publish("the endpoints", r.view.put(endpoints(t, "empty", a)))
		r.publish("a route to them", r.view.put(routes(t, "r", "/", "empty")))
		wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
		r.settled()
	})
}
