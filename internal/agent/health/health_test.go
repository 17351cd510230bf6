package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestThresholds(t *testing.T) {
	bad := errors.New("bad")
	for _, c := range []struct {
		name                string
		successes, failures int
		results             string // of + and -
		want                string // what is reported after each, . for nothing
	}{
		{"one each", 1, 1, "++--+", "+.-.+"},
		{"two failures", 1, 2, "+-+--+", "+...-+"},
		{"three successes", 3, 1, "++-+++", "..-..+"},
		{"unhealthy at first", 1, 1, "--", "-."},
		{"not known", 2, 2, "+-+-", "...."},
	} {
		tally := tally{successes: c.successes, failures: c.failures}
		got := ""
		for _, r := range c.results {
			var err error
			if r == '-' {
				err = bad
			}
			switch changed := tally.add(err); {
			case !changed:
				got += "."
			case tally.healthy:
				got += "+"
			default:
				got += "-"
			}
		}
		if got != c.want {
			t.Errorf("%s: reported %s, want %s", c.name, got, c.want)
		}
	}
}

// reports collects what is reported.
type reports struct {
	mu   sync.Mutex
	list []string
}

func (r *reports) add(healthy bool, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprint(healthy, " ", message))
}

func (r *reports) get() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func TestChangesAreReported(t *testing.T) {
	var mu sync.Mutex
	proxy, app := errors.New("starting"), error(nil)
	set := func(p, a error) {
		mu.Lock()
		defer mu.Unlock()
		proxy, app = p, a
	}
	got := &reports{}
	o := Options{
		Probe:  &spec.Readiness{Period: time.Millisecond, Timeout: time.Minute, Successes: 1, Failures: 1},
		Proxy:  func() error { mu.Lock(); defer mu.Unlock(); return proxy },
		Check:  func(context.Context) error { mu.Lock(); defer mu.Unlock(); return app },
		Report: got.add, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	want := []string{"false the proxy is not ready: starting"}
	awaits := func() {
		t.Helper()
		wait.Until(t, fmt.Sprint(want), func() bool { return slices.Equal(got.get(), want) })
	}
	awaits()
	set(nil, nil)
	want = append(want, "true ")
	awaits()
	set(nil, errors.New("refused"))
	want = append(want, "false refused")
	awaits()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		name    string
		command []string
		timeout time.Duration
		want    string // in the error; empty for a success
	}{
		{"success", []string{"true"}, time.Minute, ""},
		{"failure", []string{"sh", "-c", "echo no database >&2; exit 3"}, time.Minute, `exit status 3: "no database\n"`},
		{"much output", []string{"sh", "-c", "yes | head -c 100000; exit 1"}, time.Minute, "exit status 1"},
		{"none", []string{"/nonexistent"}, time.Minute, "/nonexistent"},
		{"too long", []string{"sh", "-c", "sleep 1000 & wait"}, 50 * time.Millisecond, "timeoutSeconds"},
	} {
		o := Options{Probe: &spec.Readiness{Exec: c.command, Timeout: c.timeout}, Proxy: func() error { return nil }}
		err := once(t.Context(), &o)
		if c.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && len(err.Error()) > 3000 {
			t.Errorf("%s: an error of %d bytes", c.name, len(err.Error()))
		}
	}
}
