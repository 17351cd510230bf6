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

var update = flag.Bool("update", false, "write the effects that the machine returns into testdata")

// TestScripts runs testdata/*.txt. A script has comments (#), blank lines, one "policy [name]
// key=value …", events ("> …"), each followed by its effects, and "?", followed by the view as
// "= …". -update rewrites effects and views.
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

// play runs a script and returns it with the actual effects and views.
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
		field := strings.Fields(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case field[0] == "policy":
			setPolicy(t, &policy, field[1:])
			fmt.Fprintln(&out, line)
		case field[0] == ">":
			if machine == nil {
				machine = supervise.New(policy)
			}
			fmt.Fprintln(&out, line)
			for _, e := range machine.Step(parseEvent(t, field[1:])) {
				fmt.Fprintln(&out, printEffect(e))
			}
		case field[0] == "?":
			fmt.Fprintf(&out, "?\n= %s\n", printView(machine.View()))
		}
	}
	return out.String()
}

var policies = map[string]func() supervise.Policy{
	"hot": supervise.HotPolicy, "2017": supervise.Policy2017, "2019": supervise.Policy2019,
	"2020": supervise.Policy2020, "2021": supervise.Policy2021,
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
		case "max":
			p.Epochs.Max = n
		case "zero-is-final":
			p.Compat.ZeroIsFinal = value == "true"
		default:
			named := policies[key]
			if named == nil {
				t.Fatalf("invalid policy %q", key)
			}
			*p = named()
			p.Jitter = 0
		}
	}
}

func parseEvent(t *testing.T, w []string) supervise.Event {
	t.Helper()
	field := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	number := func(i int) int {
		n, err := strconv.Atoi(field(i))
		if err != nil && field(i) != "" {
			t.Fatalf("event %q: %v", w, err)
		}
		return n
	}
	switch field(0) {
	case "now":
		d, err := time.ParseDuration(field(1))
		if err != nil {
			t.Fatal(err)
		}
		jitter, _ := strconv.ParseFloat(field(2), 64)
		return supervise.Now{T: d, Jitter: jitter}
	case "desired":
		return supervise.Desired{Hash: field(1)}
	case "upstream":
		return supervise.Upstream{OK: field(1) == "ok"}
	case "live":
		return supervise.Live{Epoch: number(1)}
	case "exited":
		e := supervise.Exited{Epoch: number(1), TookAdmin: field(4) == "took-admin"}
		switch field(2) {
		case "signal":
			e.Status.Signal = supervise.Signal(number(3))
		case "code":
			e.Status.Code = number(3)
		case "refused":
			e.Reason, e.Status.Code = supervise.Refused, 1
		case "incompatible":
			e.Reason, e.Status.Code = supervise.Incompatible, 1
		default:
			t.Fatalf("invalid event %q: want code, signal, refused or incompatible", w)
		}
		return e
	case "unlocked":
		return supervise.Unlocked{OK: field(1) == "ok"}
	case "drain-requested":
		return supervise.DrainRequested{}
	case "terminate":
		return supervise.Terminate{Quick: field(1) == "quick"}
	case "drained":
		return supervise.Drained{Epoch: number(1)}
	case "connections":
		return supervise.Connections{N: number(1), Epoch: number(2)}
	}
	t.Fatalf("invalid event %q", w)
	return nil
}

func printEffect(e supervise.Effect) string {
	switch e := e.(type) {
	case supervise.Start:
		return fmt.Sprintf("start %d %s", e.Epoch, e.Hash)
	case supervise.Unlock:
		return fmt.Sprintf("unlock %d", e.Epoch)
	case supervise.Drain:
		if e.NoAdmin {
			return fmt.Sprintf("drain %d without admin", e.Epoch)
		}
		return fmt.Sprintf("drain %d", e.Epoch)
	case supervise.Kill:
		return fmt.Sprintf("kill %d %s", e.Epoch, map[supervise.Signal]string{supervise.SIGTERM: "SIGTERM", supervise.SIGKILL: "SIGKILL"}[e.Signal])
	case supervise.KillUnlessLive:
		return fmt.Sprintf("kill %d unless live", e.Epoch)
	case supervise.Panic:
		return "panic " + e.Hash
	case supervise.Remove:
		return "remove"
	case supervise.Wake:
		return fmt.Sprintf("wake %v", e.At)
	case supervise.Done:
		return fmt.Sprintf("done %d", e.Code)
	}
	panic(fmt.Sprintf("unexpected effect %T", e))
}

func printView(v supervise.View) string {
	var b strings.Builder
	for _, e := range v.Epochs {
		fmt.Fprintf(&b, "%d %s %s", e.Number, e.Hash, e.Phase)
		if e.NoAdmin {
			b.WriteString(" without admin")
		}
		b.WriteString("; ")
	}
	fmt.Fprintf(&b, "serving %d live=%v; desired %s", v.Epoch, v.Live, v.Goal.Desired)
	for _, flag := range []struct {
		set  bool
		text string
	}{
		{v.Goal.GivenUp, "given up"},
		{v.Goal.Plain, "plain"},
		{v.Goal.Waiting != "", "waiting: " + string(v.Goal.Waiting)},
		{v.Draining, "draining"},
		{v.Ending, "ending"},
	} {
		if flag.set {
			b.WriteString(", " + flag.text)
		}
	}
	return b.String()
}
