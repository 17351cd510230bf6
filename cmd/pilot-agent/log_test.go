package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// logged returns what write logs with the flags.
func logged(t *testing.T, l logFlags, write func(log *slog.Logger)) string {
	t.Helper()
	var out bytes.Buffer
	l.targets = []string{"stdout"}
	log, _, err := l.logger(process{stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	write(log)
	return out.String()
}

func TestLogLines(t *testing.T) {
	l := logFlags{levels: "default:info,xds:debug,sds:none"}
	got := logged(t, l, func(log *slog.Logger) {
		log.Info(`FLAG: --x="v"`)
		log.Debug("dropped")
		log.With("scope", "xds").Debug("kept", "n", 1, "why", errors.New("two words"), "none", "")
		log.With("scope", "sds").Error("dropped")
		log.With("a", "b").WithGroup("g").Warn("w", "k", "v")
	})
	var lines []string
	for line := range strings.Lines(got) {
		_, rest, _ := strings.Cut(line, "\t") // the time
		lines = append(lines, rest)
	}
	want := []string{
		"info\tFLAG: --x=\"v\"\n",
		"debug\txds\tkept\tn=1\twhy=\"two words\"\tnone=\"\"\n",
		"warn\tw\ta=b\tg.k=v\n",
	}
	if strings.Join(lines, "") != strings.Join(want, "") {
		t.Errorf("got %q\nwant %q", lines, want)
	}
}

func TestLogJSON(t *testing.T) {
	l := logFlags{json: true}
	got := logged(t, l, func(log *slog.Logger) {
		log.With("scope", "sds").Warn("m", "k", "v")
	})
	var line map[string]string
	if err := json.Unmarshal([]byte(got), &line); err != nil || line["level"] != "warn" || line["scope"] != "sds" || line["msg"] != "m" || line["k"] != "v" {
		t.Errorf("%q (%v)", got, err)
	}
}

// variable are the parts of a line that differ where it says the same: its time, how often something was tried, and until when.
var variable = regexp.MustCompile(`^\S+\t|\t(attempt|next|left)=\S+|[0-9.]+`)

// An agent whose control plane is away says so once, and not with each attempt.
func TestNoLineIsRepeatedWithinAMinute(t *testing.T) {
	for name, env := range map[string][]string{"with an Envoy": nil, "without": {"DISABLE_ENVOY=true"}} {
		t.Run(name, func(t *testing.T) { noLineIsRepeated(t, env) })
	}
}

func noLineIsRepeated(t *testing.T, env []string) {
	plane := agenttest.NewPlane(t) // which nobody starts
	a := agenttest.New(t, plane, "", env...)
	a.Start()
	agenttest.Until(t, "the agent has asked for its certificate five times", func() error {
		_, page, err := a.Get(a.Status, "/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "istio_agent_num_failed_outgoing_requests{") {
				_, n, _ := strings.Cut(strings.TrimSpace(line), "} ")
				if failed, err := strconv.Atoi(n); err == nil && failed >= 5 {
					return nil
				}
			}
		}
		return errors.New("it has not")
	})
	seen := map[string]string{}
	for line := range strings.Lines(a.Output()) {
		fact := variable.ReplaceAllString(line, "")
		if strings.Contains(line, "\trepeated=") || strings.Contains(line, "FLAG: ") || !strings.Contains(line, "\t") {
			continue // it says how often it was left out; of the machine; of a configuration of several lines
		}
		if seen[fact] != "" {
			t.Errorf("a line is written twice:\n%s%s", seen[fact], line)
		}
		seen[fact] = line
	}
	if len(seen) == 0 {
		t.Error("nothing is logged")
	}
}
