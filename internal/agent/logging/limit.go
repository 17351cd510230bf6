package logging

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxLines bounds the number of lines that are remembered. Further ones are not limited.
const maxLines = 512

// attempt is the attribute with how often something was tried.
const attempt = "attempt"

// repeated is the attribute with how often a line was left out since it was written last.
const repeated = "repeated"

// Limit returns a handler that writes a line that repeats at most once in a period, with how often it was left out. What was
// left out last is written when the period ends, so that the end of the log always tells the present state.
//
// Lines are the same if level, scope, message and attributes are; durations and times do not count, nor do numbers within
// errors, such as ports, and how many attempts there were. Lines of a level below info are not limited: whoever turns them on wants all of them.
func Limit(next slog.Handler, period time.Duration) slog.Handler {
	return &limited{Handler: next, limit: &limiter{period: period, lines: map[string]*line{}}}
}

// limited is a handler of one limiter.
type limited struct {
	slog.Handler
	limit *limiter
	// identity is what the attributes of WithAttrs and WithGroup add to that of a line.
	identity string
}

// limiter knows which lines were written lately.
type limiter struct {
	period time.Duration
	mu     sync.Mutex
	lines  map[string]*line
	// waiting is set while something was left out; it ends the period of the first such line.
	waiting *time.Timer
}

// line is a line that was written.
type line struct {
	written time.Time
	// left is how often it was left out since; last is the last time, by the handler.
	left    int
	last    slog.Record
	handler slog.Handler
}

// Handle implements slog.Handler.
func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.Handler.Handle(ctx, r)
	}
	if h.limit.leaveOut(h.identityOf(r), r, h.Handler) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	b.WriteString(h.identity)
	for _, a := range attrs {
		identify(&b, a)
	}
	return &limited{Handler: h.Handler.WithAttrs(attrs), limit: h.limit, identity: b.String()}
}

// WithGroup implements slog.Handler.
func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{Handler: h.Handler.WithGroup(name), limit: h.limit, identity: h.identity + name + "."}
}

// identityOf is the same for lines that are.
func (h *limited) identityOf(r slog.Record) string {
	var b strings.Builder
	b.WriteString(h.identity)
	b.WriteString(r.Level.String())
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		identify(&b, a)
		return true
	})
	return b.String()
}

// identify adds an attribute to an identity.
func identify(b *strings.Builder, a slog.Attr) {
	if a.Key == attempt {
		return
	}
	v := a.Value.Resolve()
	b.WriteByte('\t')
	b.WriteString(a.Key)
	b.WriteByte('=')
	switch v.Kind() {
	case slog.KindDuration, slog.KindTime:
	case slog.KindGroup:
		for _, sub := range v.Group() {
			identify(b, sub)
		}
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			b.WriteString(withoutNumbers(err.Error()))
			return
		}
		b.WriteString(v.String())
	default:
		b.WriteString(v.String())
	}
}

// withoutNumbers returns a text with a 0 in place of each number.
func withoutNumbers(text string) string {
	var b strings.Builder
	number := false
	for _, c := range []byte(text) {
		digit := c >= '0' && c <= '9'
		switch {
		case digit && !number:
			b.WriteByte('0')
		case !digit:
			b.WriteByte(c)
		}
		number = digit
	}
	return b.String()
}

// leaveOut reports whether a line repeats one within its period.
func (l *limiter) leaveOut(identity string, r slog.Record, h slog.Handler) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	known := l.lines[identity]
	switch {
	case known == nil:
		l.forget(now)
		if len(l.lines) < maxLines {
			l.lines[identity] = &line{written: now}
		}
		return false
	case now.Sub(known.written) >= l.period && known.left == 0:
		known.written = now
		return false
	}
	known.left++
	known.last, known.handler = r.Clone(), h
	l.arm(now)
	return true
}

// forget drops the lines whose period is over.
func (l *limiter) forget(now time.Time) {
	for identity, known := range l.lines {
		if known.left == 0 && now.Sub(known.written) >= l.period {
			delete(l.lines, identity)
		}
	}
}

// arm has the lines that were left out written when their period is over.
func (l *limiter) arm(now time.Time) {
	if l.waiting != nil {
		return
	}
	first := l.period
	for _, known := range l.lines {
		if known.left > 0 {
			first = min(first, known.written.Add(l.period).Sub(now))
		}
	}
	l.waiting = time.AfterFunc(first, l.tell)
}

// tell writes what was left out in periods that are over.
func (l *limiter) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.waiting = nil
	var due []*line
	rest := false
	for _, known := range l.lines {
		switch {
		case known.left == 0:
		case now.Sub(known.written) >= l.period:
			due = append(due, known)
		default:
			rest = true
		}
	}
	slices.SortFunc(due, func(a, b *line) int { return a.last.Time.Compare(b.last.Time) })
	for _, known := range due {
		known.last.AddAttrs(slog.Int(repeated, known.left))
		_ = known.handler.Handle(context.Background(), known.last)
		*known = line{written: now}
	}
	if rest {
		l.arm(now)
	}
}
