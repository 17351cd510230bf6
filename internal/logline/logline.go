// Package logline writes lines of a log, as text or JSON: both programs have the same format.
//
// A line of text is the time in UTC, the level, the scope if there is one, the message, and attributes as key=value, with tabs between.
// Handlers are safe for concurrent use.
package logline

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options are those of a handler.
type Options struct {
	// Level is the least level that is written; nil for every level.
	Level slog.Leveler
	// Replace changes messages and the values of attributes before they are written, as slog.HandlerOptions.ReplaceAttr does, and has the
	// message be one line; nil for no change.
	Replace func(groups []string, a slog.Attr) slog.Attr
}

// JSON returns a handler that writes a line of JSON for each record.
func JSON(out io.Writer, o Options) slog.Handler {
	level := o.Level
	if level == nil {
		level = slog.LevelDebug
	}
	return slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		a = jsonNames(groups, a)
		if o.Replace != nil {
			a = o.Replace(groups, a)
		}
		return a
	}})
}

// Text returns a handler that writes a line of text for each record.
func Text(out io.Writer, o Options) slog.Handler {
	return &lineHandler{out: out, o: o, mu: &sync.Mutex{}}
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

// lineHandler writes time, level, scope, message and attributes with tabs between, a line
// for each record, in one write. The message is not quoted: people and tools grep the
// start log of the agent for it. [agent F13]
type lineHandler struct {
	out           io.Writer
	o             Options
	mu            *sync.Mutex
	scope, prefix string
	attrs         []byte
}

// Enabled implements slog.Handler.
func (h *lineHandler) Enabled(_ context.Context, level slog.Level) bool {
	return h.o.Level == nil || level >= h.o.Level.Level()
}

// Handle implements slog.Handler.
func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	line := r.Time.UTC().AppendFormat(nil, "2006-01-02T15:04:05.000000Z")
	line = append(line, '\t')
	line = append(line, strings.ToLower(r.Level.String())...)
	line = append(line, '\t')
	if h.scope != "" {
		line = append(append(line, h.scope...), '\t')
	}
	line = append(line, h.message(r.Message)...)
	line = append(line, h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		line = h.appendAttr(line, h.prefix, a)
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
		out.attrs = h.appendAttr(out.attrs, h.prefix, a)
	}
	return &out
}

// WithGroup implements slog.Handler.
func (h *lineHandler) WithGroup(name string) slog.Handler {
	out := *h
	out.prefix += name + "."
	return &out
}

// message is the message of a line.
func (h *lineHandler) message(text string) string {
	if h.o.Replace == nil {
		return text
	}
	text = h.o.Replace(nil, slog.String(slog.MessageKey, text)).Value.String()
	return escape.Replace(text)
}

var escape = strings.NewReplacer("\n", `\n`, "\t", `\t`)

func (h *lineHandler) appendAttr(line []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		for _, sub := range v.Group() {
			line = h.appendAttr(line, prefix+a.Key+".", sub)
		}
		return line
	}
	if a.Equal(slog.Attr{}) {
		return line
	}
	if h.o.Replace != nil {
		a.Value = v
		v = h.o.Replace(nil, a).Value.Resolve()
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
