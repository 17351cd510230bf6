package xdsproxy

import "testing"

func TestConnectedReportsChanges(t *testing.T) {
	p, _ := start(t, secured(t, &plane{}))
	if <-p.Connected() {
		t.Error("connected before there is a stream")
	}
	if _, _, err := exchange(t, p, request(envoyType+"a")); err != nil {
		t.Fatal(err)
	}
	if !<-p.Connected() {
		t.Error("not connected with a stream")
	}
	if _, _, err := exchange(t, p, request(envoyType+"b")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Connected():
		t.Error("a second stream counts as a change")
	default:
	}
}

func TestConnectedHoldsTheNewestValue(t *testing.T) {
	s := stats{connected: make(chan bool, 1)}
	s.opened()
	s.closed()
	s.opened()
	if !<-s.connected {
		t.Error("an older value was kept")
	}
	if len(s.connected) != 0 {
		t.Error("more than the newest value is held")
	}
}
