package discovery

import "testing"

// Streams are told that something may be missing while the source says so, or while its objects in force are the saved ones.
func TestTheConfigurationMayLackWhatTheSourceMisses(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	if p.server.mayLack() {
		t.Error("with a source that is read")
	}
	p.source.behind.Store(true)
	if !p.server.mayLack() {
		t.Error("not while changes of the source may be missing")
	}
	p.source.behind.Store(false)
	p.server.loop.gate.notes.Store(&notes{ends: 1})
	if !p.server.mayLack() {
		t.Error("not while the source has no object yet")
	}
}
