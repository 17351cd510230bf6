package envoy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// writes keeps every Write apart.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

func TestOutputIsPassedOnInWholeLines(t *testing.T) {
	long := strings.Repeat("x", 3*lineBuffer) + "\n"
	for _, c := range []struct{ name, in, want string }{
		{"lines", "one\ntwo\n", "one\ntwo\n"},
		{"an unfinished last line gets its end", "one\ntwo", "one\ntwo\n"},
		{"nothing", "", ""},
		{"empty lines stay", "\n\n", "\n\n"},
		{"a line longer than the buffer", "a\n" + long + "b\n" + long, "a\n" + long + "b\n" + long},
		{"an endless line is cut", strings.Repeat("y", longestLine) + "y\n", strings.Repeat("y", longestLine) + "\ny\n"},
	} {
		for how, src := range map[string]io.Reader{
			"at once": strings.NewReader(c.in), "in halves": iotest.HalfReader(strings.NewReader(c.in)),
			"byte by byte": iotest.OneByteReader(io.LimitReader(strings.NewReader(c.in), longestLine+2)),
		} {
			var got writes
			if err := copyLines(&got, src); err != nil {
				t.Errorf("%s %s: %v", c.name, how, err)
			}
			if all := strings.Join(got, ""); all != c.want {
				t.Errorf("%s %s: got %d bytes, want %d", c.name, how, len(all), len(c.want))
			}
			if i := slices.IndexFunc(got, func(w string) bool { return !strings.HasSuffix(w, "\n") }); i >= 0 {
				t.Errorf("%s %s: write %d is not of whole lines", c.name, how, i)
			}
		}
	}
}

func TestOutputThatBreaksIsAnError(t *testing.T) {
	broken := errors.New("broken")
	if err := copyLines(io.Discard, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("source: got %v", err)
	}
	r, w := io.Pipe()
	r.CloseWithError(broken)
	if err := copyLines(w, bytes.NewReader([]byte("a\n"))); !errors.Is(err, broken) {
		t.Errorf("destination: got %v", err)
	}
}

func TestConnectionsThatCount(t *testing.T) {
	stats := parseStats(`listener.0.0.0.0_15006.downstream_cx_active: 3
listener.0.0.0.0_15006.worker_0.downstream_cx_active: 2
listener.[__]_15001.downstream_cx_active: 4
listener.10.1.2.3_8080.downstream_cx_active: 5
listener.admin.downstream_cx_active: 100
listener.admin.main_thread.downstream_cx_active: 100
listener.envoy_internal_connect_originate.downstream_cx_active: 100
listener.0.0.0.0_15021.downstream_cx_active: 100
listener.0.0.0.0_15090.downstream_cx_active: 100
http.inbound.downstream_cx_active: 100
listener.0.0.0.0_15006.downstream_cx_length_ms: P0(1,1) P50(2,2)
`)
	if n := countConnections(stats, []int{15021, 15090}); n != 12 {
		t.Errorf("got %d, want 3+4+5", n)
	}
	if n := countConnections(nil, nil); n != 0 {
		t.Errorf("got %d of nothing", n)
	}
}

// What is asked for is found, and what comes after it is not read.
func TestServerInfoIsReadNoFurtherThanNeeded(t *testing.T) {
	const needed = `{"version":"a/1/b","state":"LIVE","uptime":"1s","command_line_options":{"x":[{}],"restart_epoch":2,"concurrency":3},`
	var info ServerInfo
	if err := info.read(json.NewDecoder(strings.NewReader(needed + `"node": no JSON`))); err != nil {
		t.Fatal(err)
	}
	if info.Version != "a/1/b" || info.State != "LIVE" || info.Options.RestartEpoch != 2 || info.Options.Concurrency != 3 {
		t.Errorf("read %+v", info)
	}
	for _, text := range []string{"", "[]", `{"state"`, `{"state": 1}`, `{"state": "LIVE"`} {
		if err := new(ServerInfo).read(json.NewDecoder(strings.NewReader(text))); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}
