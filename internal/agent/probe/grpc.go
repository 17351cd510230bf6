package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

// Of grpc.health.v1, whose generated package would cost memory in every Pod.
const (
	healthMethod  = "/grpc.health.v1.Health/Check"
	healthService = 1 // string HealthCheckRequest.service
	healthStatus  = 1 // enum HealthCheckResponse.status
	serving       = 1
)

// healthNames are the values of HealthCheckResponse.ServingStatus.
var healthNames = []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

const (
	// maxMessage bounds the response to a health check, in bytes.
	maxMessage = 4 << 10
	// bufferSize is that of a connection's reads and writes, in bytes.
	bufferSize = 4 << 10
)

// check asks the application for its health, in plaintext, as the kubelet does. [agent H13]
func (h *Handler) check(ctx context.Context, userAgent string, p *spec.GRPCProbe) error {
	address := net.JoinHostPort(h.o.Pod.String(), strconv.Itoa(p.Port))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return h.dial(ctx, "tcp", address) }),
		grpc.WithUserAgent(userAgent), grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize), grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return fmt.Errorf("gRPC health check at %s: %w", address, err)
	}
	defer conn.Close()
	var request, reply []byte
	if p.Service != "" {
		request = protowire.AppendTag(request, healthService, protowire.BytesType)
		request = protowire.AppendString(request, p.Service)
	}
	if err := conn.Invoke(ctx, healthMethod, &request, &reply); err != nil {
		return fmt.Errorf("gRPC health check at %s: %w", address, err)
	}
	status, err := parseHealth(reply)
	switch {
	case err != nil:
		return fmt.Errorf("gRPC health check at %s: %w", address, err)
	case status == serving:
		return nil
	}
	name := strconv.FormatUint(status, 10)
	if status < uint64(len(healthNames)) {
		name = healthNames[status]
	}
	return fmt.Errorf("gRPC health check at %s: status %s: want SERVING", address, name)
}

// parseHealth returns the status of an encoded HealthCheckResponse.
func parseHealth(b []byte) (status uint64, err error) {
	for len(b) > 0 {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, errors.Join(errors.New("parse the response"), protowire.ParseError(n))
		}
		b = b[n:]
		if number == healthStatus && typ == protowire.VarintType {
			status, n = protowire.ConsumeVarint(b)
		} else {
			n = protowire.ConsumeFieldValue(number, typ, b)
		}
		if n < 0 {
			return 0, errors.Join(errors.New("parse the response"), protowire.ParseError(n))
		}
		b = b[n:]
	}
	return status, nil
}

// bytesCodec passes encoded messages, as *[]byte.
type bytesCodec struct{}

var _ encoding.Codec = bytesCodec{}

// Name is the name of protobuf's codec, whose messages these are.
func (bytesCodec) Name() string { return "proto" }

// Marshal returns the bytes.
func (bytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("send %T: want *[]byte", v)
	}
	return *b, nil
}

// Unmarshal copies the bytes, which the transport uses again.
func (bytesCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("receive %T: want *[]byte", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}
