package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stream is one proxy's connection: what its Sub says, done.
type stream struct {
	server *Server
	wire   grpc.ServerStream
	conn   *connection
	sub    *Sub
	timer  *time.Timer
	// behind is when the oldest view that is not applied yet was published; zero if none.
	behind time.Time
	alien  map[string]bool // type URLs asked for that are not served
	tables uint64          // tables of names that were sent
}

func newStream(s *Server, wire grpc.ServerStream, c *connection) *stream {
	return &stream{server: s, wire: wire, conn: c, sub: NewSub(c.status.Delta, s.steps.diff)}
}

// run serves the stream until either side ends it.
func (s *stream) run(ctx context.Context, cell *Cell, first incoming, recv func() (incoming, error)) error {
	in, broken := make(chan incoming), make(chan error, 1)
	go func() {
		// The transport ends this with the stream's context, which ends with run.
		for {
			m, err := recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case in <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	defer s.timer.Stop()
	moved, err := s.move(cell)
	if err == nil {
		err = s.take(first)
	}
	for err == nil {
		select {
		case m := <-in:
			err = s.take(m)
		case <-moved:
			moved, err = s.move(cell)
		case <-s.timer.C:
			err = s.step(nil)
		case err = <-broken:
			if errors.Is(err, io.EOF) {
				return nil
			}
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		}
	}
	return err
}

// move takes the newest view.
func (s *stream) move(cell *Cell) (<-chan struct{}, error) {
	p := cell.p.Load()
	if p.view == nil {
		return p.next, nil
	}
	if s.behind.IsZero() {
		s.behind = p.at
		if s.conn.status.Since.After(p.at) {
			s.behind = s.conn.status.Since
		}
	}
	return p.next, s.step(Moved{View: p.view})
}

// take takes a request.
func (s *stream) take(m incoming) error {
	if m.url == nameTableURL {
		return s.nameTable(m.req)
	}
	t, ok := ParseType(m.url)
	if !ok {
		// Clients ask for what other control planes serve, too.
		if !s.alien[m.url] && len(s.alien) < maxAlien {
			if s.alien == nil {
				s.alien = map[string]bool{}
			}
			s.alien[m.url] = true
			s.server.log.Debug("type is not served", "proxy", s.conn.status.ID, "type", m.url)
		}
		return nil
	}
	if err := m.check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	m.req.Type = t
	s.conn.asked(t)
	return s.step(m.req)
}

// maxAlien bounds the unknown type URLs that are remembered to be logged once.
const maxAlien = 16

// step feeds the machine, nil being only the time, and does what it says.
func (s *stream) step(ev Event) error {
	if err := s.do(s.sub.Step(Now{T: time.Now()})); err != nil || ev == nil {
		return err
	}
	return s.do(s.sub.Step(ev))
}

func (s *stream) do(effects []Effect) error {
	// The machine keeps the slice, but nobody needs what was in it.
	defer clear(effects)
	for _, e := range effects {
		switch e := e.(type) {
		case Send:
			if err := s.send(e); err != nil {
				return err
			}
		case Acked:
			s.moving(e.Type, s.conn.acked(e, s.sub.Subscribed(e.Type)))
		case Nacked:
			s.nacked(e)
		case Stuck:
			if s.conn.stuck(e) {
				s.server.log.Warn("proxy does not acknowledge", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
					"type", e.Type.String(), "sent", e.Since.UTC().Format(time.RFC3339))
			}
		case Applied:
			s.conn.applied(e.Generation)
			if !s.behind.IsZero() {
				s.server.metrics.convergence.Observe(time.Since(s.behind).Seconds())
				s.behind = time.Time{}
			}
		case Stale:
			s.server.metrics.stale.WithLabelValues(e.Type.label()).Inc()
		case Wake:
			s.timer.Reset(time.Until(e.At))
		case Refuse:
			return status.Error(codes.InvalidArgument, e.Reason)
		}
	}
	return nil
}

func (s *stream) send(e Send) error {
	m, r := s.server.metrics, &response{Send: e, delta: s.conn.status.Delta}
	s.conn.sent(e, s.sub.Subscribed(e.Type))
	began := time.Now()
	if err := s.wire.SendMsg(r); err != nil {
		m.pushes.WithLabelValues(e.Type.label() + "_senderr").Inc()
		return err
	}
	m.pushes.WithLabelValues(e.Type.label()).Inc()
	m.size.WithLabelValues(e.Type.label()).Observe(float64(r.size()))
	m.sending.Observe(time.Since(began).Seconds())
	return nil
}

func (s *stream) nacked(e Nacked) {
	if len(e.Message) > maxMessage {
		e.Message = e.Message[:maxMessage]
	}
	s.moving(e.Type, s.conn.nacked(e, time.Now()))
	m := s.server.metrics
	m.rejects[e.Type].Inc()
	m.allRejects.WithLabelValues(e.Type.label()).Inc()
	level := slog.LevelWarn
	if e.Again {
		level = slog.LevelDebug // a listener that could not be bound is tried again and again
	}
	s.server.log.Log(s.wire.Context(), level, "proxy refused configuration", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
		"type", e.Type.String(), "resources", e.Names, "message", e.Message)
}

// moving logs that a proxy that was stuck is not any more.
func (s *stream) moving(t Type, again bool) {
	if again {
		s.server.log.Info("proxy acknowledges again", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID, "type", t.String())
	}
}

// maxMessage bounds what is kept and logged of a client's error message, in bytes.
const maxMessage = 4096
