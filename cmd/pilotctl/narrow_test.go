package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/check"
	"github.com/pilothouse/pilothouse/internal/finding"
)

func TestProxiesFitOnANarrowTerminal(t *testing.T) {
	at := time.Now().UTC().Add(-time.Minute)
	texts := []json.RawMessage{
		json.RawMessage(`{"proxy":"reviews-v1-1.bookshop","proxy_type":"sidecar","identity":"spiffe://cluster.local/ns/bookshop/sa/reviews","proxy_version":"1.40.0","epoch":0,"generation":12,"applied":12,
			"connected_at":"2026-11-21T08:00:00Z","types":{"CDS":{"resources":12,"asked":true,"synced":true},"LDS":{"resources":3,"asked":true,"synced":true}}}`),
		json.RawMessage(`{"proxy":"web-1.bookshop","proxy_type":"sidecar","older":true,"identity":"spiffe://cluster.local/ns/bookshop/sa/web","proxy_version":"1.40.0","epoch":1,"generation":12,"applied":11,
			"behind":{"since":"2026-11-21T08:00:00Z"},"last_refusal":{"type":"LDS","at":"` + at.Format(time.RFC3339) + `"},
			"types":{"CDS":{"asked":true,"resources":2,"sent":"a"},"LDS":{"asked":true,"resources":3,"nack":"x"},"RDS":{"asked":false}}}`),
	}
	narrow := `PROXY                   SYNC                                  GENERATION  BEHIND      REFUSED       EPOCH  ENVOY   ACCOUNT
reviews-v1-1.bookshop   synced                                12/12       -           -             0      1.40.0  bookshop/reviews
web-1.bookshop (older)  CDS sent, LDS REFUSED, RDS not asked  11/12       2026-11-21  LDS ` + at.Format(time.TimeOnly) + `  1      1.40.0  bookshop/web

`
	var anywhere bytes.Buffer
	if err := printProxies(&anywhere, "table", texts, false, 0); err != nil {
		t.Fatal(err)
	}
	for columns, want := range map[int]string{400: anywhere.String(), 140: narrow} {
		var out bytes.Buffer
		if err := printProxies(&out, "table", texts, false, columns); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), want) || strings.HasPrefix(anywhere.String(), narrow) {
			t.Errorf("%d columns:\n%s\nwant\n%s", columns, out.String(), want)
		}
	}
}

func TestChecksFitOnANarrowTerminal(t *testing.T) {
	rows := []check.Row{
		{Name: "root", Finding: finding.Pass("ends in ten years")},
		{Name: "proxies", Finding: finding.Fail("pilotctl proxies has their errors", "1 of 2 have refused configuration: web-1.shop")},
	}
	const want = `✓ root: ends in ten years
✗ proxies: 1 of 2 have refused
  configuration: web-1.shop
  → pilotctl proxies has their
    errors
`
	var out, errs bytes.Buffer
	if err := printChecks(&out, &errs, "table", 32, rows); err != errSaid || out.String() != want { //nolint:errorlint // it is not wrapped
		t.Errorf("%v:\n%s", err, out.String())
	}
}

func TestNoProxyIsSaid(t *testing.T) {
	var out strings.Builder
	if err := printProxies(&out, "table", nil, false, 80); err != nil || out.String() != "no proxy is connected\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	if err := printProxies(&out, "json", []json.RawMessage{}, false, 0); err != nil || strings.TrimSpace(out.String()) != "[]" {
		t.Errorf("as JSON %q, %v", out.String(), err)
	}
}
