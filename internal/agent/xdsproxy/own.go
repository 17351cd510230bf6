package xdsproxy

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// ownRetry is the time between two streams of the agent's own.
const ownRetry = 3 * time.Second

// ownName is the listener that the agent asks for on its own stream. There is none with this name.
const ownName = "pilot-agent"

// OwnStream keeps a stream to the control plane open until ctx ends, for what the agent itself gets on the streams of clients: the
// trust bundle and the names of the mesh. Run it where no Envoy keeps one open. It returns nil.
func (p *Proxy) OwnStream(ctx context.Context) error {
	retry := time.NewTimer(ownRetry)
	defer retry.Stop()
	for {
		p.ownStream(ctx)
		retry.Reset(ownRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		}
	}
}

// ownStream runs one stream.
func (p *Proxy) ownStream(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened, err := p.open(ctx, cancel, sotwMethod, p.patience)
	if err != nil {
		return // it is in the state of the connection
	}
	own := &ownClient{ctx: ctx, requests: make(chan *frame, 1)}
	own.requests <- frameOf(ownRequest(p.config.Node))
	_ = p.exchange(ctx, &downstream{ServerStream: own}, &upstreamStream{ClientStream: opened}, nil) // it logs its errors
}

func ownRequest(n Node) []byte {
	text := appendField(nil, sotwNode, string(n.encode(n.Metadata)))
	text = appendField(text, sotwNames, ownName)
	return appendField(text, sotwType, listenerType)
}

// ownClient is the client of the agent's own stream. It accepts every response.
type ownClient struct {
	ctx      context.Context
	requests chan *frame // the next request; one at a time
}

func (c *ownClient) Context() context.Context { return c.ctx }

// RecvMsg gives the next request, which is the first one or an acknowledgement.
func (c *ownClient) RecvMsg(m any) error {
	select {
	case f := <-c.requests:
		m.(*frame).data = f.data
		return nil
	case <-c.ctx.Done():
		return io.EOF
	}
}

// SendMsg takes a response.
func (c *ownClient) SendMsg(m any) error {
	h, err := readHead(m.(*frame).data, responseFields)
	if err != nil {
		return err
	}
	text := appendField(nil, protowire.Number(sotwVersion), h.version)
	text = appendField(appendField(text, sotwNames, ownName), sotwType, h.url)
	select {
	case c.requests <- frameOf(appendField(text, sotwNonce, h.nonce)):
		return nil
	case <-c.ctx.Done():
		return io.EOF
	}
}

func (c *ownClient) SetHeader(metadata.MD) error  { return nil }
func (c *ownClient) SendHeader(metadata.MD) error { return nil }
func (c *ownClient) SetTrailer(metadata.MD)       {}
