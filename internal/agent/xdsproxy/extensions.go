package xdsproxy

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// Extensions converts the configurations of extensions before Envoy gets them; wasm.Cache does. [agent X10]
type Extensions interface {
	// Convert returns a TypedExtensionConfig, encoded, to use in place of another one. It may take long. An error rejects the
	// response. Any goroutine may call it.
	Convert(ctx context.Context, config []byte) ([]byte, error)
}

// extensionType is the type of responses with extensions.
const extensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

const (
	// maxWaiting is how many responses with extensions of one stream wait, before its other responses wait too.
	maxWaiting = 4
	// maxConverting is how many extensions of a response are converted at a time.
	maxConverting = 4
)

// converter converts the responses with extensions of one stream in their order. Other responses do not wait for them:
// a conversion fetches what may be far away.
type converter struct{ in chan *frame }

// convert starts the converter of a stream, which has deliver called for each response; nil if none is needed. It ends when
// deliver returns an error, and at the latest when ctx does.
func (p *Proxy) convert(ctx context.Context, deliver func(*frame) error) *converter {
	if p.config.Extensions == nil {
		return nil
	}
	c := &converter{in: make(chan *frame, maxWaiting)}
	p.relays.Add(1)
	go func() {
		defer p.relays.Done()
		for {
			select {
			case <-ctx.Done():
				return
			case f := <-c.in:
				if deliver(f) != nil {
					return // one of the streams has ended
				}
			}
		}
	}()
	return c
}

// take hands over a response, and reports whether it is one with extensions.
func (c *converter) take(ctx context.Context, f *frame, h head) bool {
	if c == nil || h.url != extensionType {
		return false
	}
	select {
	case c.in <- f:
	case <-ctx.Done():
	}
	return true
}

// deliver converts a response and sends it to Envoy, or rejects it. Recorded is what the control plane sent, and not where
// its module was put: that may be removed until the copy is used.
func (p *Proxy) deliver(ctx context.Context, f *frame, up *upstreamStream, down *downstream, k *keptStream) error {
	text := f.data.Materialize()
	out, err := convertAll(ctx, p.config.Extensions, text, up.delta)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		p.config.Log.Warn("the configuration of an extension is rejected", "reason", err)
		nonce, _ := field(text, responseNonce)
		return up.reject(extensionType, string(nonce), err)
	}
	k.response(frameOf(text))
	return down.SendMsg(frameOf(out))
}

// deliverKept converts a response of the copy and sends it to Envoy.
func (p *Proxy) deliverKept(ctx context.Context, f *frame, down *downstream) error {
	out, err := convertAll(ctx, p.config.Extensions, f.data.Materialize(), down.delta)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		// It was valid when it was recorded. What needs it waits for the control plane.
		p.config.Log.Error("the configuration of an extension in the copy is invalid", "reason", err)
		return nil
	}
	return down.SendMsg(frameOf(out))
}

// convertAll converts the extensions in a response.
func convertAll(ctx context.Context, by Extensions, text []byte, delta bool) ([]byte, error) {
	type part struct {
		whole, resource []byte // resource is nil for other fields
		err             error
	}
	var parts []*part
	for b := text; len(b) > 0; {
		n, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return nil, fmt.Errorf("parse the response: %w", protowire.ParseError(tag))
		}
		size := protowire.ConsumeFieldValue(n, typ, b[tag:])
		if size < 0 {
			return nil, fmt.Errorf("parse the response: %w", protowire.ParseError(size))
		}
		one := &part{whole: b[:tag+size]}
		if n == responseResources && typ == protowire.BytesType {
			one.resource, _ = protowire.ConsumeBytes(b[tag:])
		}
		parts = append(parts, one)
		b = b[tag+size:]
	}
	var running sync.WaitGroup
	turn := make(chan struct{}, maxConverting)
	for _, one := range parts {
		if one.resource == nil {
			continue
		}
		turn <- struct{}{}
		running.Add(1)
		go func() {
			defer running.Done()
			defer func() { <-turn }()
			var resource []byte
			if resource, one.err = convertOne(ctx, by, one.resource, delta); one.err == nil {
				one.whole = appendField(nil, responseResources, string(resource))
			}
		}()
	}
	running.Wait()
	var out []byte
	for _, one := range parts {
		if one.err != nil {
			return nil, one.err
		}
		out = append(out, one.whole...)
	}
	return out, nil
}

// convertOne converts a resource: an Any, in the delta variant in a Resource.
func convertOne(ctx context.Context, by Extensions, resource []byte, delta bool) ([]byte, error) {
	body := resource
	if delta {
		var ok bool
		if body, ok = field(resource, resourceBody); !ok {
			return resource, nil // an alias
		}
	}
	config, _ := field(body, anyValue)
	converted, err := by.Convert(ctx, config)
	if err != nil {
		return nil, err
	}
	body = replaceField(body, anyValue, converted)
	if delta {
		return replaceField(resource, resourceBody, body), nil
	}
	return body, nil
}

// replaceField returns a message with one field of a number, in place of those that it has. The message must be well formed.
func replaceField(b []byte, number protowire.Number, value []byte) []byte {
	var out []byte
	for len(b) > 0 {
		n, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			break
		}
		size := protowire.ConsumeFieldValue(n, typ, b[tag:])
		if size < 0 {
			break
		}
		if n != number {
			out = append(out, b[:tag+size]...)
		}
		b = b[tag+size:]
	}
	return protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), value)
}

// reject tells the control plane why a response was not used.
func (u *upstreamStream) reject(url, nonce string, problem error) error {
	typ, to, detail := protowire.Number(sotwType), protowire.Number(sotwNonce), protowire.Number(sotwError)
	if u.delta {
		typ, to, detail = deltaType, deltaNonce, deltaError
	}
	text := appendField(appendField(nil, typ, url), to, nonce)
	text = appendField(text, detail, string(encodeStatus(internalCode, problem.Error())))
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.SendMsg(frameOf(text))
}
