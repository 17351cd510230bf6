package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// logFlags are the logging flags that every command takes. [agent F12]
type logFlags struct {
	json    bool
	levels  string
	targets []string
}

// readLog reads settings.AgentLog.
func readLog(v *settings.Values) *logFlags {
	return &logFlags{json: v.Bool("log_as_json"), levels: v.Text("log_output_level"), targets: v.List("log_target")}
}

// logger makes the logger that the flags ask for. Files are opened for the rest of the
// process's life.
func (l *logFlags) logger(s process) (*slog.Logger, error) {
	levels, err := parseLevels(l.levels)
	if err != nil {
		return nil, err
	}
	var outs []io.Writer
	for _, t := range l.targets {
		switch t {
		case "stdout":
			outs = append(outs, s.stdout)
		case "stderr":
			outs = append(outs, s.stderr)
		default:
			f, err := os.OpenFile(t, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return nil, fmt.Errorf("open log target: %w", err)
			}
			outs = append(outs, f)
		}
	}
	out := io.Discard
	switch len(outs) {
	case 0:
	case 1:
		out = outs[0]
	default:
		out = io.MultiWriter(outs...)
	}
	var h slog.Handler = &lineHandler{out: out, mu: &sync.Mutex{}}
	if l.json {
		h = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: jsonNames})
	}
	return slog.New(&leveled{Handler: h, levels: levels, least: levels["default"]}), nil
}

// off is above every level that is logged.
const off = slog.LevelError + 1000

// parseLevels reads "scope:level,…"; a bare level is that of "default".
func parseLevels(text string) (map[string]slog.Level, error) {
	names := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
		"error": slog.LevelError, "fatal": off, "none": off,
	}
	levels := map[string]slog.Level{"default": slog.LevelInfo}
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		scope, name, ok := strings.Cut(part, ":")
		if !ok {
			scope, name = "default", part
		}
		level, ok := names[name]
		if !ok {
			return nil, fmt.Errorf("log_output_level %q: want debug, info, warn, error, fatal or none", part)
		}
		if scope == "all" {
			levels = map[string]slog.Level{}
			scope = "default"
		}
		levels[scope] = level
	}
	return levels, nil
}

// jsonNames gives JSON lines the field names that log collectors for such agents expect.
func jsonNames(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.LevelKey:
		a.Value = slog.StringValue(strings.ToLower(a.Value.String()))
	case slog.TimeKey:
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}

// leveled drops what its scope does not log; a logger's scope is its attribute "scope".
type leveled struct {
	slog.Handler
	levels map[string]slog.Level
	least  slog.Level
}

// Enabled implements slog.Handler.
func (h *leveled) Enabled(_ context.Context, l slog.Level) bool { return l >= h.least }

// WithAttrs implements slog.Handler.
func (h *leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := &leveled{Handler: h.Handler.WithAttrs(attrs), levels: h.levels, least: h.least}
	for _, a := range attrs {
		if level, ok := h.levels[a.Value.String()]; ok && a.Key == "scope" {
			out.least = level
		}
	}
	return out
}

// WithGroup implements slog.Handler.
func (h *leveled) WithGroup(name string) slog.Handler {
	return &leveled{Handler: h.Handler.WithGroup(name), levels: h.levels, least: h.least}
}

// lineHandler writes time, level, scope, message and attributes with tabs between, a line
// for each record, in one write. The message is not quoted: people and tools grep the
// start log for it. [agent F13]
type lineHandler struct {
	out           io.Writer
	mu            *sync.Mutex
	scope, prefix string
	attrs         []byte
}

// Enabled implements slog.Handler.
func (h *lineHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	line := r.Time.UTC().AppendFormat(nil, "2006-01-02T15:04:05.000000Z")
	line = append(line, '\t')
	line = append(line, strings.ToLower(r.Level.String())...)
	line = append(line, '\t')
	if h.scope != "" {
		line = append(append(line, h.scope...), '\t')
	}
	line = append(line, r.Message...)
	line = append(line, h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		line = appendAttr(line, h.prefix, a)
		return true
	})
	line = append(line, '\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.out.Write(line)
	return err
}

// WithAttrs implements slog.Handler.
func (h *lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.attrs = append([]byte(nil), h.attrs...)
	for _, a := range attrs {
		if a.Key == "scope" && h.prefix == "" {
			out.scope = a.Value.String()
			continue
		}
		out.attrs = appendAttr(out.attrs, h.prefix, a)
	}
	return &out
}

// WithGroup implements slog.Handler.
func (h *lineHandler) WithGroup(name string) slog.Handler {
	out := *h
	out.prefix += name + "."
	return &out
}

func appendAttr(line []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		for _, sub := range v.Group() {
			line = appendAttr(line, prefix+a.Key+".", sub)
		}
		return line
	}
	if a.Equal(slog.Attr{}) {
		return line
	}
	text := v.String()
	if v.Kind() == slog.KindTime {
		text = v.Time().UTC().Format(time.RFC3339Nano)
	}
	if text == "" || strings.ContainsAny(text, " \t\n\"=") {
		text = strconv.Quote(text)
	}
	line = append(line, '\t')
	line = append(line, prefix...)
	line = append(line, a.Key...)
	line = append(line, '=')
	return append(line, text...)
}
