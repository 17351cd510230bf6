package xds

import (
	"net"
	"testing"
	"time"
)

func TestRealEnvoyTakesConfigurationAndEveryChangeOfIt(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	v := (&View{}).put(edsCluster(t, "web", 1), endpoints(t, "web", a), listener(t, "in", "r"), routes(t, "r", "/", "web"))
	reg := &oneClass{cell: NewCell(v)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(reg, quiet(t), nil)
	serveOn(t, l, s, nil)
	e := startEnvoy(t, l.Addr().String(), "DELTA_GRPC")
	within(t, "the listener", func() bool { return e.listening("in") != "" })
	url := "http://" + e.listening("in") + "/"
	began := time.Now()
	within(t, "an answer of a", func() bool { return fetch(url) == "a" })
	t.Log(time.Since(began))

	// Endpoints.
	v = v.put(endpoints(t, "web", b))
	reg.cell.Publish(v)
	within(t, "an answer of b", func() bool { return fetch(url) == "b" })
	applied := func() bool {
		c := s.Connections()
		return len(c) == 1 && c[0].Applied == v.Generation
	}
	within(t, "the generation applied", applied)
	e.settled()
}
