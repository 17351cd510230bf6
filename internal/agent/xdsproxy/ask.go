package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// askLimit is how long the control plane may take to answer.
	askLimit = 5 * time.Second
	// maxPage bounds a page of the control plane in bytes, maxPageName its name and query.
	maxPage     = 64 << 20
	maxPageName = 1024
	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

// Of the requests of envoy.service.discovery.v3, of a Node, of a google.protobuf.Struct and its values.
const (
	sotwNode                  = 2
	sotwNames                 = 3
	nodeID, nodeMetadata      = 1, 3
	structFields, stringValue = 1, 3
)

// Node is how the agent names its proxy to the control plane when it asks for itself.
type Node struct {
	ID, Namespace string
	// Metadata is that of OwnStream besides the namespace.
	Metadata map[string]string
}

// encode encodes a Node with metadata.
func (n Node) encode(more map[string]string) []byte {
	var metadata []byte
	all := maps.Clone(more)
	if all == nil {
		all = map[string]string{}
	}
	all["NAMESPACE"] = n.Namespace
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := appendField(nil, stringValue, all[key])
		metadata = appendField(metadata, structFields, string(appendField(appendField(nil, entryKey, key), entryValue, string(value))))
	}
	return appendField(appendField(nil, nodeID, n.ID), nodeMetadata, string(metadata))
}

// Ask asks the control plane for a page about itself, such as "syncz" or "config_dump?proxyID=x.y". It does so on a stream of its own:
// a refusal ends the stream that asks, and must not be Envoy's. The error has the gRPC status of the control plane. [agent X11]
func (p *Proxy) Ask(ctx context.Context, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	up, err := p.upstream.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, sotwMethod, grpc.MaxCallRecvMsgSize(maxPage))
	if err != nil {
		return nil, err
	}
	if err := up.SendMsg(frameOf(pageRequest(p.config.Node, page))); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	f := &frame{}
	if err := up.RecvMsg(f); err != nil {
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the control plane ended the stream without an answer")
		}
		return nil, err
	}
	text := f.data.Materialize()
	resource, ok := field(text, responseResources)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "the control plane has no page %s", printable.Quote(page, 200))
	}
	body, _ := field(resource, anyValue)
	return body, nil
}

func pageRequest(n Node, page string) []byte {
	text := appendField(nil, sotwNode, string(n.encode(nil)))
	text = appendField(text, sotwNames, page)
	return appendField(text, sotwType, debugType)
}

func frameOf(text []byte) *frame { return &frame{data: mem.BufferSlice{mem.SliceBuffer(text)}} }

// encodeStatus encodes a google.rpc.Status. The message is cut to maxProblem bytes.
func encodeStatus(code uint64, message string) []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, statusCode, protowire.VarintType), code)
	return appendField(b, statusMessage, strings.ToValidUTF8(message[:min(len(message), maxProblem)], ""))
}

// Pages answers GET requests with pages of the control plane: what follows the prefix, with the query, is the name of the page. The caller
// guards it.
func (p *Proxy) Pages(prefix string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", "GET")
			http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
			return
		}
		page := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, prefix), "/")
		if r.URL.RawQuery != "" {
			page += "?" + r.URL.RawQuery
		}
		if page == "" || len(page) > maxPageName {
			http.Error(w, fmt.Sprintf("a page of %d bytes: want the name of a page of the control plane, such as syncz, of at most %d", len(page), maxPageName), http.StatusBadRequest)
			return
		}
		body, err := p.Ask(r.Context(), page)
		if err != nil {
			s := status.Convert(err)
			http.Error(w, "ask "+p.config.Upstream.Address()+": "+s.Message(), httpCode(s.Code()))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body)
	})
}

// httpCode is the HTTP status of a gRPC status.
func httpCode(c codes.Code) int {
	switch c {
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return http.StatusForbidden
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.Unimplemented:
		return http.StatusNotImplemented
	}
	return http.StatusBadGateway
}
