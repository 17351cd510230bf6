package logline

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// line is what a handler writes of a record, without its time.
func line(t *testing.T, h func(*bytes.Buffer) slog.Handler, say func(*slog.Logger)) string {
	t.Helper()
	var out bytes.Buffer
	say(slog.New(h(&out)))
	if out.Len() == 0 {
		return ""
	}
	stamp, rest, _ := strings.Cut(out.String(), "\t")
	if _, err := time.Parse("2006-01-02T15:04:05.000000Z", stamp); err != nil {
		t.Errorf("time %q: %v", stamp, err)
	}
	return rest
}

func TestText(t *testing.T) {
	plain := func(out *bytes.Buffer) slog.Handler { return Text(out, Options{}) }
	strict := func(out *bytes.Buffer) slog.Handler {
		return Text(out, Options{Level: slog.LevelInfo, Replace: printable.Attr})
	}
	for _, tt := range []struct {
		name string
		h    func(*bytes.Buffer) slog.Handler
		say  func(*slog.Logger)
		want string
	}{
		{"attributes", plain, func(l *slog.Logger) { l.With("scope", "ca", "a", 1).WithGroup("g").Debug("done", "b", "x y", "c", "") }, "debug\tca\tdone\ta=1\tg.b=\"x y\"\tg.c=\"\"\n"},
		{"lines stay", plain, func(l *slog.Logger) { l.Info("two\nlines") }, "info\ttwo\nlines\n"},
		{"one line", strict, func(l *slog.Logger) { l.Warn("two\nlines\x1b[2J", "error", errors.New("bad\x1b[2J")) }, "warn\ttwo\\nlines\\x1b[2J\terror=bad\\x1b[2J\n"},
		{"the level", strict, func(l *slog.Logger) { l.Debug("no") }, ""},
	} {
		if got := line(t, tt.h, tt.say); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(JSON(&out, Options{Level: slog.LevelInfo, Replace: printable.Attr}))
	log.Debug("no")
	log.Warn("m", "k", "a\x1b")
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["level"] != "warn" || got["msg"] != "m" || got["k"] != `a\x1b` {
		t.Errorf("%v, %v", got, err)
	}
}
