package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// TestAFileRewrittenInPlaceStartsNoEnvoy truncates a file that Envoy was started with and
// writes the same content a little later: the partial content does not count as a change.
func TestAFileRewrittenInPlaceStartsNoEnvoy(t *testing.T) {
	a := restartable(t)
	const three, four = `proxy.istio.io/config="{concurrency: 3}"`, `proxy.istio.io/config="{concurrency: 4}"`
	annotate(t, a, three)
	awaitEpoch(t, a, 1)
	file := a.Dir + "/etc/istio/pod/annotations"
	began := time.Now()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	<-time.After(400 * time.Millisecond) // long enough for the empty file to be read
	if err := os.WriteFile(file, []byte(three+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if time.Since(began) > filewatch.DefaultQuietPeriod*3/4 {
		t.Log("the machine stood still meanwhile")
		return
	}
	annotate(t, a, four)
	if i := awaitEpoch(t, a, 2); i.Options.Concurrency != 4 {
		t.Errorf("after the change: %+v", i)
	}
	if n := strings.Count(a.Output(), "a new Envoy is needed"); n != 2 {
		t.Errorf("%d Envoys were wanted, want 2:\n%s", n, a.Output())
	}
}
