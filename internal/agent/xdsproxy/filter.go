package xdsproxy

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Only what concerns a proxy passes between Envoy and the control plane. The other types are the agent's own, such as
// the trust bundle and health reports, or unknown: any user of the Pod can write to the socket, and must not speak for
// the agent. [agent X7]

// Prefixes of the types that pass.
var passingPrefixes = []string{"type.googleapis.com/envoy.", "type.googleapis.com/istio.workload.", debugType + "/"}

const (
	// debugType is a type by which the control plane is asked about itself; others begin with it and a slash. [agent X11]
	debugType = "istio.io/debug"
	// connectionsType is another one, of early versions of istioctl.
	connectionsType = "istio.io/connections"
)

// passes reports whether messages of a type pass, in both directions.
func passes(url string) bool {
	switch url {
	case debugType, connectionsType:
		return true
	case mesh.BootstrapType:
		return false // the agent's own
	}
	for _, p := range passingPrefixes {
		if strings.HasPrefix(url, p) {
			return true
		}
	}
	return false
}

const (
	// maxType bounds a type, maxVersion a version and maxNonce a nonce that is read, in bytes.
	maxType    = 256
	maxVersion = 256
	maxNonce   = 256
	// maxTold bounds the types of a stream that are logged.
	maxTold = 16
)

// head is the beginning of a message: what the agent reads of it.
type head struct {
	url, version, nonce string
	refused             bool
	// names says that a request has names, and unsubscribes that it has names that are not wanted any more.
	names, unsubscribes bool
}

// headFields are the numbers of the fields of a head, 0 where a message has none.
type headFields struct{ url, version, nonce, refused, names, unsubscribes protowire.Number }

const (
	requestNames     = 3 // of both variants
	deltaUnsubscribe = 4
	responseRemoved  = 6
)

// requestFields are those of a request.
func requestFields(delta bool) headFields {
	if delta {
		return headFields{url: deltaType, nonce: deltaNonce, refused: deltaError, names: requestNames, unsubscribes: deltaUnsubscribe}
	}
	return headFields{url: sotwType, version: sotwVersion, nonce: sotwNonce, refused: sotwError, names: requestNames}
}

// responseFields are those of a response, of both variants.
var responseFields = headFields{url: responseType, version: responseVersion, nonce: responseNonce}

// readHead reads the beginning of a message without copying the rest: responses may have many megabytes. As in protobuf
// the last of several fields with one number counts.
func readHead(data mem.BufferSlice, f headFields) (head, error) {
	r := data.Reader()
	defer r.Close()
	var h head
	for r.Remaining() > 0 {
		n, size, err := nextField(r)
		if err != nil {
			return head{}, err
		}
		var into *string
		most := 0
		switch {
		case size < 0:
			continue
		case n == f.url:
			into, most = &h.url, maxType
		case n == f.version && f.version != 0:
			into, most = &h.version, maxVersion
		case n == f.nonce:
			into, most = &h.nonce, maxNonce
		case n == f.refused && f.refused != 0:
			h.refused = true
		case n == f.names && f.names != 0:
			h.names = true
		case n == f.unsubscribes && f.unsubscribes != 0:
			h.unsubscribes = true
		}
		if into != nil && n != f.url && size > most {
			*into, into = "", nil // only what the agent reports of it is missing
		}
		if into == nil {
			_, err = r.Discard(size)
		} else {
			*into, err = readText(r, n, size, most)
		}
		if err != nil {
			return head{}, err
		}
	}
	return h, nil
}

// nextField reads a tag, and the length of a length-delimited field; other fields are skipped, and size is -1.
func nextField(r *mem.Reader) (n protowire.Number, size int, err error) {
	tag, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, 0, fmt.Errorf("parse a message: %w", err)
	}
	n, typ := protowire.DecodeTag(tag)
	if n < protowire.MinValidNumber {
		return 0, 0, fmt.Errorf("parse a message: invalid field number %d", n)
	}
	skip := 0
	switch typ {
	case protowire.BytesType:
		length, err := binary.ReadUvarint(r)
		if err == nil && length > uint64(r.Remaining()) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, 0, fmt.Errorf("parse field %d: %w", n, err)
		}
		return n, int(length), nil
	case protowire.VarintType:
		_, err = binary.ReadUvarint(r)
	case protowire.Fixed32Type:
		skip = 4
	case protowire.Fixed64Type:
		skip = 8
	default:
		err = fmt.Errorf("invalid wire type %d", typ)
	}
	if err == nil && skip > r.Remaining() {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		_, err = r.Discard(skip)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("parse field %d: %w", n, err)
	}
	return n, -1, nil
}

func readText(r *mem.Reader, n protowire.Number, size, most int) (string, error) {
	if size > most {
		return "", fmt.Errorf("parse field %d: %d bytes: want at most %d", n, size, most)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return "", fmt.Errorf("parse field %d: %w", n, err)
	}
	return string(text), nil
}

// downstream is a stream of a client on the socket. Both directions of a relay send on it.
type downstream struct {
	grpc.ServerStream
	delta bool

	mu   sync.Mutex // guards SendMsg and told
	told map[string]bool
}

// SendMsg implements grpc.ServerStream, for any goroutine.
func (d *downstream) SendMsg(m any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ServerStream.SendMsg(m)
}

// first reports whether it is the first time that a message of a type is withheld.
func (d *downstream) first(what, url string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := what + " " + url
	if d.told[key] || len(d.told) == maxTold {
		return false
	}
	if d.told == nil {
		d.told = map[string]bool{}
	}
	d.told[key] = true
	return true
}

// withhold answers a request that does not pass: nothing is there. One that cannot be parsed, of which problem is not nil,
// has no answer.
func (p *Proxy) withhold(down *downstream, f *frame, h head, problem error) {
	if down.first("request", h.url) {
		p.config.Log.Info("a request is not passed on", "type", printable.Quote(h.url, maxType), "reason", reason(problem))
	}
	if answer := nothing(f.data, h, down.delta); answer != nil {
		// After an error the stream ends, which RecvMsg reports.
		_ = down.SendMsg(answer)
	}
}

// drop takes note of a response that does not pass.
func (p *Proxy) drop(down *downstream, h head, problem error) {
	if down.first("response", h.url) {
		p.config.Log.Warn("a response of the control plane is not passed on", "type", printable.Quote(h.url, maxType), "reason", reason(problem))
	}
}

// reason is why a message does not pass.
func reason(problem error) string {
	if problem != nil {
		return problem.Error()
	}
	return "not a type of Envoy's"
}

// nonePrefix begins the nonce and version of an answer without resources. The rest of the nonce stands for the names.
const nonePrefix = "none-"

// nothing is a response without resources to a request, in which the names of a delta request are removed; nil if the
// request does not ask for anything.
func nothing(request mem.BufferSlice, h head, delta bool) *frame {
	if h.url == "" || delta && !h.names && (h.nonce != "" || h.unsubscribes) {
		return nil
	}
	sum := fnv.New64a()
	var removed []byte
	// The message has been parsed already.
	_ = eachField(request.Materialize(), func(n protowire.Number, name []byte) {
		if n != requestNames {
			return
		}
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(name))))
		_, _ = sum.Write(name)
		if delta && string(name) != "*" {
			removed = appendField(removed, responseRemoved, string(name))
		}
	})
	nonce := nonePrefix + strconv.FormatUint(sum.Sum64(), 16)
	if !delta && h.nonce == nonce {
		return nil // it acknowledges the answer
	}
	text := appendField(nil, responseVersion, nonePrefix)
	text = appendField(text, responseType, h.url)
	text = appendField(text, responseNonce, nonce)
	return frameOf(append(text, removed...))
}
