package discovery

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// What a page says of a request that it cannot answer is short and printable.
func TestDebugPagesDoNotEchoWhatTheyAreAsked(t *testing.T) {
	p := start(t)
	code, body := p.get(p.addr.HTTP, "/debug/config_dump?proxyID="+url.QueryEscape("\x1b[2J"+strings.Repeat("x", 20_000)))
	if code != http.StatusNotFound || len(body) > 1024 || !printable.Is(strings.TrimSpace(body)) {
		t.Errorf("%d, %d bytes: %.300q", code, len(body), body)
	}
}

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
