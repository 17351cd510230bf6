package main

import (
	"io"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// endedCall is a stream that the server has ended after it sent two responses.
type endedCall struct {
	grpc.ClientStream
	received int
}

func (c *endedCall) SendMsg(any) error { return io.EOF }

func (c *endedCall) RecvMsg(m any) error {
	if c.received++; c.received > 2 {
		return status.Error(codes.ResourceExhausted, "too many streams")
	}
	r := m.(*response)
	body, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[clusters], Nonce: "1"})
	if err != nil {
		return err
	}
	r.body, r.buf = body, mem.SliceBuffer(body)
	return r.decode()
}

// A client of gRPC learns by io.EOF that it can send no more, and why only by receiving.
func TestTheReasonOfAnEndedStreamIsReported(t *testing.T) {
	f := newFleet(true, "", 0)
	s := &stream{fleet: f, proxy: proxy{id: "a"}, call: &endedCall{}, done: make(chan struct{})}
	s.receive()
	if err := <-f.failed; status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "stream of a: ") {
		t.Errorf("error %v, want the status with which the stream ended", err)
	}
}
