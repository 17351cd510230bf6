package xds

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is why a client is not served. It is a gRPC status, and its reason is the label
// by which refusals are counted.
type refusal struct {
	code   codes.Code
	reason string
	text   string
}

func (r *refusal) Error() string { return r.text }

// GRPCStatus makes a refusal the status that the client sees.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.text) }

// The reasons of refusals, for metrics.
const (
	reasonNode        = "node"
	reasonRequest     = "request"
	reasonNames       = "names"
	reasonStreams     = "streams"
	reasonMemory      = "memory"
	reasonSilence     = "silence"
	reasonConnections = "connections"
	reasonRate        = "rate"
)

var reasons = []string{reasonNode, reasonRequest, reasonNames, reasonStreams, reasonMemory, reasonSilence, reasonConnections, reasonRate}

func exhausted(reason, format string, args ...any) *refusal {
	return &refusal{codes.ResourceExhausted, reason, fmt.Sprintf(format, args...)}
}

// refusalPause is how long no further refusal for the same reason is logged, since a client that
// is refused may come back at once. The counter counts all of them.
const refusalPause = 10 * time.Second

// refusals counts who is refused for overstepping a bound, and logs some. Any goroutine
// may use it.
type refusals struct {
	mu   sync.Mutex
	last map[string]loggedRefusal
}

// loggedRefusal is when a reason was logged last, and how often it came since.
type loggedRefusal struct {
	at    time.Time
	since int
}

// note counts and logs the error that a client got, if it is about a bound.
func (r *refusals) note(s *Server, err error, who string) {
	reason := reasonOf(err)
	if reason == "" {
		return
	}
	s.metrics.refused.WithLabelValues(reason).Inc()
	now := time.Now()
	r.mu.Lock()
	last, again := r.last[reason]
	if again && now.Sub(last.at) < refusalPause {
		last.since++
		r.last[reason] = last
		r.mu.Unlock()
		return
	}
	if r.last == nil {
		r.last = map[string]loggedRefusal{}
	}
	r.last[reason] = loggedRefusal{at: now}
	r.mu.Unlock()
	s.log.Warn("client refused", "client", who, "reason", reason, "status", status.Code(err).String(),
		"message", truncate([]byte(status.Convert(err).Message()), maxMessage), "more_since_last_time", last.since)
}

func reasonOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	// gRPC itself refuses requests longer than its limit.
	if status.Code(err) == codes.ResourceExhausted {
		return reasonRequest
	}
	return ""
}

// Refusals of configuration are logged one by one, up to so many of a stream, and of all streams together, in a
// period: one bad resource may be refused by every proxy at once.
const (
	logLimitLines    = 20
	logLimitLinesAll = 100
	logLimitPeriod   = time.Minute
)

// logLimit bounds how many lines are logged in a period.
type logLimit struct {
	since             time.Time
	lines, suppressed int
}

// allow says whether a line may be logged now, of at most so many in a period, and how many were not since the last
// one.
func (p *logLimit) allow(now time.Time, most int) (suppressed int, ok bool) {
	if now.Sub(p.since) >= logLimitPeriod {
		p.since, p.lines = now, 0
	}
	if p.lines == most {
		p.suppressed++
		return 0, false
	}
	p.lines++
	suppressed, p.suppressed = p.suppressed, 0
	return suppressed, true
}

// logRefused logs that something was refused to which no Type belongs, or by which no proxy is served, unless too much is logged already.
func (s *stream) logRefused(text string, args ...any) {
	if suppressed, ofAll, ok := s.mayLogRefusal(time.Now()); ok {
		s.server.log.Warn(text, append(args, "suppressed", suppressed, "suppressed_of_all_proxies", ofAll)...)
	}
}

// streamLogRecovery is how long it takes until as many streams as are served at a time can begin once more with all of them logged.
const streamLogRecovery = 1000 * time.Second

// streamLog decides of which streams the beginning is logged, and with it the end and what their clients ask for: of as many at once as are
// served at a time, and then of a thousandth of these in a second. A client that opens streams in a loop would fill the log. Any goroutine may
// use it.
type streamLog struct {
	mu sync.Mutex
	// spent is when as many streams as are served can be logged at once again.
	spent      time.Time
	suppressed int
}

// allow says whether a stream that begins now is logged, where so many are served at a time, and how many were not since the last one.
func (l *streamLog) allow(now time.Time, served int) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	spent := l.spent
	if spent.Before(now) {
		spent = now
	}
	spent = spent.Add(streamLogRecovery / time.Duration(max(served, 1)))
	if spent.Sub(now) > streamLogRecovery {
		l.suppressed++
		return 0, false
	}
	l.spent = spent
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}

// logBeginning logs that the stream has begun, and decides with that whether its other events are logged.
func (s *stream) logBeginning(text string, args ...any) {
	suppressed, ok := s.server.streamLog.allow(time.Now(), s.server.quota.limits.Streams)
	if !ok {
		s.log = slog.New(slog.DiscardHandler)
		return
	}
	if suppressed > 0 {
		args = append(args, "not_logged_since_last_time", suppressed)
	}
	s.log.Info(text, args...)
}

// sharedLogLimit is a logLimit that any goroutine may use.
type sharedLogLimit struct {
	mu sync.Mutex
	logLimit
}

func (p *sharedLogLimit) allow(now time.Time, most int) (suppressed int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logLimit.allow(now, most)
}

// mayLogRefusal says whether a refusal of configuration may be logged, and how many were not since the last line of
// the stream's, and since the last of all streams.
func (s *stream) mayLogRefusal(now time.Time) (suppressed, suppressedOfAll int, ok bool) {
	suppressed, ok = s.logLimit.allow(now, logLimitLines)
	if !ok {
		return 0, 0, false
	}
	if suppressedOfAll, ok = s.server.logLimit.allow(now, logLimitLinesAll); !ok {
		s.logLimit.suppressed = suppressed + 1
	}
	return suppressed, suppressedOfAll, ok
}
