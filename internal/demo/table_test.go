package demo

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// someFrame has a version of reviews with a tenth of the requests, two failures, and proxies in several states.
func someFrame() frame {
	c := newCounters()
	for i := range 10 {
		c.add("shopper", shop(map[bool]string{true: "v2", false: "v1"}[i == 0]), nil)
	}
	broken := shop("v1")
	broken.Status, broken.Calls[0].Status, broken.Calls[0].Calls[0].Status = 503, 503, 503
	c.add("shopper", broken, nil)
	c.add("shopper", meshup.Answer{}, errors.New("connection reset"))
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	return frame{calls: c, now: now, proxies: []proxyState{
		{Name: "db-1.bookshop", Applied: 3, Generation: 3, Connected: true, Ends: now.Add(24 * time.Hour)},
		{Name: "ratings-1.bookshop", Applied: 2, Generation: 3, Connected: true},
		{Name: "reviews-v1-1.bookshop"},
	}}
}

func render(b block, columns int) string {
	var out strings.Builder
	for _, l := range b.rows(columns) {
		out.WriteString(l.String() + "\n")
	}
	return out.String()
}

const wideFrame = `  CALLER       CALLEE       VERSION  REQUESTS  SHARE  IDENTITY
  shopper      productpage  v1       10               spiffe://cluster.local/ns/bookshop/sa/shopper
  productpage  reviews      v1       9         90 %   spiffe://cluster.local/ns/bookshop/sa/productpage
  productpage  reviews      v2       1         10 %   spiffe://cluster.local/ns/bookshop/sa/productpage
  reviews      ratings      v1       10               spiffe://cluster.local/ns/bookshop/sa/reviews
  12 requests, 2 failed

  PROXY                  GENERATION  STATE                   CERTIFICATE EXPIRES
  db-1.bookshop          3 of 3      in sync                 2026-11-22 08:00:00 (in 24h0m)
  ratings-1.bookshop     2 of 3      applying                -
  reviews-v1-1.bookshop  -           serving, not connected  -
`

const frame80 = `  CALLER       CALLEE       VERSION  REQUESTS  SHARE  IDENTITY
  shopper      productpage  v1       10               bookshop/shopper
  productpage  reviews      v1       9         90 %   bookshop/productpage
  productpage  reviews      v2       1         10 %   bookshop/productpage
  reviews      ratings      v1       10               bookshop/reviews
  12 requests, 2 failed

  PROXY                  GENERATION  STATE                   CERTIFICATE
  db-1.bookshop          3 of 3      in sync                 expires in 24h0m
  ratings-1.bookshop     2 of 3      applying                -
  reviews-v1-1.bookshop  -           serving, not connected  -
`

const frame40 = `  CALLER       CALLEE       VERSION  RE…
  shopper      productpage  v1       10…
  productpage  reviews      v1       9 …
  productpage  reviews      v2       1 …
  reviews      ratings      v1       10…
  12 requests, 2 failed

  PROXY                  GENERATION  ST…
  db-1.bookshop          3 of 3      in…
  ratings-1.bookshop     2 of 3      ap…
  reviews-v1-1.bookshop  -           se…
`

func TestFrameFitsTheWidth(t *testing.T) {
	for columns, want := range map[int]string{unlimited: wideFrame, 159: wideFrame, 79: frame80, 40: frame40} {
		if diff := cmp.Diff(want, render(someFrame(), columns)); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", columns, diff)
		}
	}
	f := someFrame()
	f.proxies[0].Refused = "語語\x1b[2J " + strings.Repeat("x", 300)
	f.calls.Edges[edge{"a", "b", "v", "spiffe://x/y\n"}]++
	f.calls.Edges[edge{"plain", "b", "v", ""}]++
	all := append(paragraph(plain, "Scenario 4. 語語語語 語語語語\n  FAILED: "+strings.Repeat("word ", 60)), result{"calls", "x", errors.New(strings.Repeat("y", 200) + "\nz")}.lines()...)
	for columns := 1; columns < 200; columns++ {
		for _, b := range []block{f, all} {
			for _, l := range b.rows(columns) {
				if l.width() > max(columns, 2) || strings.ContainsAny(l.String(), "\x1b\n") {
					t.Errorf("%d columns: %q has %d", columns, l.String(), l.width())
				}
			}
		}
	}
}

func TestIdentitiesAreShortened(t *testing.T) {
	for in, want := range map[string]string{
		"spiffe://cluster.local/ns/bookshop/sa/shopper": "bookshop/shopper",
		"spiffe://cluster.local/ns/bookshop":            "spiffe://cluster.local/ns/bookshop",
		"spiffe://cluster.local/x/bookshop/sa/shopper":  "spiffe://cluster.local/x/bookshop/sa/shopper",
		"someone": "someone", "": "",
	} {
		if got := account(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// What is said by color is said by words, too: without colors the text is the same.
func TestColors(t *testing.T) {
	var colored, bare strings.Builder
	for _, l := range someFrame().rows(unlimited) {
		colored.WriteString(l.encode(true) + "\n")
		bare.WriteString(l.encode(false) + "\n")
	}
	for _, want := range []string{"\x1b[32min sync\x1b[0m", "\x1b[33mapplying\x1b[0m", "\x1b[1;31m2 failed\x1b[0m", "\x1b[2mCALLER\x1b[0m"} {
		if !strings.Contains(colored.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if bare.String() != wideFrame {
		t.Errorf("without colors:\n%q", bare.String())
	}
}

// The summary has what failed and a count: what passed has been said.
func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		results []result
		want    string
		ok      bool
	}{
		{[]result{{"calls", "no request failed", nil}, {"strict", "refused", errors.New("answered\nstatus 200")}}, "  FAILED: strict: refused: answered\n      status 200\n1 of 2 checks passed\n", false},
		{[]result{{"calls", "no request failed", nil}}, "1 of 1 checks passed\n", true},
		{nil, "0 of 0 checks passed\n", false},
	} {
		got, ok := summary(tt.results)
		if ok != tt.ok || render(got, unlimited) != tt.want {
			t.Errorf("%v: ok %v, summary:\n%s", tt.results, ok, render(got, unlimited))
		}
	}
}

func TestFit(t *testing.T) {
	for _, tt := range []struct {
		columns, rows int
		want          string
	}{
		{60, 13, "1|2|3|4|5"},
		{60, 5, "1|2|3|4|5"},
		{60, 3, "1|2|  … 3 more rows: the window is too small"},
		{11, 1, "  … 5 more…"},
		{11, 0, ""},
		{1, -1, ""},
	} {
		var rows []line
		for i := range 5 {
			rows = append(rows, line{{fmt.Sprint(i + 1), plain}})
		}
		var got []string
		for _, l := range fit(rows, tt.columns, tt.rows) {
			got = append(got, l.String())
		}
		if strings.Join(got, "|") != tt.want {
			t.Errorf("%d×%d: %q, want %q", tt.columns, tt.rows, got, tt.want)
		}
	}
}
