package status

import (
	"bufio"
	"bytes"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// pageOf is a page of a case: its text, and whether it is in the text format.
type pageOf struct {
	text  string
	plain bool
}

// joinPages joins pages that arrive in parts of a size.
func joinPages(openMetrics bool, size int, pages ...pageOf) (string, error) {
	var out bytes.Buffer
	e := newExposition(bufio.NewWriter(&out), openMetrics)
	for _, p := range pages {
		e.begin(p.plain)
		for rest := []byte(p.text); len(rest) > 0; {
			n := min(size, len(rest))
			if _, err := e.Write(rest[:n]); err != nil {
				return "", err
			}
			rest = rest[n:]
		}
		if err := e.end(true); err != nil {
			return "", err
		}
	}
	err := e.finish()
	return out.String(), err
}

func TestPagesAreJoined(t *testing.T) {
	for name, c := range map[string]struct {
		openMetrics bool
		pages       []pageOf
		want        string
	}{
		"text": {false, []pageOf{
			{"# HELP a first\n# TYPE a counter\na 1\n", true},
			{"# TYPE b gauge\r\nb{} 2\n\n# a comment\n#\nb{x=\"1\"} 3", true},
			{"  c 4\n# EOF\nc 5\n", true},
		}, "# HELP a first\n# TYPE a counter\na 1\n# TYPE b gauge\nb{} 2\nb{x=\"1\"} 3\nc 4\n"},
		"families of several pages are declared once": {false, []pageOf{
			{"# HELP a first\n# TYPE a counter\na 1\n# TYPE a counter\n", true},
			{"# HELP a second\n# TYPE a gauge\na{x=\"1\"} 2\n# HELP b B\nb 1\n", true},
		}, "# HELP a first\n# TYPE a counter\na 1\na{x=\"1\"} 2\n# HELP b B\nb 1\n"},
		"OpenMetrics": {true, []pageOf{
			{"# HELP a \"first\"\n# TYPE a gauge\na 1\n# HELP c C\nc 1\n", true},
			{"# TYPE rq counter\nrq 1\n# HELP rq_total R\n# TYPE rq_total counter\nrq_total 2\n# TYPE x_total counter\nx_total 3\n# TYPE y untyped\ny 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\n", true},
			{"# HELP z Z\n# TYPE z counter\n# UNIT z seconds\nz_total 1 # {trace_id=\"1\"} 1\n# TYPE x counter\nx_total 9\n# TYPE \"u.v\" gauge\n{\"u.v\"} 1\n# EOF\n", false},
		}, "# HELP a \\\"first\\\"\n# TYPE a gauge\na 1\n# HELP c C\nc 1\n" +
			"# TYPE rq unknown\nrq 1\n# HELP rq_total R\n# TYPE rq_total unknown\nrq_total 2\n# TYPE x counter\nx_total 3\n# TYPE y unknown\ny 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\n" +
			"# HELP z Z\n# TYPE z counter\n# UNIT z seconds\nz_total 1 # {trace_id=\"1\"} 1\nx_total 9\n# TYPE \"u.v\" gauge\n{\"u.v\"} 1\n# EOF\n"},
	} {
		for _, size := range []int{1, 2, 3, 7, 1 << 20} {
			got, err := joinPages(c.openMetrics, size, c.pages...)
			if err != nil || got != c.want {
				t.Errorf("%s, in parts of %d bytes: %v\ngot  %q\nwant %q", name, size, err, got, c.want)
			}
		}
	}
}

func TestInvalidPages(t *testing.T) {
	for text, want := range map[string]string{
		"<html>\n": `invalid line "<html>": want a metric or a comment`, "# TYPE a\n": "want the name of a metric, and its type", "# HELP \"a\n": "want the name",
		strings.Repeat("x", maxLine+1):        "longer than",
		strings.Repeat("x", maxLine+1) + "\n": "longer than",
	} {
		for _, size := range []int{1 << 10, 1 << 20} {
			if _, err := joinPages(false, size, pageOf{text, true}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.40q: %v, want %q", text, err, want)
			}
		}
	}
}

// Memory for names is bounded, too.
func TestManyFamilies(t *testing.T) {
	e := newExposition(bufio.NewWriter(&bytes.Buffer{}), false)
	e.begin(true)
	for i := range maxFamilies + 100 {
		if _, err := e.Write([]byte("# TYPE a" + strconv.Itoa(i) + " gauge\n")); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.families) > maxFamilies {
		t.Errorf("%d names are remembered, want at most %d", len(e.families), maxFamilies)
	}
}

func TestAcceptForTheApplication(t *testing.T) {
	for given, want := range map[string]string{
		"":                    textOnly,
		"*/*":                 textOnly,
		"*":                   textOnly,
		"text/html, nonsense": textOnly,
		"application/*":       "application/openmetrics-text;version=0.0.1",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,text/plain;version=0.0.4;q=0.1",
		"application/openmetrics-text;version=2.0.0,text/plain": textOnly,
	} {
		if got := accepted([]string{given}); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", given, got, want)
		}
	}
	if got := accepted([]string{strings.Repeat("text/plain;q=0.1,text/plain;q=0.2,", 1000) + "application/*"}); len(got) > 200 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestContentTypes(t *testing.T) {
	for app, want := range map[string]string{
		"": textContentType, "text/plain; version=0.0.4": textContentType, "x/": textContentType, "application/json": textContentType,
		"application/openmetrics-text; version=1.0.0; charset=utf-8":                       "application/openmetrics-text; version=1.0.0; charset=utf-8",
		"application/openmetrics-text; version=0.0.1":                                      "application/openmetrics-text; version=0.0.1; charset=utf-8",
		"application/openmetrics-text; version=9":                                          "application/openmetrics-text; version=1.0.0; charset=utf-8",
		"application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8": "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
	} {
		if got, open := contentType(app); got != want || open != strings.HasPrefix(want, openMetricsType) {
			t.Errorf("%s: %s, want %s", app, got, want)
		}
	}
	for given, want := range map[string]bool{"": false, "gzip": true, "br, GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0": false, "identity": false} {
		if got := acceptsGzip([]string{given}); got != want {
			t.Errorf("gzip by %q: %v", given, got)
		}
	}
}

// BenchmarkJoin joins a page of 20 MB as Envoy has it. What it allocates are lines of HELP and TYPE, one at a time.
func BenchmarkJoin(b *testing.B) {
	var part bytes.Buffer
	for i := range 200 {
		part.WriteString("# TYPE envoy_cluster_metric_" + strings.Repeat("x", i%50) + " counter\n")
		for range 5 {
			part.WriteString("envoy_cluster_metric{cluster_name=\"outbound|9080||reviews.bookshop.svc.cluster.local\"} 12345\n")
		}
	}
	const size = 20 << 20
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		e := newExposition(bufio.NewWriterSize(io.Discard, outBuffer), true)
		e.begin(true)
		for n := 0; n < size; n += part.Len() {
			if _, err := e.Write(part.Bytes()); err != nil {
				b.Fatal(err)
			}
		}
		if err := e.end(true); err != nil {
			b.Fatal(err)
		}
	}
}

// A page of 20 MB costs the agent a fraction of it, garbage included.
func TestALargePageIsNotGathered(t *testing.T) {
	line := []byte("envoy_cluster_metric{cluster_name=\"outbound|9080||reviews.bookshop.svc.cluster.local\"} 12345\n")
	const size = 20 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e := newExposition(bufio.NewWriterSize(io.Discard, outBuffer), true)
	e.begin(true)
	for n := 0; n < size; n += len(line) {
		if n%(size/1000) < len(line) {
			_, _ = e.Write([]byte("# TYPE envoy_cluster_metric counter\n"))
		}
		if _, err := e.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.end(true); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes were allocated for a page of %d", got, size)
	}
}
