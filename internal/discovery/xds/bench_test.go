package xds

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// fleet is 500 machines of one class with 1,000 clusters, all in sync.
func fleet(b *testing.B) ([]*Sub, *View) {
	var cds, eds, lds, rds []*Resource
	for i := range 1000 {
		n := fmt.Sprintf("outbound|8080||service-%d.namespace-%d.svc.cluster.local", i, i%20)
		cds = append(cds, NewCluster(n, make([]byte, 600), n))
		eds = append(eds, NewResource(EDS, n, make([]byte, 200)))
	}
	for i := range 20 {
		lds = append(lds, NewResource(LDS, fmt.Sprintf("0.0.0.0_%d", 8000+i), make([]byte, 2000)))
		rds = append(rds, NewResource(RDS, fmt.Sprint(8000+i), make([]byte, 50000)))
	}
	v := benchView(cds, eds, lds, rds)
	var shared stepCache
	subs := make([]*Sub, 500)
	for i := range subs {
		s := NewSub(true, &shared)
		s.Step(Now{T: time.Unix(1e9, 0)})
		s.Step(Moved{View: v})
		for _, t := range Types() {
			r := &Request{Type: t}
			if !types[t].wildcard {
				var names []string
				for u := range v.Of(t).All() {
					names = append(names, u.Name)
				}
				r.Names = namesOf(names...)
			}
			answer(s, s.Step(r))
		}
		subs[i] = s
	}
	return subs, v
}

// benchView is a view of layers as compiling makes them: endpoints are in one of their own, and the
// workload has two resources.
func benchView(cds, eds, lds, rds []*Resource) *View {
	var scope, location, workload *Layer
	scope = scope.With(CDS, cds, nil).With(LDS, lds, nil).With(RDS, rds, nil)
	location = location.With(EDS, eds, nil)
	workload = workload.With(CDS, []*Resource{NewCluster("inbound|8080||", make([]byte, 600), "")}, nil).
		With(LDS, []*Resource{NewResource(LDS, "virtualInbound", make([]byte, 5000))}, nil)
	return &View{Generation: 1, Layers: [NumLayers]*Layer{scope, location, workload}}
}

// answer acknowledges all that was sent and says how many bytes that was.
func answer(s *Sub, effects []Effect) (bytes int) {
	var acks []*Request
	for _, e := range effects {
		if e, ok := e.(Send); ok {
			acks = append(acks, &Request{Type: e.Type, Nonce: e.Nonce})
			bytes += (&response{Send: e, delta: true}).encode().Len()
		}
	}
	clear(effects)
	for _, a := range acks {
		bytes += answer(s, s.Step(a))
	}
	return bytes
}

// BenchmarkOneEndpoint is one changed endpoint for 500 streams, without the transport.
func BenchmarkOneEndpoint(b *testing.B) {
	before := heap()
	subs, v := fleet(b)
	size := float64(heap()-before) / float64(len(subs)) / 1024
	name := v.Layers[1].of(EDS).all()[500].Name
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		next := *v
		next.Generation++
		next.Layers[1] = v.Layers[1].With(EDS, []*Resource{NewResource(EDS, name, fmt.Appendf(nil, "%200d", n))}, nil)
		v = &next
		for _, s := range subs {
			if answer(s, s.Step(Moved{View: v})) == 0 {
				b.Fatal("nothing sent")
			}
		}
	}
	b.ReportMetric(size, "kB/stream")
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkStart brings one stream up from nothing on a view of 7,000 clusters with their
// endpoints, and then has it come back with all it has.
func BenchmarkStart(b *testing.B) {
	var cds, eds []*Resource
	for i := range 7000 {
		n := fmt.Sprintf("outbound|8080||service-%d.namespace-%d.svc.cluster.local", i, i%20)
		cds = append(cds, NewCluster(n, make([]byte, 600), n))
		eds = append(eds, NewResource(EDS, n, make([]byte, 200)))
	}
	v := benchView(cds, eds, []*Resource{NewResource(LDS, "l", nil)}, nil)
	var shared stepCache
	var names []string
	versions := [numTypes]map[string]string{}
	for _, t := range Types() {
		versions[t] = map[string]string{}
		for r := range v.Of(t).All() {
			versions[t][r.Name] = r.Version
		}
	}
	for n := range versions[EDS] {
		names = append(names, n)
	}
	var claimed [numTypes]versionList
	for t := range claimed {
		claimed[t] = versionsOf(versions[t])
	}
	list := namesOf(names...)
	start := func(versions [numTypes]versionList) (sent int) {
		s := NewSub(true, &shared)
		s.Step(Now{T: time.Unix(1e9, 0)})
		s.Step(Moved{View: v})
		for _, q := range []*Request{{Type: CDS}, {Type: EDS, Names: list}, {Type: LDS}} {
			q.Initial = versions[q.Type]
			sent += answer(s, s.Step(q))
		}
		return sent
	}
	for _, c := range []struct {
		name     string
		versions [numTypes]versionList
	}{{"fromNothing", [numTypes]versionList{}}, {"reconnect", claimed}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if (start(c.versions) == 0) != (c.name == "reconnect") {
					b.Fatal("sent something to a stream that has everything, or nothing to one that has not")
				}
			}
		})
	}
}
