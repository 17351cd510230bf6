package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
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
