package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) {
	if script := os.Getenv(wireEnv); script != "" {
		os.Exit(wireMain(script))
	}
	os.Exit(m.Run())
}

// discoveryPath is the built pilot-discovery.
func discoveryPath(t *testing.T) string {
	t.Helper()
	path := filepath.Join("..", "..", "bin", "pilot-discovery")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run 'make build'", err)
	}
	return path
}

// TestEveryStreamReceivesEverything runs the program at a small size and checks its counts against the mesh.
func TestEveryStreamReceivesEverything(t *testing.T) {
	for name, o := range map[string]options{
		"delta, plaintext":       {Delta: true, VHDS: true},
		"delta, whole routes":    {Delta: true},
		"delta, three at a time": {Delta: true, VHDS: true, AtATime: 3},
		"delta, slow readers":    {Delta: true, VHDS: true, SlowReaders: 3},
		"state of the world":     {SlowReaders: 2},
		"delta with mutual TLS":  {Delta: true, TLS: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The service whose objects change is none of those that the streams are endpoints of: these get more, the limits of the
			// DestinationRule for their inbound clusters.
			o.Mesh = meshSize{Services: 32, Endpoints: 2, Namespaces: 4}
			o.Streams, o.Repeat, o.Discovery, o.Bound = 10, 1, discoveryPath(t), wait.Bound
			l, err := run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			want := outboundClusters(o.Mesh)
			for side, f := range l.fleets {
				for _, s := range f.streams {
					checkStream(t, side, s, want, o.Mesh.Services)
				}
			}
			checkCosts(t, l, int64(len(want)))
		})
	}
}

// outboundClusters are the names of the clusters of all services, in order.
func outboundClusters(z meshSize) []string {
	var out []string
	for i := range z.Services {
		subsets := []string{""}
		if z.hasRules(i) {
			subsets = []string{"", "v1", "v2"}
		}
		for _, subset := range subsets {
			for _, port := range []string{"8080", "9000"} {
				out = append(out, "outbound|"+port+"|"+subset+"|"+z.name(i)+"."+z.namespace(i)+".svc.cluster.local")
			}
		}
	}
	slices.Sort(out)
	return out
}

// checkStream checks that a stream has all clusters with their assignments, and listeners with their routes.
func checkStream(t *testing.T, side int, s *stream, want []string, services int) {
	t.Helper()
	for _, typ := range []int{clusters, assignments} {
		var have []string
		for n, r := range s.types[typ].have {
			if name := s.fleet.tables.nameList(typ)[n]; r != nil && r != absent && strings.HasPrefix(name, "outbound|") {
				have = append(have, name)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("server %d, %s: %d of %s, want %d", side, s.proxy.id, len(have), typeURLs[typ], len(want))
		}
	}
	if n := s.count(listeners); n < 2 {
		t.Errorf("server %d, %s: %d listeners, want those of both ports", side, s.proxy.id, n)
	}
	if routeNames := s.wanted(routes); !slices.Contains(routeNames, "8080") || s.count(routes) != len(routeNames) {
		t.Errorf("server %d, %s: %d routes for %v, want one for each and 8080 among them", side, s.proxy.id, s.count(routes), routeNames)
	}
}

// checkCosts checks the figures of a report: those that are counts, and that there are others at all.
func checkCosts(t *testing.T, l *load, outbound int64) {
	t.Helper()
	streams := int64(l.Streams)
	rows := map[string]*row{}
	for _, r := range l.report.Rows {
		rows[r.Step] = r
		for _, c := range []cost{r.Discovery, r.Wire} {
			if r.Step == stepCertificates {
				c = r.Discovery
			} else if c.Sent <= 0 || c.Asked <= 0 || c.Responses < streams || c.Resources < streams {
				t.Errorf("%s: %+v, want something sent to each stream", r.Step, c)
			}
			if c.CPU <= 0 || c.Clients <= 0 || c.PeakRSS <= 0 || c.P50 <= 0 || c.P99 < c.P50 || c.Last < c.P99 {
				t.Errorf("%s: %+v, want all costs and times in order", r.Step, c)
			}
		}
		// The proxies' own listeners and clusters differ by a few bytes in their names and addresses.
		if d, w := r.Discovery, r.Wire; r.Step != stepCertificates && (d.Resources != w.Resources || d.Sent*9/10 > w.Sent || w.Sent > d.Sent*11/10) {
			t.Errorf("%s: %+v, and on the wire %+v: want the same sent", r.Step, d, w)
		}
	}
	steps := len(changeKinds) + 2
	if l.TLS {
		steps++
	}
	if l.SlowReaders > 0 {
		steps += len(changeKinds)
		for _, kind := range changeKinds {
			fast, slow := rows[kind].Discovery, rows[kind+l.slowSuffix()].Discovery
			if slow.Responses != fast.Responses || slow.Resources != fast.Resources {
				t.Errorf("%s: %+v with slow readers, %+v without: want the same received by the others", kind, slow, fast)
			}
		}
		if m := l.report.memory(); !strings.Contains(m, "for each stream that reads nothing") {
			t.Errorf("the report does not say what a slow reader costs: %s", m)
		}
	}
	if len(rows) != steps {
		t.Fatalf("%d steps, want %d: the changes and what is before and after", len(rows), steps)
	}
	first := rows[stepFromNothing].Discovery
	if least := streams * 2 * outbound; first.Resources < least || l.report.Resources[0] < int(2*outbound) {
		t.Errorf("from nothing: %d resources, %d for the stream with the fewest, want %d or more", first.Resources, l.report.Resources[0], least)
	}
	if c := rows[changeEndpoint].Discovery; l.Delta && c.Sent*10 > first.Sent {
		t.Errorf("one endpoint: %d bytes, want much less than the %d from nothing", c.Sent, first.Sent)
	}
	back := rows[stepBack].Discovery
	if l.Delta && back.Sent*20 > first.Sent || !l.Delta && back.Resources < first.Resources {
		t.Errorf("coming back: %+v; from nothing: %+v: want little sent by delta, all by the state of the world", back, first)
	}
	if l.Delta && back.Asked < streams*2*outbound*10 {
		t.Errorf("coming back: %d bytes of requests, want the versions of all resources", back.Asked)
	}
	if m := l.report.Discovery; m.Empty <= 0 || m.All <= 0 {
		t.Errorf("memory: %+v, want some", m)
	}
	checkOutput(t, &l.report)
}

func checkOutput(t *testing.T, r *report) {
	t.Helper()
	var table, text bytes.Buffer
	if err := r.table(&table); err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if !strings.Contains(table.String(), row.Step) {
			t.Errorf("the table has no row %q:\n%s", row.Step, &table)
		}
	}
	if err := r.json(&text); err != nil {
		t.Fatal(err)
	}
	var again report
	if err := json.Unmarshal(text.Bytes(), &again); err != nil || len(again.Rows) != len(r.Rows) || *again.Rows[0] != *r.Rows[0] {
		t.Errorf("JSON: %v, read back %+v", err, again)
	}
}

func TestCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"-protocol rest":              "want delta or sotw",
		"-streams 0":                  "want 1 or more",
		"-repeat 0":                   "want 1 or more",
		"-slow-readers -1":            "want 0–500",
		"-services 0":                 "want 1–65536",
		"-endpoints 0":                "want 1–",
		"-services 5 -namespaces 6":   "want 1–5",
		"extra":                       `unexpected argument "extra"`,
		"-discovery /no/such/program": "/no/such/program",
	} {
		err := command(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}

func TestPercentilesAndMeans(t *testing.T) {
	var times []time.Duration
	for n := range 200 {
		times = append(times, time.Duration(n+1)*time.Second)
	}
	if p50, p99, last := at(times, 50), at(times, 99), at(times, 100); p50 != 100 || p99 != 198 || last != 200 {
		t.Errorf("percentiles of 1–200 s: %v, %v, %v, want 100, 198, 200", p50, p99, last)
	}
	if m := mean([]cost{{Last: 1, Sent: 500, PeakRSS: 3}, {Last: 2, Sent: 500, PeakRSS: 9}, {Last: 6, Sent: 500, PeakRSS: 4}}); m != (cost{Last: 3, Sent: 500, PeakRSS: 9}) {
		t.Errorf("mean: %+v, want 3 s, 500 bytes and the greatest peak", m)
	}
	if one := at(times[:1], 50); one != 1 {
		t.Errorf("median of one time: %v, want it", one)
	}
}
