package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Bootstraps gets what the control plane changes in Envoy's bootstrap; dynamic.Store does. An error rejects it.
type Bootstraps interface {
	// SetBootstrap replaces it: an encoded message of mesh.BootstrapType, which must not be changed any more, and its version.
	SetBootstrap(version string, text []byte) error
}

// maxBootstrap is the maximum size of a response with a bootstrap in bytes.
const maxBootstrap = mesh.MaxBootstrap + 64<<10

// AskBootstrap asks once, on a stream of its own, and gives the answer to Config.Bootstraps. node is the encoded node of the Envoy that
// will run. It waits for a connection until ctx ends. [agent B26]
func (p *Proxy) AskBootstrap(ctx context.Context, node []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := p.upstream.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, sotwMethod, grpc.MaxCallRecvMsgSize(maxBootstrap))
	if err != nil {
		return err
	}
	if err := up.SendMsg(frameOf(appendField(appendField(nil, sotwNode, string(node)), sotwType, mesh.BootstrapType))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	f := &frame{}
	if err := up.RecvMsg(f); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the control plane ended the stream without an answer")
		}
		return err
	}
	b, text, ok := readOwn(f.data.Materialize(), false)
	if !ok {
		return errors.New("the control plane has none")
	}
	return p.config.Bootstraps.SetBootstrap(b.version, text)
}

// takeBootstrap applies and answers a response with a bootstrap; false if it is another response.
func (p *Proxy) takeBootstrap(up *upstreamStream, data mem.BufferSlice) (bool, error) {
	if p.config.Bootstraps == nil || topType(data, len(mesh.BootstrapType)) != mesh.BootstrapType {
		return false, nil
	}
	if size := data.Len(); size > maxBootstrap {
		return true, fmt.Errorf("bootstrap of %d bytes: want at most %d", size, maxBootstrap)
	}
	b, text, ok := readOwn(data.Materialize(), up.delta)
	var err error
	if ok { // else there is nothing new
		err = p.config.Bootstraps.SetBootstrap(b.version, text)
	}
	return true, up.answer(mesh.BootstrapType, b, err)
}
