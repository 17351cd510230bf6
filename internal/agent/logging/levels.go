// Package logging writes the log of the agent: lines of text or JSON, with a least level for each scope.
//
// A logger's scope is its attribute "scope". [Levels] can be changed while the loggers are in use.
package logging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// off is above every level that is logged.
const off = slog.LevelError + 1000

// fallback is the scope of the level for scopes that have none.
const fallback = "default"

// maxText bounds the text of levels, in bytes.
const maxText = 4096

var names = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": off, "none": off,
}

// Levels are the least levels of scopes. Make them with ParseLevels. They may be used by several goroutines at once.
type Levels struct {
	mu    sync.RWMutex
	least map[string]slog.Level
	// scopes are those of loggers.
	scopes map[string]bool
}

// ParseLevels reads "scope:level,…"; a bare level is that of "default", and "all:level" removes those of all scopes.
func ParseLevels(text string) (*Levels, error) {
	least, err := change(map[string]slog.Level{fallback: slog.LevelInfo}, text)
	if err != nil {
		return nil, err
	}
	return &Levels{least: least, scopes: map[string]bool{}}, nil
}

// change returns levels with those of a text.
func change(levels map[string]slog.Level, text string) (map[string]slog.Level, error) {
	out := maps.Clone(levels)
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		scope, name, ok := strings.Cut(part, ":")
		if !ok {
			scope, name = fallback, part
		}
		level, ok := names[name]
		if !ok {
			return nil, fmt.Errorf("%q: want debug, info, warn, error, fatal or none", part)
		}
		if scope == "all" {
			out = map[string]slog.Level{}
			scope = fallback
		}
		out[scope] = level
	}
	return out, nil
}

// Set changes levels, by a text as for ParseLevels. An error changes nothing: a level or scope that does not exist, or a text without any.
func (l *Levels) Set(text string) error {
	if len(text) > maxText {
		return fmt.Errorf("log levels: %d bytes: want at most %d", len(text), maxText)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	given, err := change(map[string]slog.Level{}, text)
	switch {
	case err != nil:
		return fmt.Errorf("log level %w", err)
	case len(given) == 0:
		return errors.New("log level: want SCOPE:LEVEL, such as xdsproxy:debug")
	}
	for scope := range given {
		if scope != fallback && !l.scopes[scope] {
			return fmt.Errorf("log level of %q: want one of the scopes %s", scope, strings.Join(l.known(), ", "))
		}
	}
	l.least, err = change(l.least, text)
	return err
}

// known are the scopes, sorted.
func (l *Levels) known() []string {
	return append([]string{fallback}, slices.Sorted(maps.Keys(l.scopes))...)
}

// String is a line of scope:level for each scope.
func (l *Levels) String() string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var b strings.Builder
	for _, scope := range l.known() {
		level := l.level(scope)
		name := strings.ToLower(level.String())
		if level >= off {
			name = "none"
		}
		fmt.Fprintf(&b, "%s:%s\n", scope, name)
	}
	return b.String()
}

func (l *Levels) level(scope string) slog.Level {
	if level, ok := l.least[scope]; ok {
		return level
	}
	return l.least[fallback]
}

// Handler returns a handler that passes to next what the record's scope logs.
func (l *Levels) Handler(next slog.Handler) slog.Handler {
	return &leveled{Handler: next, levels: l, scope: fallback}
}

// leveled drops what its scope does not log.
type leveled struct {
	slog.Handler
	levels *Levels
	scope  string
}

// Enabled implements slog.Handler.
func (h *leveled) Enabled(_ context.Context, level slog.Level) bool {
	h.levels.mu.RLock()
	defer h.levels.mu.RUnlock()
	return level >= h.levels.level(h.scope)
}

// WithAttrs implements slog.Handler.
func (h *leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := &leveled{Handler: h.Handler.WithAttrs(attrs), levels: h.levels, scope: h.scope}
	for _, a := range attrs {
		if a.Key == "scope" {
			out.scope = a.Value.String()
			h.levels.mu.Lock()
			h.levels.scopes[out.scope] = true
			h.levels.mu.Unlock()
		}
	}
	return out
}

// WithGroup implements slog.Handler.
func (h *leveled) WithGroup(name string) slog.Handler {
	return &leveled{Handler: h.Handler.WithGroup(name), levels: h.levels, scope: h.scope}
}
