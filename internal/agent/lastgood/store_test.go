package lastgood

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/test/wait"
)

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

var own = Binding{Node: "sidecar~10.0.0.1~a.b~b.svc.cluster.local", Cluster: "Kubernetes", Identity: "spiffe://cluster.local/ns/b/sa/c", Discovery: "istiod:15012", Version: "1"}

// open runs a store with the file of a folder until the function is called or the test ends.
func open(t testing.TB, dir string, adjust ...func(*Options)) (*Store, func()) {
	t.Helper()
	o := Options{Dir: dir, Binding: own, MaxAge: 24 * time.Hour, MaxSize: 1 << 20, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range adjust {
		f(&o)
	}
	s := New(o)
	s.settle, s.retry, s.tick = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return s, stop
}

func encode(t testing.TB, m proto.Message) mem.BufferSlice {
	t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out mem.BufferSlice // in pieces, as gRPC gives it
	for piece := range slices.Chunk(text, 37) {
		out = append(out, mem.SliceBuffer(piece))
	}
	return out
}

func wrap(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// named returns a message of a type with a name; content makes it longer.
func named(typ, name, content string) proto.Message {
	switch typ {
	case clusterType:
		return &clusterv3.Cluster{Name: name, AltStatName: content}
	case listenerType:
		return &listenerv3.Listener{Name: name, StatPrefix: content}
	case routeType:
		return &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{content}}
	}
	return &routev3.VirtualHost{Name: name, Domains: []string{content}}
}

// stream plays an Envoy and discovery on a stream that is recorded.
type stream struct {
	t     testing.TB
	r     *Recording
	delta bool
	nonce int
}

func record(t testing.TB, s *Store, delta, empty bool) *stream {
	r := s.Record(delta, empty)
	t.Cleanup(r.Close)
	return &stream{t: t, r: r, delta: delta}
}

func (s *stream) ask(typ string, names ...string) {
	s.t.Helper()
	if s.delta {
		s.r.Request(encode(s.t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names}))
	} else {
		s.r.Request(encode(s.t, &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: names}))
	}
}

// send has discovery send resources with a version each, name=content, and the names of removed ones, -name. Envoy acknowledges
// them, unless refusal is given.
func (s *stream) send(typ, version, refusal string, resources ...string) {
	s.t.Helper()
	s.nonce++
	nonce := fmt.Sprint(s.nonce)
	var detail *status.Status
	if refusal != "" {
		detail = &status.Status{Message: refusal}
	}
	if !s.delta {
		m := &discoveryv3.DiscoveryResponse{TypeUrl: typ, VersionInfo: version, Nonce: nonce}
		var names []string
		for _, one := range resources {
			name, content, _ := strings.Cut(one, "=")
			names = append(names, name)
			m.Resources = append(m.Resources, wrap(s.t, named(typ, name, content)))
		}
		if typ == clusterType || typ == listenerType {
			names = nil
		}
		s.r.Response(encode(s.t, m))
		s.r.Request(encode(s.t, &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: names, ResponseNonce: nonce, VersionInfo: version, ErrorDetail: detail}))
		return
	}
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, Nonce: nonce}
	for _, one := range resources {
		name, content, _ := strings.Cut(one, "=")
		if gone, ok := strings.CutPrefix(name, "-"); ok {
			m.RemovedResources = append(m.RemovedResources, gone)
			continue
		}
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: wrap(s.t, named(typ, name, content)), Aliases: []string{name}})
	}
	s.r.Response(encode(s.t, m))
	s.r.Request(encode(s.t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce, ErrorDetail: detail}))
}

// has returns what an Envoy with nothing gets from a store, as name=content, by type: everything, and the routes by name.
func has(t testing.TB, s *Store, delta bool, routes ...string) map[string][]string {
	t.Helper()
	a, err := s.Answer(delta)
	if err != nil {
		t.Fatalf("there is nothing to serve: %v", err)
	}
	defer a.Close()
	out := map[string][]string{}
	for _, typ := range []string{clusterType, listenerType, routeType, virtualHostType} {
		var names []string
		if typ == routeType {
			if names = routes; names == nil {
				continue
			}
		}
		m := proto.Message(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names})
		if !delta {
			m = &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: names}
		}
		frames, err := a.Request(encode(t, m))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			out[typ] = append(out[typ], contents(t, f, delta)...)
		}
		slices.Sort(out[typ])
	}
	return out
}

// contents are the resources of a response, name=content, and -name.
func contents(t testing.TB, f mem.BufferSlice, delta bool) (out []string) {
	t.Helper()
	var all []*anypb.Any
	if delta {
		var m discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(f.Materialize(), &m); err != nil {
			t.Fatal(err)
		}
		for _, name := range m.GetRemovedResources() {
			out = append(out, "-"+name)
		}
		for _, r := range m.GetResources() {
			if r.GetResource() == nil {
				out = append(out, r.GetName()+" without a body")
				continue
			}
			all = append(all, r.GetResource())
		}
	} else {
		var m discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(f.Materialize(), &m); err != nil {
			t.Fatal(err)
		}
		all = m.GetResources()
	}
	for _, one := range all {
		m, err := one.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *clusterv3.Cluster:
			out = append(out, m.GetName()+"="+m.GetAltStatName())
		case *listenerv3.Listener:
			out = append(out, m.GetName()+"="+m.GetStatPrefix())
		case *routev3.RouteConfiguration:
			out = append(out, m.GetName()+"="+m.GetInternalOnlyHeaders()[0])
		case *routev3.VirtualHost:
			out = append(out, m.GetName()+"="+m.GetDomains()[0])
		}
	}
	return out
}

func expect(t testing.TB, got map[string][]string, want ...string) {
	t.Helper()
	var all []string
	for _, typ := range []string{clusterType, listenerType, routeType, virtualHostType} {
		all = append(all, got[typ]...)
	}
	if !slices.Equal(all, want) {
		t.Errorf("served %q, want %q", all, want)
	}
}

// settled waits until a store has a file with so many resources.
func settled(t testing.TB, s *Store, resources int) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("the file with %d resources", resources), func() bool {
		st := s.State()
		return !st.Confirmed.IsZero() && st.Resources == resources
	})
}

// filled is a folder with the file of a store that has ended: clusters a and b, listener l.
func filled(t testing.TB, delta bool) string {
	t.Helper()
	dir := t.TempDir()
	s, stop := open(t, dir)
	e := record(t, s, delta, true)
	e.ask(clusterType)
	e.send(clusterType, "1", "", "a=1", "b=1")
	e.ask(listenerType)
	e.send(listenerType, "1", "", "l=1")
	settled(t, s, 3)
	stop()
	return dir
}

func TestServesWhatWasAcknowledged(t *testing.T) {
	dir := t.TempDir()
	s, stop := open(t, dir)
	e := record(t, s, true, true)
	e.ask(clusterType)
	e.send(clusterType, "1", "", "a=1", "b=1", "c=1")
	e.ask(listenerType)
	e.send(listenerType, "1", "", "l=1")
	e.ask(routeType, "80", "81")
	e.send(routeType, "1", "", "80=1", "81=1")
	e.ask(virtualHostType)
	e.send(virtualHostType, "1", "", "80/x=1")
	e.ask(secretType, "password")
	e.send(secretType, "1", "", "password=correct-horse")
	settled(t, s, 7)
	e.send(clusterType, "2", "", "a=2", "-c")
	e.send(clusterType, "3", "cluster b: bad", "b=3", "-a")
	e.send(virtualHostType, "2", "", "80/y=2")
	e.r.Request(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesUnsubscribe: []string{"81"}}))
	wait.Until(t, "the last change", func() bool { s.mu.RLock(); defer s.mu.RUnlock(); return len(s.current.kinds[routeType].places) == 1 })
	want := []string{"a=2", "b=1", "l=1", "-81", "80=1", "80/x=1", "80/y=2"}
	expect(t, has(t, s, true, "80", "81"), want...)
	stop()

	st, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || strings.Contains(string(text), "correct-horse") {
		t.Errorf("the file has a secret, or: %v", err)
	}
	next, _ := open(t, dir, func(o *Options) { o.Binding.Version = "2" })
	expect(t, has(t, next, true, "80", "81"), want...)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v, %v", files, err)
	}
}

func TestStateOfTheWorld(t *testing.T) {
	dir := t.TempDir()
	s, stop := open(t, dir)
	e := record(t, s, false, true)
	e.ask(clusterType)
	e.send(clusterType, "1", "", "a=1", "b=1", "c=1")
	e.ask(listenerType)
	e.send(listenerType, "1", "", "l=1")
	e.ask(routeType, "80", "81")
	e.send(routeType, "1", "", "80=1", "81=1")
	settled(t, s, 6)
	before := s.State().Bytes
	e.send(clusterType, "2", "", "a=2", "b=1")
	e.send(clusterType, "3", "cluster b: bad", "b=3")
	e.send(routeType, "2", "", "80=2")
	wait.Until(t, "the last change", func() bool { s.mu.RLock(); defer s.mu.RUnlock(); return s.current.kinds[routeType].version == "2" })
	if size := s.State().Bytes - before; size > 800 {
		t.Errorf("two changed resources took %d bytes", size)
	}
	stop()
	next, _ := open(t, dir)
	expect(t, has(t, next, false, "80"), "a=2", "b=1", "l=1", "80=2")
	a, err := next.Answer(false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	frames, err := a.Request(encode(t, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType}))
	if err != nil || len(frames) != 1 {
		t.Fatalf("%d responses, %v", len(frames), err)
	}
	var m discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(frames[0].Materialize(), &m); err != nil || m.GetVersionInfo() != "2" {
		t.Errorf("version %q, %v", m.GetVersionInfo(), err)
	}
	// An acknowledgement gets nothing; another name does.
	for _, step := range []struct {
		names []string
		want  int
	}{{[]string{"80"}, 1}, {[]string{"80"}, 0}, {[]string{"80", "90"}, 1}, {[]string{"80", "90"}, 0}} {
		frames, err := a.Request(encode(t, &discoveryv3.DiscoveryRequest{TypeUrl: routeType, ResourceNames: step.names}))
		if err != nil || len(frames) != step.want {
			t.Errorf("%v: %d responses, want %d, %v", step.names, len(frames), step.want, err)
		}
	}
}

// A file of the one variant is served in the other: the settings may have changed.
func TestOtherVariant(t *testing.T) {
	for _, delta := range []bool{true, false} {
		s, _ := open(t, filled(t, delta))
		expect(t, has(t, s, !delta), "a=1", "b=1", "l=1")
	}
}

func TestOneChangeIsAppended(t *testing.T) {
	s, _ := open(t, t.TempDir())
	e := record(t, s, true, true)
	var all []string
	for i := range 1000 {
		all = append(all, fmt.Sprintf("cluster-%d=%s", i, strings.Repeat("x", 300)))
	}
	e.ask(clusterType)
	e.send(clusterType, "1", "", all...)
	e.ask(listenerType)
	e.send(listenerType, "1", "", "l=1")
	settled(t, s, 1001)
	before := s.State().Bytes
	if before < 300_000 {
		t.Fatalf("the file has %d bytes", before)
	}
	e.send(clusterType, "2", "", all[0])
	wait.Until(t, "the change", func() bool { return s.State().Bytes > before })
	if size := s.State().Bytes - before; size > 1000 {
		t.Errorf("one changed resource took %d bytes", size)
	}
	// Many changes do not make it grow for ever.
	for v := range 3000 {
		e.send(clusterType, fmt.Sprint(v+3), "", all[0])
	}
	e.send(listenerType, "2", "", "m=1")
	settled(t, s, 1002)
	if size := s.State().Bytes; size > 2*before+slack {
		t.Errorf("the file has %d bytes after 3000 changes of one resource, at first %d", size, before)
	}
	got := has(t, s, true)
	if len(got[clusterType]) != 1000 || len(got[listenerType]) != 2 {
		t.Errorf("%d clusters, %d listeners", len(got[clusterType]), len(got[listenerType]))
	}
}

func TestNotServed(t *testing.T) {
	age := func(d time.Duration) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			at := time.Now().Add(-d)
			if err := os.Chtimes(filepath.Join(dir, fileName), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := func(f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, fileName)
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, f(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	as := func(f func(*Binding)) func(*Options) { return func(o *Options) { f(&o.Binding) } }
	for name, c := range map[string]struct {
		prepare func(*testing.T, string)
		options func(*Options)
		want    string
	}{
		"too old":           {prepare: age(25 * time.Hour), want: "25h0m0s old, want at most 24h0m0s"},
		"of the future":     {prepare: age(-2 * time.Hour), want: "in the future"},
		"another node":      {options: as(func(b *Binding) { b.Node = "sidecar~10.0.0.2~a.b~b.svc.cluster.local" }), want: "it is of the node"},
		"another cluster":   {options: as(func(b *Binding) { b.Cluster = "other" }), want: "it is of the cluster"},
		"another domain":    {options: as(func(b *Binding) { b.Identity = "spiffe://td/ns/b/sa/c" }), want: "it is of the identity"},
		"another discovery": {options: as(func(b *Binding) { b.Discovery = "other:15012" }), want: "it is of the discovery"},
		"another format": {prepare: change(func(b []byte) []byte {
			return append([]byte("pilothouse xds copy 2\n"), b[len(magic):]...)
		}), want: "another format"},
		"changed":    {prepare: change(func(b []byte) []byte { b[len(b)-7] ^= 1; return b }), want: "the record at byte"},
		"empty":      {prepare: change(func([]byte) []byte { return nil }), want: "another format"},
		"no binding": {prepare: change(func(b []byte) []byte { return b[:len(magic)+6] }), want: "first record is incomplete"},
		// The record of the listener is the last one.
		"no listeners": {prepare: change(func(b []byte) []byte { return b[:len(b)-1] }), want: "lacks clusters or listeners"},
		"others may read it": {prepare: func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, fileName), 0o640); err != nil {
				t.Fatal(err)
			}
		}, want: "mode 0640, want 0600"},
		"a link": {prepare: func(t *testing.T, dir string) {
			path := filepath.Join(dir, fileName)
			if err := errors.Join(os.Rename(path, path+".x"), os.Symlink(path+".x", path)); err != nil {
				t.Fatal(err)
			}
		}, want: "symbolic link"},
		"none": {prepare: func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
				t.Fatal(err)
			}
		}, want: "there is none"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t, true)
			if c.prepare != nil {
				c.prepare(t, dir)
			}
			options := c.options
			if options == nil {
				options = func(*Options) {}
			}
			s, _ := open(t, dir, options)
			_, err := s.Answer(true)
			got := fmt.Sprint(err, " ", s.State().Problem)
			if err == nil || !strings.Contains(got, c.want) {
				t.Errorf("%s, want %q", got, c.want)
			}
			// The next Envoy that gets its configuration from discovery replaces it.
			e := record(t, s, true, true)
			e.ask(clusterType)
			e.send(clusterType, "1", "", "z=1")
			e.ask(listenerType)
			e.send(listenerType, "1", "", "l=1")
			settled(t, s, 2)
			expect(t, has(t, s, true), "z=1", "l=1")
			if problem := s.State().Problem; problem != "" {
				t.Errorf("problem %q after it was replaced", problem)
			}
		})
	}
}

// An Envoy that starts gets a new file. The old one stays until that is complete.
func TestNewEnvoy(t *testing.T) {
	dir := filled(t, true)
	s, stop := open(t, dir)
	e := record(t, s, true, true)
	e.ask(clusterType)
	e.send(clusterType, "2", "", "c=1")
	wait.Until(t, "the new file", func() bool {
		_, err := os.Stat(filepath.Join(dir, fileName+".new"))
		return err == nil
	})
	expect(t, has(t, s, true), "a=1", "b=1", "l=1")
	stop()
	s, _ = open(t, dir)
	expect(t, has(t, s, true), "a=1", "b=1", "l=1")
	e = record(t, s, true, true)
	e.ask(clusterType)
	e.send(clusterType, "2", "", "c=1")
	e.ask(listenerType)
	e.send(listenerType, "2", "", "m=1")
	e.ask(routeType, "80")
	wait.Until(t, "what it asked for", func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return s.building != nil && len(s.building.kinds) == 2
	})
	expect(t, has(t, s, true), "a=1", "b=1", "l=1")
	e.send(routeType, "1", "", "80=1", "81=1")
	settled(t, s, 4)
	expect(t, has(t, s, true, "80"), "c=1", "m=1", "80=1")
}

// An Envoy that returns from the copy says what it has. Discovery is told all of it, unless the file lacks something.
func TestReturningEnvoy(t *testing.T) {
	dir := filled(t, true)
	s, stop := open(t, dir)
	if !s.Usable() {
		t.Fatal("the file is not usable")
	}
	r := s.Record(true, false)
	ask := func(initial map[string]string) map[string]string {
		t.Helper()
		sent := r.Request(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: initial}))
		var m discoveryv3.DeltaDiscoveryRequest
		if err := proto.Unmarshal(sent.Materialize(), &m); err != nil || m.GetTypeUrl() != clusterType || len(m.GetResourceNamesSubscribe()) != 1 {
			t.Fatalf("%v, %v", &m, err)
		}
		return m.GetInitialResourceVersions()
	}
	if got := ask(map[string]string{"a": "1", "b": "1"}); len(got) != 2 {
		t.Errorf("discovery is told that Envoy has %v", got)
	}
	r.Close()
	r = s.Record(true, false)
	if got := ask(map[string]string{"a": "2", "c": "1"}); len(got) != 0 {
		t.Errorf("discovery is told that Envoy has %v, which the file has not", got)
	}
	defer r.Close()
	settled(t, s, 2) // b is not there any more
	stop()
	s, _ = open(t, dir)
	expect(t, has(t, s, true), "a=1", "l=1")
}

func TestTooLarge(t *testing.T) {
	dir := filled(t, true)
	s, stop := open(t, dir, func(o *Options) { o.MaxSize = 2000 })
	e := record(t, s, true, true)
	e.ask(clusterType)
	e.send(clusterType, "2", "", "large="+strings.Repeat("x", 3000))
	wait.Until(t, "the problem", func() bool { return strings.Contains(s.State().Problem, "want at most 2000") })
	expect(t, has(t, s, true), "a=1", "b=1", "l=1")
	stop()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v, %v", files, err)
	}
}

// refuse plays an Envoy that refuses some resources of the copy, and returns what it has in the end.
func refuse(t *testing.T, s *Store, delta bool, typ string, bad map[string]bool, name bool) (got []string, rounds int) {
	t.Helper()
	a, err := s.Answer(delta)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m := func(nonce string, detail *status.Status) mem.BufferSlice {
		if delta {
			return encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce, ErrorDetail: detail})
		}
		return encode(t, &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce, ErrorDetail: detail})
	}
	frames, err := a.Request(m("", nil))
	for ; len(frames) > 0 && err == nil; rounds++ {
		f := frames[0]
		frames = frames[1:]
		nonce, _ := nonceOf(f)
		var refused []string
		all := contents(t, f, delta)
		for _, one := range all {
			if n, _, _ := strings.Cut(one, "="); bad[n] {
				refused = append(refused, n+": bad")
			}
		}
		var detail *status.Status
		if refused != nil {
			detail = &status.Status{Code: 3, Message: "Error adding/updating cluster(s) " + strings.Join(refused, ", ")}
			if !name {
				detail.Message = "Proto constraint validation failed"
			}
		} else {
			got = append(got, all...)
		}
		var more []mem.BufferSlice
		more, err = a.Request(m(nonce, detail))
		frames = append(frames, more...)
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got, rounds
}

func nonceOf(f mem.BufferSlice) (nonce string, err error) {
	r, err := newScanner(f.Reader(), int64(f.Len())).response(int64(f.Len()), true)
	if err != nil {
		r, err = newScanner(f.Reader(), int64(f.Len())).response(int64(f.Len()), false)
	}
	return r.nonce, err
}

// What Envoy refuses of the copy is dropped from it, whether it says what it is or not.
func TestRefused(t *testing.T) {
	for _, delta := range []bool{true, false} {
		for _, name := range []bool{true, false} {
			t.Run(fmt.Sprintf("delta %v named %v", delta, name), func(t *testing.T) {
				dir := t.TempDir()
				s, stop := open(t, dir)
				e := record(t, s, delta, true)
				var all []string
				for i := range 100 {
					all = append(all, fmt.Sprintf("outbound|%d||a.b=1", i))
				}
				e.ask(clusterType)
				e.send(clusterType, "1", "", all...)
				e.ask(listenerType)
				e.send(listenerType, "1", "", "l=1")
				settled(t, s, 101)
				bad := map[string]bool{"outbound|1||a.b": true, "outbound|77||a.b": true}
				got, rounds := refuse(t, s, delta, clusterType, bad, name)
				if len(got) != 98 || rounds > 40 {
					t.Errorf("Envoy has %d clusters after %d responses", len(got), rounds)
				}
				settled(t, s, 99)
				stop()
				s, _ = open(t, dir)
				if got, rounds := refuse(t, s, delta, clusterType, bad, name); len(got) != 98 || rounds != 1 {
					t.Errorf("the next Envoy has %d clusters after %d responses", len(got), rounds)
				}
			})
		}
	}
}

func TestMentions(t *testing.T) {
	for _, c := range []struct {
		message, name string
		want          bool
	}{
		{"Error adding/updating cluster(s) outbound|80||a: bad", "outbound|80||a", true},
		{"Error adding/updating cluster(s) outbound|80||a: bad", "80", false},
		{"cluster(s) x: 1, a: 2", "a", true},
		{"a: 2", "a", true},
		{"it is a", "a", true},
		{"it is 'a'", "a", true},
		{"it is a.", "a", true},
		{"it is a.b", "a", false},
		{"it is ba", "a", false},
		{"anything", "", false},
	} {
		if got := mentions(c.message, c.name); got != c.want {
			t.Errorf("%q in %q: %v", c.name, c.message, got)
		}
	}
}

// What the copy does not have is answered where Envoy would wait for it, and where it stands that.
func TestMissing(t *testing.T) {
	s, _ := open(t, filled(t, true))
	a, err := s.Answer(true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, c := range []struct {
		typ, want string
	}{
		{routeType, "-80"}, {assignmentType, "-80"}, {virtualHostType, "80 without a body"},
		{"type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", ""}, {secretType, ""},
	} {
		frames, err := a.Request(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: c.typ, ResourceNamesSubscribe: []string{"80"}}))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range frames {
			got = append(got, contents(t, f, true)...)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.typ, got, c.want)
		}
	}
}

// FuzzFile has any bytes as a file: it is left aside, or what it has can be served.
func FuzzFile(f *testing.F) {
	text, err := os.ReadFile(filepath.Join(filled(f, true), fileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, 0, byte(0))
	f.Add(text[:len(text)-3], 30, byte(1))
	f.Add([]byte(magic), 0, byte(0))
	f.Fuzz(func(t *testing.T, text []byte, at int, flip byte) {
		if at >= 0 && at < len(text) {
			text = slices.Clone(text)
			text[at] ^= flip
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s := New(Options{Dir: dir, Binding: own, MaxAge: time.Hour, MaxSize: 1 << 20, Log: slog.New(slog.DiscardHandler)})
		a, err := s.Answer(true)
		if err != nil {
			return
		}
		defer a.Close()
		for _, typ := range []string{clusterType, listenerType} {
			if _, err := a.Request(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ})); err != nil {
				t.Error(err)
			}
		}
		if err := s.current.file.Close(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzMessages compares what is read of messages with what the generated types say.
func FuzzMessages(f *testing.F) {
	a, err := anypb.New(&clusterv3.Cluster{Name: "a"})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []proto.Message{
		&discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1", RemovedResources: []string{"x"}, Resources: []*discoveryv3.Resource{{Name: "a", Version: "2", Resource: a}}},
		&discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "1", VersionInfo: "3", Resources: []*anypb.Any{a}},
		&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, InitialResourceVersions: map[string]string{"a": "1"}, ErrorDetail: &status.Status{Message: "m"}},
	} {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		data := mem.BufferSlice{mem.SliceBuffer(text)}
		for _, delta := range []bool{true, false} {
			r, err := newScanner(data.Reader(), int64(len(text))).response(int64(len(text)), delta)
			if err != nil {
				continue
			}
			for _, one := range r.resources {
				if one.off < 0 || one.size < 0 || one.off+one.size > int64(len(text)) {
					t.Fatalf("a resource at %d of %d bytes", one.off, one.size)
				}
			}
			var m discoveryv3.DeltaDiscoveryResponse
			if delta && proto.Unmarshal(text, &m) == nil {
				if m.GetTypeUrl() != r.typ || m.GetNonce() != r.nonce || len(m.GetResources()) != len(r.resources) || !slices.Equal(m.GetRemovedResources(), r.removed) {
					t.Errorf("read %+v of %v", r, &m)
				}
				for i, one := range m.GetResources() {
					if got := r.resources[i]; got.name != one.GetName() || got.version != one.GetVersion() || got.body != (one.GetResource() != nil) {
						t.Errorf("read %+v of %v", got, one)
					}
				}
			}
		}
		q, err := readRequest(text, true)
		if err != nil {
			return
		}
		rest, err := withoutHeld(text, func(held) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		if again, err := readRequest(rest, true); err != nil || len(again.initial) != 0 || again.typ != q.typ || again.nonce != q.nonce {
			t.Errorf("%+v, %v", again, err)
		}
	})
}
