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
