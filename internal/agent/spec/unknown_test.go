package spec

import (
	"strings"
	"testing"
)

// Fields that nobody knows are named, with what may have been meant; what is known is not.
func TestUnknownFieldsOfProxyConfig(t *testing.T) {
	got := strings.Join(unknownFields([]byte("concurency: 2\ndrainDuration: 5s\nstatus_port: 1\nnothingLikeIt: 1\ntracing: {samplng: 1, zipkin: {}}\n")), "\n")
	for _, want := range []string{`unknown field "concurency" has no effect; did you mean concurrency?`, `unknown field "nothingLikeIt" has no effect`, `unknown field "samplng" in tracing has no effect`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
	if n := strings.Count(got, "\n") + 1; n != 3 {
		t.Errorf("%d lines: %s", n, got)
	}
	if got := unknownFields([]byte("{a")); got != nil {
		t.Errorf("%q", got)
	}
}
