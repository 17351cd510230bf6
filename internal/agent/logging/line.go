package logging

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// JSON returns a handler that writes a line of JSON for each record, of every level.
func JSON(out io.Writer) slog.Handler {
	return slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: jsonNames})
}

// Lines returns a handler that writes a line of text for each record, of every level.
func Lines(out io.Writer) slog.Handler { return &lineHandler{out: out, mu: &sync.Mutex{}} }

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
