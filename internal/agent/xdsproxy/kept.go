package xdsproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/agent/lastgood"
)

// copyWaits are the times after which an Envoy without configuration is answered from the copy.
type copyWaits struct {
	// open is how long the control plane may take to open the stream, answer how long to its first response.
	open, answer time.Duration
	// again is how long a control plane that opened the stream without answering is left alone.
	again time.Duration
}

var defaultCopyWaits = copyWaits{open: 300 * time.Millisecond, answer: 2 * time.Second, again: 10 * time.Second}

// errAnswered says that a stream is answered from the copy from now on.
var errAnswered = errors.New("answered from the copy")

// keptStream is a stream of our Envoy, which is recorded, or answered from the copy if Envoy has no configuration and the control
// plane does not answer.
type keptStream struct {
	p     *Proxy
	down  *downstream
	first *frame // until it was received

	rec    *lastgood.Recording
	cancel func()        // ends the stream upstream
	failed chan struct{} // closed if the copy cannot be read

	mu      sync.Mutex
	decided bool
	// frames are Envoy's requests until it is decided who answers them.
	frames  []*frame
	answers *lastgood.Answers // nil if the control plane answers
	broken  bool
	silent  *time.Timer
	// converter converts what is answered from the copy; nil until then.
	converter *converter
}

// relayKept forwards one stream of our Envoy, or answers it. When the control plane is back, an answered stream is ended: Envoy
// opens another one, on which it says what it has.
func (p *Proxy) relayKept(down *downstream, method string) error {
	delta := down.delta
	k := &keptStream{p: p, down: down, first: &frame{}, failed: make(chan struct{})}
	if err := down.RecvMsg(k.first); err != nil {
		return err
	}
	empty := lastgood.Empty(k.first.data, delta)
	patience := p.patience
	if empty {
		patience = min(p.waits.open, p.patience)
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer func() { cancel() }()
	opened, err := p.open(ctx, cancel, method, patience)
	if err != nil && empty && down.Context().Err() == nil {
		answers, reason := p.config.Copy.Answer(delta)
		if reason == nil {
			p.config.Log.Warn("discovery does not answer: Envoy gets the copy of its last configuration", "reason", p.stats.reason())
			k.decided, k.answers = true, answers
			defer answers.Close()
			return k.serve(0)
		}
		p.config.Log.Info("discovery does not answer, and there is no copy of Envoy's configuration to use", "reason", reason)
		ctx, cancel = context.WithCancel(down.Context())
		opened, err = p.open(ctx, cancel, method, p.patience-patience)
	}
	if err != nil {
		return err
	}
	k.cancel, k.rec = cancel, p.config.Copy.Record(delta, empty)
	defer k.rec.Close()
	defer k.end()
	k.mu.Lock()
	if k.decided = !empty; empty {
		k.silent = time.AfterFunc(p.waits.answer, k.takeOver)
	}
	k.mu.Unlock()
	anew := make(chan struct{})
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-k.rec.Again():
			close(anew)
			cancel()
		case <-stop:
		}
	}()
	err = p.exchange(ctx, down, &upstreamStream{ClientStream: opened, delta: delta, end: cancel, epoch: p.epoch(down.Context())}, k)
	select {
	case <-anew:
		return status.Error(codes.Unavailable, "the configuration is requested again, to be written to the copy")
	default:
	}
	if errors.Is(err, errAnswered) {
		k.rec.Close()
		return k.wait(p.waits.again)
	}
	return err
}

// serve answers Envoy's requests from the copy until the control plane is back.
func (k *keptStream) serve(leaveAlone time.Duration) error {
	k.p.relays.Add(1)
	go func() {
		defer k.p.relays.Done()
		for {
			f, err := k.receive(k.down)
			if err != nil {
				return
			}
			if _, ok := k.p.admit(k.down, f); ok {
				k.request(f)
			}
		}
	}()
	defer k.end()
	return k.wait(leaveAlone)
}

// wait returns when the control plane is connected, but not before leaveAlone has passed.
func (k *keptStream) wait(leaveAlone time.Duration) error {
	ctx, cancel := context.WithCancel(k.down.Context())
	defer cancel()
	go func() {
		select {
		case <-k.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	alone := time.NewTimer(leaveAlone)
	defer alone.Stop()
	select {
	case <-ctx.Done():
	case <-alone.C:
	}
	up := k.p.upstream
	for ctx.Err() == nil {
		switch s := up.GetState(); s {
		case connectivity.Ready:
			k.p.config.Log.Info("discovery is connected again: Envoy asks it for what has changed")
			return status.Error(codes.Unavailable, "discovery is connected again")
		case connectivity.Idle:
			up.Connect()
			fallthrough
		default:
			up.WaitForStateChange(ctx, s)
		}
	}
	if k.down.Context().Err() == nil {
		return status.Error(codes.Unavailable, "the copy of the configuration cannot be read")
	}
	k.p.stats.left()
	return k.down.Context().Err()
}

// takeOver answers the stream from the copy, if there is one, since the control plane has not answered.
func (k *keptStream) takeOver() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.decided {
		return
	}
	k.decided = true
	answers, err := k.p.config.Copy.Answer(k.down.delta)
	if err != nil {
		k.frames = nil
		k.p.config.Log.Info("discovery has not answered yet, and there is no copy of Envoy's configuration to use", "reason", err)
		return
	}
	k.p.config.Log.Warn("discovery has opened the stream and does not answer: Envoy gets the copy of its last configuration")
	k.answers = answers
	frames := k.frames
	k.frames = nil
	k.cancel()
	for _, f := range frames {
		k.reply(f)
	}
}

// end waits until nobody answers from the copy any more.
func (k *keptStream) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.decided, k.broken = true, true
	if k.silent != nil {
		k.silent.Stop()
		if k.answers != nil {
			k.answers.Close()
		}
	}
}

// answered reports whether the stream is answered from the copy.
func (k *keptStream) answered() bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.answers != nil
}

// receive returns Envoy's next request.
func (k *keptStream) receive(down *downstream) (*frame, error) {
	if k != nil && k.first != nil {
		f := k.first
		k.first = nil
		return f, nil
	}
	f := &frame{}
	return f, down.RecvMsg(f)
}

// request takes note of a request; true if it was answered from the copy.
func (k *keptStream) request(f *frame) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.answers != nil {
		k.reply(f)
		return true
	}
	if !k.decided {
		k.frames = append(k.frames, &frame{data: f.data})
	}
	f.data = k.rec.Request(f.data)
	return false
}

// reply answers a request from the copy. Callers hold mu.
func (k *keptStream) reply(f *frame) {
	if k.broken {
		return
	}
	responses, err := k.answers.Request(f.data)
	if err != nil {
		k.p.config.Log.Warn("Envoy's request cannot be answered from the copy of its configuration", "reason", err)
		k.broken = true
		close(k.failed)
		return
	}
	for _, data := range responses {
		k.p.stats.responses.Add(1)
		if k.p.config.Observe != nil {
			k.p.config.Observe(data, k.down.delta)
		}
		f := &frame{data: data}
		if h, err := readHead(data, responseFields); err == nil && k.conversion().take(k.down.Context(), f, h) {
			continue
		}
		if err := k.down.SendMsg(f); err != nil {
			return // the stream has ended
		}
	}
}

// conversion returns the converter of what is answered from the copy. Callers hold mu.
func (k *keptStream) conversion() *converter {
	if k.converter == nil {
		ctx := k.down.Context()
		k.converter = k.p.convert(ctx, func(f *frame) error { return k.p.deliverKept(ctx, f, k.down) })
	}
	return k.converter
}

// heard takes note of the first response of the control plane.
func (k *keptStream) heard() {
	if k == nil || k.silent == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.decided {
		k.decided, k.frames = true, nil
		k.silent.Stop()
	}
}

// response takes note of a response of the control plane.
func (k *keptStream) response(f *frame) {
	if k != nil {
		k.rec.Response(f.data)
	}
}
