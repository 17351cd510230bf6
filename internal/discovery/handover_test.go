package discovery

import (
	"errors"
	"testing"
	"time"
)

// Another root signs the webhooks' certificate only when the API server has been known to trust it for a moment.
func TestHandoverWaitsForTheBundles(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	at := func(f trustFacts) trustFacts {
		f.now = now
		if f.started.IsZero() {
			f.started = now.Add(-time.Hour)
		}
		if f.end.IsZero() {
			f.end = now.Add(time.Hour)
		}
		return f
	}
	away := errors.New("connection refused")
	for name, tt := range map[string]struct {
		f    trustFacts
		want bool
	}{
		"in no bundle":                             {trustFacts{since: now}, false},
		"in all bundles, as is seen now":           {trustFacts{trusted: true, since: now}, false},
		"in all bundles, for almost long enough":   {trustFacts{trusted: true, since: now.Add(time.Millisecond - handoverSettle)}, false},
		"in all bundles, for long enough":          {trustFacts{trusted: true, since: now.Add(-handoverSettle)}, true},
		"an API server that is away":               {trustFacts{err: away, since: now}, false},
		"it must not be found out":                 {trustFacts{refused: true, err: away, since: now}, true},
		"the old one ends":                         {trustFacts{since: now, end: now.Add(handoverEnd)}, true},
		"at the start, in all bundles":             {trustFacts{same: true, trusted: true, since: now, started: now}, true},
		"at the start, in no bundle":               {trustFacts{same: true, since: now, started: now}, false},
		"at the start, in no bundle for too long":  {trustFacts{same: true, since: now, started: now.Add(-handoverStart)}, true},
		"at the start, an API server that is away": {trustFacts{same: true, err: away, since: now, started: now}, true},
	} {
		if got := at(tt.f).settled(); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
