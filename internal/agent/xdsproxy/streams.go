package xdsproxy

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

const (
	// maxStreamTypes bounds the types of a stream that are kept, maxStreams the streams that State lists.
	maxStreamTypes = 32
	maxStreams     = 100
)

// StreamState is the state of one stream of a client on the socket.
type StreamState struct {
	Since time.Time `json:"since"`
	// Delta is whether it is of the delta variant.
	Delta bool `json:"delta"`
	// Types are sorted by their names, at most 32.
	Types []TypeState `json:"types"`
}

// TypeState is what a stream carried of one type.
type TypeState struct {
	Type string `json:"type"`
	// Requests, Responses and Refused count messages, the last those that Envoy refused.
	Requests  uint64 `json:"requests"`
	Responses uint64 `json:"responses"`
	Refused   uint64 `json:"refused"`
	// Version and Nonce are those of the last response, which came at Received. Answered is the nonce of the last response that
	// Envoy has accepted.
	Version  string    `json:"version,omitempty"`
	Nonce    string    `json:"nonce,omitempty"`
	Answered string    `json:"answered,omitempty"`
	Received time.Time `json:"received,omitzero"`
}

// record is the state of a stream while it is open.
type record struct {
	mu    sync.Mutex // guards the rest
	since time.Time
	delta bool
	types map[string]*TypeState
}

func newRecord(delta bool) *record {
	return &record{since: time.Now(), delta: delta, types: map[string]*TypeState{}}
}

// of returns the state of a type, nil if the stream has too many. Callers hold mu.
func (r *record) of(url string) *TypeState {
	t := r.types[url]
	if t == nil && len(r.types) < maxStreamTypes {
		t = &TypeState{Type: url}
		r.types[url] = t
	}
	return t
}

func (r *record) request(h head) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.of(h.url)
	if t == nil {
		return
	}
	t.Requests++
	switch {
	case h.refused:
		t.Refused++
	case h.nonce != "":
		t.Answered = h.nonce
	}
}

func (r *record) response(h head) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.of(h.url); t != nil {
		t.Responses++
		t.Version, t.Nonce, t.Received = h.version, h.nonce, time.Now()
	}
}

func (r *record) state() StreamState {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := StreamState{Since: r.since, Delta: r.delta, Types: []TypeState{}}
	for _, t := range r.types {
		s.Types = append(s.Types, *t)
	}
	slices.SortFunc(s.Types, func(a, b TypeState) int { return cmp.Compare(a.Type, b.Type) })
	return s
}

// streams are the open streams.
type streams struct {
	mu   sync.Mutex // guards open
	open map[*upstreamStream]*record
}

func (s *streams) add(up *upstreamStream, r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*upstreamStream]*record{}
	}
	s.open[up] = r
}

func (s *streams) remove(up *upstreamStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, up)
}

// upstreams are the upstream streams that are open.
func (s *streams) upstreams() []*upstreamStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*upstreamStream, 0, len(s.open))
	for up := range s.open {
		out = append(out, up)
	}
	return out
}

// Streams returns the open streams, oldest first, at most 100. Any goroutine may call it.
func (p *Proxy) Streams() []StreamState {
	p.streams.mu.Lock()
	records := make([]*record, 0, len(p.streams.open))
	for _, r := range p.streams.open {
		records = append(records, r)
	}
	p.streams.mu.Unlock()
	slices.SortFunc(records, func(a, b *record) int { return a.since.Compare(b.since) })
	out := []StreamState{}
	for _, r := range records[:min(len(records), maxStreams)] {
		out = append(out, r.state())
	}
	return out
}

// healthURL is the type of health reports. [agent X9]
const healthURL = "type.googleapis.com/istio.v1.HealthInformation"

// internalCode is the code of an unhealthy report, google.rpc.Code INTERNAL.
const internalCode = 13

// Health is the health of the application, as the control plane is told.
type Health struct {
	Healthy bool
	// Message says why it is not.
	Message string
}

// SetHealth reports the health of the application on each stream that has asked for listeners, now and whenever one does. Any goroutine may
// call it.
func (p *Proxy) SetHealth(h Health) {
	p.health.Store(&h)
	for _, up := range p.streams.upstreams() {
		up.report(p.health.Load())
	}
}

// SetCapture reports what was wrong with the rules of capture, as SetHealth reports health. Nothing is reported before the first call.
func (p *Proxy) SetCapture(text string) {
	p.capture.Store(&text)
	for _, up := range p.streams.upstreams() {
		up.reportCapture(&text)
	}
}

// reportCapture sends a report about capture, if Envoy has asked for listeners on the stream.
func (u *upstreamStream) reportCapture(text *string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.listening && text != nil {
		_ = u.SendMsg(frameOf(captureReport(*text, u.delta)))
	}
}

// captureReport encodes a request that reports on capture.
func captureReport(text string, delta bool) []byte {
	typ, detail := protowire.Number(sotwType), protowire.Number(sotwError)
	if delta {
		typ, detail = deltaType, deltaError
	}
	return appendField(appendField(nil, typ, mesh.CaptureReportType), detail, string(encodeStatus(internalCode, text)))
}

// report sends a health report, if Envoy has asked for listeners on the stream. An error ends the stream, which its reader reports.
func (u *upstreamStream) report(h *Health) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.listening && h != nil {
		_ = u.SendMsg(frameOf(healthReport(*h, u.delta)))
	}
}

// healthReport encodes a request that reports the health.
func healthReport(h Health, delta bool) []byte {
	typ, detail := protowire.Number(sotwType), protowire.Number(sotwError)
	if delta {
		typ, detail = deltaType, deltaError
	}
	text := appendField(nil, typ, healthURL)
	if h.Healthy {
		return text
	}
	return appendField(text, detail, string(encodeStatus(internalCode, h.Message)))
}
