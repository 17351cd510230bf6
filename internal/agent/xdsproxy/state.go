package xdsproxy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// maxNacks is the maximum number of NACKs that are kept.
const maxNacks = 50

// Nack is a response that Envoy rejected.
type Nack struct {
	Type    string // type URL
	Message string // Envoy's reason, at most 4096 bytes
	At      time.Time
}

// State is the state of a Proxy.
type State struct {
	// Streams is how many streams are open end to end.
	Streams int
	// Since is when Streams last became positive or zero; the zero time at first.
	Since time.Time
	// Requests and Responses count messages since the start.
	Requests, Responses uint64
	// Failures counts attempts to connect that failed, and streams that the control plane did not open; Terminations counts
	// streams that the control plane ended, Departures those that Envoy ended.
	Failures, Terminations, Departures uint64
	// LastError is why a connection or stream last failed, at Failed; empty if none has failed.
	LastError string
	Failed    time.Time
	// Nacks are the last NACKs, oldest first, at most 50; Refused counts all.
	Nacks   []Nack
	Refused uint64
}

// Types of Envoy's configuration, by their URLs.
const (
	Clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Listeners = listenerType
)

// Refusal is what Envoy said the last time that it refused a response of a type; empty if it has refused none.
func (s State) Refusal(typ string) string {
	for _, n := range slices.Backward(s.Nacks) {
		if n.Type == typ {
			return n.Message
		}
	}
	return ""
}

// Connected reports whether there is a stream to the control plane.
func (s State) Connected() bool { return s.Streams > 0 }

// Connected returns a channel of whether there is a stream to the control plane: the current state, unless
// it was received already, then each change. A value that is not received is replaced by
// a newer one. It is for one receiver.
func (p *Proxy) Connected() <-chan bool { return p.stats.connected }

type stats struct {
	requests, responses atomic.Uint64
	connected           chan bool // holds the newest value until it is received

	mu    sync.Mutex
	state State
	lost  lost
}

// maxReasons bounds how many reasons are remembered.
const maxReasons = 64

// lost warns of a control plane that cannot be reached: once for each reason, until it can.
type lost struct {
	log      *slog.Logger // nil for none
	upstream Upstream
	warned   map[string]bool
}

// because warns of a reason, unless it has.
func (l *lost) because(err error) {
	reason := printable.Reason(err)
	if l.log == nil || errors.Is(err, context.Canceled) || l.warned[reason] || len(l.warned) >= maxReasons {
		return
	}
	if l.warned == nil {
		l.warned = map[string]bool{}
	}
	l.warned[reason] = true
	args := []any{"address", l.upstream.Address(), "reason", reason}
	if file := l.upstream.RootFile(); file != "" {
		args = append(args, "root", file)
	}
	l.log.Warn("the control plane cannot be reached", args...)
}

// over says that it can be reached again.
func (l *lost) over() {
	if len(l.warned) > 0 {
		l.log.Info("the control plane is reached again", "address", l.upstream.Address())
	}
	l.warned = nil
}

// State returns a snapshot. Any goroutine may call it.
func (p *Proxy) State() State {
	p.stats.mu.Lock()
	defer p.stats.mu.Unlock()
	out := p.stats.state
	out.Nacks = slices.Clone(out.Nacks)
	out.Requests, out.Responses = p.stats.requests.Load(), p.stats.responses.Load()
	return out
}

func (s *stats) opened() { s.streams(1) }
func (s *stats) closed() { s.streams(-1) }

func (s *stats) streams(d int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.state.Connected()
	s.state.Streams += d
	if s.state.Connected() != was {
		s.state.Since = time.Now()
		s.announce(s.state.Connected())
		if !was {
			s.lost.over()
		}
	}
}

// announce replaces a value that was not received. Callers hold mu, so the send does not block.
func (s *stats) announce(connected bool) {
	select {
	case <-s.connected:
	default:
	}
	s.connected <- connected
}

// failed notes that no connection or stream was opened.
func (s *stats) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Failures++
	s.fail(err)
	s.lost.because(err)
}

// ended notes that the control plane ended a stream; nil is no error.
func (s *stats) ended(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Terminations++
	s.fail(err)
}

// left notes that Envoy ended a stream.
func (s *stats) left() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Departures++
}

// fail stores an error; nil means that the control plane ended the stream without one. Callers hold mu.
func (s *stats) fail(err error) {
	s.state.Failed = time.Now()
	s.state.LastError = "control plane ended the stream"
	if err != nil {
		s.state.LastError = err.Error()
	}
}

func (s *stats) reason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.LastError == "" {
		return "connecting"
	}
	return s.state.LastError
}

func (s *stats) refused(n Nack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Refused++
	if len(s.state.Nacks) == maxNacks {
		s.state.Nacks = slices.Delete(s.state.Nacks, 0, 1)
	}
	s.state.Nacks = append(s.state.Nacks, n)
}
