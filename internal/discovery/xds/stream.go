package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// stream is one proxy's connection: what its Sub says, done.
type stream struct {
	receiver
	server *Server
	caller caller
	guard  *guard // of its connection
	// only is the type that the stream is limited to, or everyType.
	only    Type
	overrun <-chan struct{} // closed when the connection has sent too much at once
	// expired receives the time when the caller's certificate expires; nil if it has none.
	expired <-chan time.Time
	conn    *connection
	sub     *Sub
	// latest is where the views appear, and moved is closed when there is another.
	latest *LatestView
	moved  <-chan struct{}
	// joinWhole finds the views with whole route configurations; wanted says that they are wanted.
	joinWhole func() (*LatestView, error)
	wanted    bool
	timer     *time.Timer
	// pendingSince is when the oldest view that is not applied yet was published; zero if none.
	pendingSince time.Time
	unknownTypes map[string]bool // type URLs asked for that are not served
	names        nameStream
	answers      uint64 // about the control plane
	trust        trustStream
	secrets      secretStream
	bootstrap    bootstrapStream
	// charged is what the account has been charged for what sub holds, in bytes.
	charged  int
	logLimit logLimit // of the log's lines about refused configuration
	// debugged are the answers about the control plane that were sent, by type URL.
	debugged map[string]debugAnswer
}

func newStream(s *Server, wire grpc.ServerStream, a *account, conn *guard) *stream {
	return &stream{server: s, guard: conn, overrun: conn.overrun(), receiver: receiver{wire: wire, account: a, metrics: s.metrics, decoded: conn.endTurn, in: make(chan incoming), failed: make(chan error, 1)}}
}

// endAt makes the stream end when the certificate that authenticated it expires; a zero time is
// no certificate. The function stops that.
func (s *stream) endAt(t time.Time) (stop func()) {
	if t.IsZero() {
		return func() {}
	}
	timer := time.NewTimer(time.Until(t))
	s.expired = timer.C
	// A client that does not read keeps the stream from ending by itself.
	last := time.AfterFunc(time.Until(t)+endingLimit, func() { _ = s.guard.Close() }) // nothing can be done about an error
	return func() {
		timer.Stop()
		last.Stop()
	}
}

// errExpired ends a stream whose client certificate has expired.
var errExpired = status.Error(codes.Unauthenticated, "client certificate expired: connect again with a new one")

// receiver reads a stream's requests from the wire.
type receiver struct {
	wire    grpc.ServerStream
	account *account
	metrics *metrics
	delta   bool
	decoded func() // see inbound
	in      chan incoming
	failed  chan error
}

// firstRequest begins to receive, and waits for the first request.
func (s *stream) firstRequest(ctx context.Context) (incoming, error) {
	go s.receive(ctx)
	limit := time.NewTimer(silenceLimit)
	defer limit.Stop()
	return s.next(ctx, limit.C)
}

// next waits for a request until the limit, which may be nil. The error io.EOF says that the client has
// ended the stream.
func (s *stream) next(ctx context.Context, limit <-chan time.Time) (incoming, error) {
	select {
	case m := <-s.in:
		return m, nil
	case err := <-s.failed:
		return incoming{}, err
	case <-s.overrun:
		return incoming{}, unfinished()
	case <-s.expired:
		return incoming{}, errExpired
	case <-s.server.draining:
		return incoming{}, errDraining
	case <-limit:
		return incoming{}, &refusal{codes.DeadlineExceeded, reasonSilence, fmt.Sprintf("no request within %s of the stream's beginning", silenceLimit)}
	case <-ctx.Done():
		return incoming{}, status.FromContextError(ctx.Err()).Err()
	}
}

// receive hands over requests, and charges the client for each until it has been dealt
// with. The transport ends it with the stream's context, which ends with its handler.
func (s *receiver) receive(ctx context.Context) {
	q := &inbound{delta: s.delta, wantNode: true, charge: s.account.charge, done: ctx.Done(), decoded: s.decoded}
	for ; ; q.reset() {
		err := s.wire.RecvMsg(q)
		s.metrics.receivedRequest(q.size)
		if err == nil {
			err = q.err
		}
		if err != nil {
			s.failed <- err
			return
		}
		select {
		case s.in <- q.incoming:
		case <-ctx.Done():
			return
		}
	}
}

// begin makes the machine of a stream whose proxy is known.
func (s *stream) begin(c *connection) {
	s.conn, c.guard = c, s.guard
	if s.only == everyType {
		s.sub = NewSub(s.delta, &s.server.steps)
	} else {
		s.sub = NewSubOf(s.only, s.delta, &s.server.steps)
		s.conn.status.Only = s.only.String()
	}
}

// run serves the stream until either side ends it.
func (s *stream) run(ctx context.Context, latest *LatestView, first incoming) error {
	s.latest = latest
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	defer s.timer.Stop()
	s.latest = latest
	err := s.update()
	if err == nil {
		err = s.handle(first)
	}
	draining := s.server.draining
	var leave <-chan time.Time
	for err == nil {
		select {
		case m := <-s.in:
			err = s.handle(m)
		case <-s.moved:
			err = s.update()
		case <-s.trust.moved:
			err = s.sendTrust()
		case <-s.secrets.moved:
			err = s.sendSecrets()
		case <-s.bootstrap.moved:
			err = s.sendBootstrap()
		case <-s.timer.C:
			err = s.feed(nil)
		case ask := <-s.conn.questions:
			ask(s.sub)
		case <-draining:
			draining = nil
			end := time.NewTimer(time.Duration(rand.Float64() * float64(s.server.drainTime))) // #nosec G404 -- only spreads load
			defer end.Stop()
			leave = end.C
		case <-leave:
			err = errDraining
		case err = <-s.failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
		case <-s.overrun:
			err = unfinished()
		case <-s.expired:
			err = errExpired
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		}
	}
	return err
}

// update feeds the newest view.
func (s *stream) update() error {
	p := s.latest.take()
	s.moved = p.next
	if p.view == nil {
		return nil
	}
	if !s.conn.status.Since.After(p.at) {
		s.server.metrics.queued.Observe(time.Since(p.at).Seconds())
	}
	if s.pendingSince.IsZero() {
		s.pendingSince = p.at
		if s.conn.status.Since.After(p.at) {
			s.pendingSince = s.conn.status.Since
		}
	}
	s.conn.quarantined(p.view.Quarantined)
	s.names.current = p.view.Names
	if err := s.feed(Moved{View: p.view}); err != nil {
		return err
	}
	return s.sendNames()
}

// handle handles a request.
func (s *stream) handle(m incoming) error {
	defer m.release()
	if s.only != everyType {
		if m.url != "" && m.url != s.only.URL() {
			return &refusal{codes.InvalidArgument, reasonRequest, fmt.Sprintf("type %.200q on a stream of %s: want %s, or the aggregated service", m.url, s.only, s.only.URL())}
		}
		m.url = s.only.URL()
	}
	if isDebugType(m.url) {
		return s.answerDebug(m)
	}
	if m.url == mesh.NameTableType {
		if err := s.nameTable(m.req); err != nil {
			return err
		}
		return s.account.charge(-m.cost)
	}
	if m.url == mesh.TrustBundleType {
		if err := s.trustRequest(m.req); err != nil {
			return err
		}
		return s.account.charge(-m.cost)
	}
	if s.asksForBootstrap(s.conn.status.Node, m.url) {
		return s.bootstrapRequest(s.wire.Context(), s.conn.status.Node, m)
	}
	if h, ok := s.server.registry.(HealthReports); ok && m.url == healthURL && s.only == everyType {
		if h.ReportHealth(s.conn.status.ID, !m.req.Refused, truncate([]byte(m.req.Message), maxMessage)) {
			return s.account.charge(-m.cost)
		}
	}
	if m.url == mesh.CaptureReportType && s.only == everyType {
		s.conn.captureReported(truncate([]byte(m.req.Message), maxMessage))
		return s.account.charge(-m.cost)
	}
	if m.url == SecretType && s.only == everyType && s.servesSecrets() {
		return s.secretRequest(m)
	}
	t, ok := ParseType(m.url)
	if !ok || t.info().deltaOnly && !s.delta {
		return s.answerUnserved(m)
	}
	m.req.Type = t
	s.conn.asked(t)
	if err := s.feed(m.req); err != nil {
		return err
	}
	return s.chargeHeld(m)
}

// chargeHeld charges for what the machine has kept of a request. What it holds grows
// only with names.
func (s *stream) chargeHeld(m incoming) error {
	if m.cost == 0 {
		return nil
	}
	size := s.sub.Size()
	change := size - s.charged - m.cost
	s.charged = size
	return s.account.charge(change)
}

// feed feeds the machine, nil being only the time, and does what it says.
func (s *stream) feed(ev Event) error {
	err := s.perform(s.sub.Step(Now{T: time.Now()}))
	if err == nil && ev != nil {
		err = s.perform(s.sub.Step(ev))
	}
	if err == nil && s.wanted {
		s.wanted = false
		s.server.log.Info("proxy keeps whole route configurations until its Envoy has been replaced", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID)
		if s.latest, err = s.joinWhole(); err != nil {
			return err
		}
		return s.update()
	}
	s.latest.Report(s.sub.Progress())
	s.conn.progress(s.sub)
	return err
}

func (s *stream) perform(effects []Effect) error {
	// The machine keeps the slice; its elements must not stay reachable, nor a response while the proxy is slow to take it.
	defer clear(effects)
	for i, e := range effects {
		effects[i] = nil
		switch e := e.(type) {
		case Send:
			if err := s.send(e); err != nil {
				return err
			}
		case Acked:
			s.logRecovered(e.Type, s.conn.acked(e))
			s.latest.accepts(e.Type, s.sub.holdings(e.Type))
			if e.Refused > 0 {
				s.latest.refuses(s.sub.Refusals())
			}
		case Nacked:
			s.nacked(e)
			s.latest.accepts(e.Type, s.sub.holdings(e.Type))
			s.latest.refuses(s.sub.Refusals())
		case Unrefused:
			s.conn.unrefused(e.Type)
			s.latest.refuses(s.sub.Refusals())
		case Stuck:
			if s.conn.stuck(e) {
				s.server.log.Warn("proxy does not acknowledge", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
					"type", e.Type.String(), "sent", e.Since.UTC().Format(time.RFC3339))
			}
		case Applied:
			s.conn.applied(e.Generation)
			for t := range numTypes {
				s.latest.accepts(t, s.sub.holdings(t))
			}
			if len(s.latest.Refusals()) > 0 {
				s.latest.refuses(nil)
			}
			if !s.pendingSince.IsZero() {
				s.server.metrics.convergence.Observe(time.Since(s.pendingSince).Seconds())
				s.pendingSince = time.Time{}
			}
		case Stale:
			s.server.metrics.stale.WithLabelValues(e.Type.label()).Inc()
		case Wake:
			s.timer.Reset(time.Until(e.At))
		case NeedsWholeRoutes:
			s.wanted = true
		case Refuse:
			return &refusal{codes.ResourceExhausted, reasonNames, e.Reason}
		}
	}
	return nil
}

func (s *stream) send(e Send) error {
	m, r := s.server.metrics, &response{Send: e, delta: s.conn.status.Delta}
	s.conn.sent(e)
	began := time.Now()
	if err := s.wire.SendMsg(r); err != nil {
		m.pushes.WithLabelValues(e.Type.label() + "_senderr").Inc()
		return err
	}
	m.pushes.WithLabelValues(e.Type.label()).Inc()
	m.size.WithLabelValues(e.Type.label()).Observe(float64(r.size))
	m.sending.Observe(time.Since(began).Seconds())
	return nil
}

func (s *stream) nacked(e Nacked) {
	e.Message = truncate([]byte(e.Message), maxMessage)
	s.logRecovered(e.Type, s.conn.nacked(e, time.Now()))
	m := s.server.metrics
	m.rejects[e.Type].Inc()
	m.allRejects.WithLabelValues(e.Type.label()).Inc()
	level := slog.LevelWarn
	if e.Again {
		level = slog.LevelDebug // a listener that could not be bound is tried again and again
	}
	if suppressed, ofAll, ok := s.mayLogRefusal(time.Now()); ok {
		s.server.log.Log(s.wire.Context(), level, "proxy refused configuration", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
			"type", e.Type.String(), "resources", e.Names[:min(len(e.Names), maxLogged)], "message", e.Message, "suppressed", suppressed, "suppressed_of_all_proxies", ofAll)
	}
}

// logRecovered logs that a proxy that was stuck is not any more.
func (s *stream) logRecovered(t Type, again bool) {
	if again {
		s.server.log.Info("proxy acknowledges again", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID, "type", t.String())
	}
}

// maxLogged bounds the names in a line of the log.
const maxLogged = 20

// maxMessage bounds what is kept and logged of a client's error message, in bytes.
const maxMessage = 4096
