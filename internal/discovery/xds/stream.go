package xds

import (
	"cmp"
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
//
// Two goroutines use it: that of the call, which runs it, and one that receives and handles the requests itself, since to
// hand each over would wake a goroutine more for every acknowledgement. The one that does something has put a value into busy;
// ended says that the call is about to return.
type stream struct {
	receiver
	busy   chan struct{} // of one place: while a response waits for the client to read, so does the other goroutine
	ended  bool
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
	// timer has the stream woken by wake. Its channel is not used: a select that waits for that of a timer which runs moves
	// the timer in and out of the runtime's heap each time.
	timer *time.Timer
	wake  chan struct{}
	// pendingSince is when the oldest view that is not applied yet was published; zero if none.
	pendingSince time.Time
	unknownTypes map[string]bool // type URLs asked for that are not served
	// request and response are those being handled and sent, here so that they are not allocated anew for each.
	request   Request
	response  response
	names     nameStream
	answers   uint64 // about the control plane
	trust     trustStream
	secrets   secretStream
	bootstrap bootstrapStream
	// charged is what the account has been charged for what sub holds, in bytes.
	charged  int
	logLimit logLimit // of the log's lines about refused configuration
	// stuckLogged is set if the log says that the proxy does not acknowledge, when it last did not.
	stuckLogged bool
	// log has what is only of interest for this stream. It discards that if the stream's beginning is not logged.
	log *slog.Logger
	// debugged are the answers about the control plane that were sent, by type URL.
	debugged map[string]debugAnswer
}

func newStream(s *Server, wire grpc.ServerStream, a *account, conn *guard) *stream {
	return &stream{server: s, log: s.log, guard: conn, overrun: conn.overrun(), receiver: receiver{wire: wire, account: a, metrics: s.metrics, decoded: conn.endTurn, in: make(chan incoming), rest: make(chan func(incoming) error, 1)}, busy: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
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
	// in has the first request, and the others where rest was nil. It is closed when nothing more is received, because of failure,
	// which also is when the stream's context ends.
	in chan incoming
	// rest is given once what becomes of the requests after the first one: what handles each, or nil to hand them over by in.
	rest    chan func(incoming) error
	failure error // io.EOF where the client has ended the stream
}

// firstRequest begins to receive, and waits for the first request.
func (s *stream) firstRequest(ctx context.Context) (incoming, error) {
	go s.receive(ctx)
	limit := time.NewTimer(silenceLimit)
	defer limit.Stop()
	return s.next(limit.C)
}

// next waits for a request until the limit, which may be nil. The error io.EOF says that the client has
// ended the stream.
func (s *stream) next(limit <-chan time.Time) (incoming, error) {
	select {
	case m, ok := <-s.in:
		if !ok {
			return incoming{}, s.failure
		}
		return m, nil
	case <-s.overrun:
		return incoming{}, unfinished()
	case <-s.expired:
		return incoming{}, errExpired
	case <-s.server.draining:
		return incoming{}, errDraining
	case <-limit:
		return incoming{}, &refusal{codes.DeadlineExceeded, reasonSilence, fmt.Sprintf("no request within %s of the stream's beginning", silenceLimit)}
	}
}

// receive receives requests, and charges the client for each until it has been dealt with. The transport ends it with the stream's
// context, which ends with its handler.
func (s *receiver) receive(ctx context.Context) {
	defer close(s.in)
	q := &inbound{delta: s.delta, wantNode: true, charge: s.account.charge, done: ctx.Done(), decoded: s.decoded}
	handOver := func(m incoming) error {
		select {
		case s.in <- m:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if s.failure = s.receiveOne(q, handOver); s.failure != nil {
		return
	}
	handle := handOver
	select {
	case f := <-s.rest:
		if f != nil {
			handle = f
		}
	case <-ctx.Done():
		s.failure = status.FromContextError(ctx.Err()).Err()
	}
	for s.failure == nil {
		q.reset()
		s.failure = s.receiveOne(q, handle)
	}
}

func (s *receiver) receiveOne(q *inbound, handle func(incoming) error) error {
	err := s.wire.RecvMsg(q)
	s.metrics.receivedRequest(q.size)
	if status.Code(err) == codes.Internal {
		// What gRPC calls so is a message that it cannot take apart.
		err = &refusal{codes.InvalidArgument, reasonRequest, "a request that gRPC cannot read: " + status.Convert(err).Message()}
	}
	if err = cmp.Or(err, q.err); err != nil {
		return err
	}
	return handle(q.incoming)
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
func (s *stream) run(latest *LatestView, first incoming) error {
	s.latest = latest
	defer s.stop()
	err := s.update()
	if err == nil {
		err = s.handle(first)
	}
	s.rest <- s.handleReceived
	draining := s.server.draining
	var leave <-chan time.Time
	for err == nil {
		news := s.news()
		select {
		case <-s.in:
			if errors.Is(s.failure, io.EOF) {
				return nil
			}
			err = s.failure
		case <-news.view:
			err = s.alone(s.update)
		case <-news.trust:
			err = s.alone(s.sendTrust)
		case <-news.secrets:
			err = s.alone(s.sendSecrets)
		case <-news.bootstrap:
			err = s.alone(s.sendBootstrap)
		case <-s.wake:
			err = s.alone(func() error { return s.feed(nil) })
		case ask := <-s.conn.questions:
			err = s.alone(func() error {
				ask(s.sub)
				return nil
			})
		case <-draining:
			draining = nil
			end := time.NewTimer(time.Duration(rand.Float64() * float64(s.server.drainTime))) // #nosec G404 -- only spreads load
			defer end.Stop()
			leave = end.C
		case <-leave:
			err = errDraining
		case <-s.overrun:
			err = unfinished()
		case <-s.expired:
			err = errExpired
		}
	}
	return err
}

// news are the channels that are closed when there is something new to send; nil where nothing is awaited.
type news struct {
	view, trust, secrets, bootstrap <-chan struct{}
}

func (s *stream) news() news {
	s.use()
	defer s.idle()
	return s.awaited()
}

// use waits until the other goroutine does nothing, and makes it wait until idle.
func (s *stream) use()  { s.busy <- struct{}{} }
func (s *stream) idle() { <-s.busy }

// awaited is news, between use and idle.
func (s *stream) awaited() news {
	return news{s.moved, s.trust.moved, s.secrets.moved, s.bootstrap.moved}
}

// alone does something while no request is handled.
func (s *stream) alone(f func() error) error {
	s.use()
	defer s.idle()
	return f()
}

// handleReceived handles a request on the goroutine that has received it.
func (s *stream) handleReceived(m incoming) error {
	s.use()
	defer s.idle()
	if s.ended {
		m.release()
		return errGone
	}
	before := s.awaited()
	err := s.handle(m)
	if s.awaited() != before {
		s.ring() // run waits for the channels of before
	}
	return err
}

// stop waits until no request is handled any more; none is from then on.
func (s *stream) stop() {
	s.use()
	defer s.idle()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// ring wakes run.
func (s *stream) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
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
	if m.url == "" {
		return &refusal{codes.InvalidArgument, reasonRequest, "request without a type_url: want one on a stream of the aggregated service"}
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
	s.request = m.req
	err := s.feed(&s.request)
	s.request = Request{}
	if err != nil {
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
	err := s.perform(s.sub.Step(Now{T: time.Now(), Behind: s.server.behind()}))
	if err == nil && ev != nil {
		err = s.perform(s.sub.Step(ev))
	}
	if err == nil && s.wanted {
		s.wanted = false
		s.log.Info("proxy keeps whole route configurations until its Envoy has been replaced", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID)
		if s.latest, err = s.joinWhole(); err != nil {
			return err
		}
		return s.update()
	}
	s.latest.Report(s.sub.Progress())
	s.latest.reportListeners(s.sub)
	s.conn.progress(s.sub)
	return err
}

// wakeAt has the stream woken at a time, in place of an earlier call's.
func (s *stream) wakeAt(t time.Time) {
	if s.timer != nil {
		s.timer.Reset(time.Until(t))
		return
	}
	s.timer = time.AfterFunc(time.Until(t), s.ring)
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
				s.logStuck(e)
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
			s.wakeAt(e.At)
		case NeedsWholeRoutes:
			s.wanted = true
		case Refuse:
			return &refusal{codes.ResourceExhausted, reasonNames, e.Reason}
		}
	}
	return nil
}

func (s *stream) send(e Send) error {
	m, r := s.server.metrics, &s.response
	*r = response{Send: e, delta: s.conn.status.Delta}
	defer func() { *r = response{} }()
	s.conn.sent(e)
	began := time.Now()
	if err := s.wire.SendMsg(r); err != nil {
		m.pushes.WithLabelValues(e.Type.label() + "_senderr").Inc()
		return err
	}
	m.pushed[e.Type].Inc()
	m.sizes[e.Type].Observe(float64(r.size))
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

// logStuck logs that a proxy does not acknowledge, unless too much of that is logged already: all proxies may be stuck at once.
func (s *stream) logStuck(e Stuck) {
	var suppressed int
	if suppressed, s.stuckLogged = s.server.stuckLimit.allow(time.Now(), logLimitLinesAll); !s.stuckLogged {
		return
	}
	s.server.log.Warn("proxy does not acknowledge", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
		"type", e.Type.String(), "sent", e.Since.UTC().Format(time.RFC3339), "suppressed_of_all_proxies", suppressed)
}

// logRecovered logs that a proxy that was stuck is not any more, if it was logged that it was.
func (s *stream) logRecovered(t Type, again bool) {
	if again && s.stuckLogged {
		s.server.log.Info("proxy acknowledges again", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID, "type", t.String())
	}
}

// maxLogged bounds the names in a line of the log.
const maxLogged = 20

// maxMessage bounds what is kept and logged of a client's error message, in bytes.
const maxMessage = 4096
