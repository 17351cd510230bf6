package authn

import (
	"fmt"
	"testing"
	"time"
)

func TestRates(t *testing.T) {
	r := newRates(2)
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	for n := range 20 {
		if wait := r.take("a", at(0)); wait != 0 {
			t.Fatalf("call %d at once has to wait %s, want 20 at once", n+1, wait)
		}
	}
	for _, tt := range []struct {
		name string
		at   time.Duration
		want time.Duration
	}{
		{"a", 0, 500 * time.Millisecond}, // refused calls are not counted
		{"a", 0, 500 * time.Millisecond},
		{"b", 0, 0}, // others are not concerned
		{"a", 499 * time.Millisecond, time.Millisecond},
		{"a", 500 * time.Millisecond, 0},
		{"a", 500 * time.Millisecond, 500 * time.Millisecond},
		{"a", 2 * time.Second, 0},
		{"a", 2 * time.Second, 0},
		{"a", 2 * time.Second, 0},
		{"a", 2 * time.Second, 500 * time.Millisecond},
	} {
		if wait := r.take(tt.name, at(tt.at)); wait != tt.want {
			t.Errorf("%s at %s waits %s, want %s", tt.name, tt.at, wait, tt.want)
		}
	}
}

func TestRatesBelowOneASecond(t *testing.T) {
	r := newRates(0.01)
	if wait := r.take("a", noon); wait != 0 {
		t.Errorf("the first call waits %s", wait)
	}
	if wait := r.take("a", noon); wait != 100*time.Second {
		t.Errorf("the second call waits %s, want 100s", wait)
	}
}

func TestRatesForgetWhoPauses(t *testing.T) {
	r := newRates(1)
	r.forgetAt, r.most = 10, 100
	for n := range 1000 {
		r.take(fmt.Sprint(n), noon.Add(time.Duration(n)*time.Second))
	}
	if n := len(r.next); n > 10 {
		t.Errorf("%d callers are remembered, want at most the 10 of which the last is active", n)
	}
	later := noon.Add(time.Hour)
	refused := 0
	for n := range 150 {
		if r.take("x"+fmt.Sprint(n), later) > 0 {
			refused++
		}
	}
	if len(r.next) != 100 || refused != 50 {
		t.Errorf("%d callers are remembered, %d are refused; want 100 and 50: who is not remembered may not call", len(r.next), refused)
	}
	if wait := r.take("x0", later); wait != 0 {
		t.Errorf("a caller that is remembered waits %s", wait)
	}
	if wait := r.take("new", later.Add(2*time.Second)); wait != 0 {
		t.Errorf("a new caller waits %s when others have paused", wait)
	}
}
