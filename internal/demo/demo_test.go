package demo

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const sa = "spiffe://cluster.local/ns/bookshop/sa/"

// shop is an answer of the sample: productpage, then reviews of a version, then ratings.
func shop(version string) meshup.Answer {
	return meshup.Answer{
		Service: "productpage", Version: "v1", Status: 200, Peer: sa + "shopper",
		Calls: []meshup.Answer{{
			Service: "reviews", Version: version, Status: 200, Peer: sa + "productpage",
			Calls: []meshup.Answer{{Service: "ratings", Version: "v1", Status: 200, Peer: sa + "reviews"}},
		}},
	}
}

func TestTopErrors(t *testing.T) {
	c := newCounters()
	for i := range 10 {
		c.add("shopper", shop(map[bool]string{true: "v2", false: "v1"}[i == 0]), nil)
	}
	broken := shop("v1")
	broken.Status, broken.Calls[0].Status, broken.Calls[0].Calls[0].Status = 503, 503, 503
	c.add("shopper", broken, nil)
	c.add("shopper", meshup.Answer{}, errors.New("connection reset"))
	if got := c.topErrors(); got != "1 × connection reset; 1 × ratings: status 503" {
		t.Errorf("top errors: %s", got)
	}
}

func TestChecksFail(t *testing.T) {
	good, bad := newCounters(), newCounters()
	for range 9 {
		good.add("shopper", shop("v1"), nil)
	}
	good.add("shopper", shop("v2"), nil)
	bad.add("shopper", meshup.Answer{}, errors.New("x"))
	plain := newCounters()
	a := shop("v1")
	a.Calls[0].Peer = ""
	plain.add("shopper", a, nil)
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"no failure":         {noFailure(good), ""},
		"a failure":          {noFailure(bad), "1 of 1 failed: 1 × x"},
		"nothing sent":       {noFailure(newCounters()), "no request was made"},
		"share":              {nearShare(good, 0.10, 0.05), ""},
		"other share":        {nearShare(good, 0.50, 0.08), "v2 has 10.0 %, want 50 %"},
		"identities":         {identities(good), ""},
		"plaintext":          {identities(plain), `reviews was called with identity "", want ` + sa + "productpage"},
		"nobody called":      {identities(newCounters()), "there were no calls"},
		"each hop":           {everyHop(shopHops, 5, []int64{1, 2, 3}, []int64{6, 7, 8}), ""},
		"one served twice":   {everyHop(shopHops, 5, []int64{0, 0, 0}, []int64{5, 6, 5}), "reviews served 6 of 5"},
		"one never got here": {everyHop(shopHops, 5, []int64{0, 0, 0}, []int64{5, 5, 4}), "ratings served 4 of 5"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (tc.err == nil || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, tc.err, tc.want)
		}
	}
}

func TestLogsOfAnotherRunAreNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), Options{LogDir: dir}); err == nil || !strings.Contains(err.Error(), "want an empty or a new one") {
		t.Errorf("got %v", err)
	}
}

func TestEditRenamesAndNeedsItsText(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	if err := copyConfig("../../samples/bookshop", dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, security)
	if err := edit(file, "mode: PERMISSIVE", "mode: STRICT"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "mode: STRICT") {
		t.Errorf("after the edit: %s, %v", text, err)
	}
	if err := edit(file, "mode: PERMISSIVE", ""); err == nil {
		t.Error("an edit of what is not there succeeds")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLoadNeverRetries has a server that ends every second connection in the middle of a
// request on a connection that was in use before, which tempts net/http to try again.
func TestLoadNeverRetries(t *testing.T) {
	var got atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got.Add(1)%2 == 0 {
			c, _, _ := http.NewResponseController(w).Hijack()
			_ = c.Close()
			return
		}
		_ = json.NewEncoder(w).Encode(shop("v1"))
	}))
	defer s.Close()
	l := newLoad("shopper", s.URL, s.Client())
	defer l.client.CloseIdleConnections()
	l.send(t.Context(), 40, nil)
	if n := got.Load(); n != 40 || l.sent() != 40 || l.snapshot().OK != 20 {
		t.Errorf("40 requests: the server got %d, counted %d, OK %d", n, l.sent(), l.snapshot().OK)
	}
	before := got.Load()
	if err := l.during(t.Context(), func() error {
		for got.Load() < before+20 {
			<-time.After(time.Millisecond)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := int(got.Load()); n != l.sent() {
		t.Errorf("the server got %d, counted %d", n, l.sent())
	}
	if old := l.reset(); old.Sent == 0 || l.snapshot().Sent != 0 || l.sent() == 0 {
		t.Error("reset ends one count and keeps the total")
	}
}
