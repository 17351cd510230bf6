package xds

import (
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusalPause is how long nothing more is logged of refusals for one reason: who is
// refused may come again at once, and the counter tells how often.
const refusalPause = 10 * time.Second

// refusals counts who is refused for overstepping a bound, and logs some. Any goroutine
// may use it.
type refusals struct {
	mu   sync.Mutex
	told map[string]told
}

// told is when a reason was logged last, and how often it came since.
type told struct {
	at    time.Time
	since int
}

// note takes the error that a client got; those that tell of no bound are not counted.
func (r *refusals) note(s *Server, err error, who string) {
	reason := reasonOf(err)
	if reason == "" {
		return
	}
	s.metrics.refused.WithLabelValues(reason).Inc()
	now := time.Now()
	r.mu.Lock()
	last, again := r.told[reason]
	if again && now.Sub(last.at) < refusalPause {
		last.since++
		r.told[reason] = last
		r.mu.Unlock()
		return
	}
	if r.told == nil {
		r.told = map[string]told{}
	}
	r.told[reason] = told{at: now}
	r.mu.Unlock()
	s.log.Warn("client refused", "client", who, "reason", reason, "status", status.Code(err).String(),
		"message", cut([]byte(status.Convert(err).Message()), maxMessage), "more_since_last_time", last.since)
}

func reasonOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	// gRPC itself refuses what is longer than it was told to take.
	if status.Code(err) == codes.ResourceExhausted {
		return reasonRequest
	}
	return ""
}

// A stream's refusals of configuration are logged one by one, up to so many in so long.
const (
	paceLines = 20
	pacePause = time.Minute
)

// pace bounds how many lines are logged.
type pace struct {
	since         time.Time
	lines, unsaid int
}

// take says whether a line may be logged now, and how many were not since the last one.
func (p *pace) take(now time.Time) (unsaid int, ok bool) {
	if now.Sub(p.since) >= pacePause {
		p.since, p.lines = now, 0
	}
	if p.lines == paceLines {
		p.unsaid++
		return 0, false
	}
	p.lines++
	unsaid, p.unsaid = p.unsaid, 0
	return unsaid, true
}
