package supervise_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

var update = flag.Bool("update", false, "write the effects that the machine gives into testdata")

// A script's lines are comments (#), blank, one "policy key=value …", events ("> …"),
// and below each event the effects that it has. -update rewrites the effects.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d scripts, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(text), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

// play runs a script and returns it with the effects that came.
func play(t *testing.T, text string) string {
	t.Helper()
	var (
		out     strings.Builder
		policy  = supervise.DefaultPolicy()
		machine *supervise.Machine
	)
	policy.Jitter = 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		word := strings.Fields(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case word[0] == "policy":
			setPolicy(t, &policy, word[1:])
			fmt.Fprintln(&out, line)
		case word[0] == ">":
			if machine == nil {
				machine = supervise.New(policy)
			}
			fmt.Fprintln(&out, line)
			for _, e := range machine.Step(parseEvent(t, word[1:])) {
				fmt.Fprintln(&out, printEffect(e))
			}
		}
	}
	return out.String()
}

func setPolicy(t *testing.T, p *supervise.Policy, settings []string) {
	t.Helper()
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		d, _ := time.ParseDuration(value)
		n, _ := strconv.Atoi(value)
		switch key {
		case "budget":
			p.Budget = n
		case "backoff":
			p.Backoff = d
		case "jitter":
			p.Jitter, _ = strconv.ParseFloat(value, 64)
		case "healthy":
			p.HealthyFor = d
		case "drain":
			p.Drain = d
		case "exit-on-zero":
			p.ExitOnZero = value == "true"
		case "min-drain":
			p.MinDrain = d
		case "max-drain":
			p.MaxDrain = d
		default:
			t.Fatalf("policy %q is unknown", key)
		}
	}
}

func parseEvent(t *testing.T, w []string) supervise.Event {
	t.Helper()
	word := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	number := func(i int) int {
		n, err := strconv.Atoi(word(i))
		if err != nil {
			t.Fatalf("event %q: %v", w, err)
		}
		return n
	}
	switch w[0] {
	case "now":
		d, err := time.ParseDuration(word(1))
		if err != nil {
			t.Fatalf("event %q: %v", w, err)
		}
		jitter, _ := strconv.ParseFloat(word(2), 64)
		return supervise.Now{T: d, Jitter: jitter}
	case "desired":
		return supervise.Desired{Hash: word(1)}
	case "live":
		return supervise.Live{Epoch: number(1)}
	case "exited":
		if word(2) == "signal" {
			return supervise.Exited{Epoch: number(1), Status: supervise.Status{Signal: supervise.Signal(number(3))}}
		}
		return supervise.Exited{Epoch: number(1), Status: supervise.Status{Code: number(3)}}
	case "retire":
		return supervise.Retire{}
	case "terminate":
		return supervise.Terminate{Quick: word(1) == "quick"}
	case "drained":
		return supervise.Drained{}
	case "connections":
		return supervise.Connections{N: number(1)}
	}
	t.Fatalf("event %q is unknown", w)
	return nil
}

func printEffect(e supervise.Effect) string {
	switch e := e.(type) {
	case supervise.Start:
		return fmt.Sprintf("start %d %s", e.Epoch, e.Hash)
	case supervise.Drain:
		return "drain"
	case supervise.Kill:
		return fmt.Sprintf("kill %d %s", e.Epoch, map[supervise.Signal]string{supervise.SIGTERM: "SIGTERM", supervise.SIGKILL: "SIGKILL"}[e.Signal])
	case supervise.Wake:
		return fmt.Sprintf("wake %v", e.At)
	case supervise.Done:
		return fmt.Sprintf("done %d", e.Code)
	}
	return fmt.Sprintf("?%T", e)
}
