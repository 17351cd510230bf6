package lastgood

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Types that are answered in ways of their own.
const (
	routeType       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	virtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	assignmentType  = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// Answers plays discovery for one stream of an Envoy without configuration. It is for one goroutine.
type Answers struct {
	store *Store
	book  *book
	delta bool

	nonce int
	asked map[string]bool
	// names were asked for, by type, in the state-of-the-world variant.
	names map[string]map[string]bool
	// sent are the responses that Envoy has not answered, by nonce.
	sent map[string]batch
	// hosts says that virtual hosts were asked for.
	hosts bool
}

// batch is a set of resources of one type that were sent together.
type batch struct {
	typ    string
	places []place
}

// Answer returns what plays discovery for a new stream, or an error if there is nothing that could be served. Call Close at its end.
func (s *Store) Answer(delta bool) (*Answers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	s.serving++
	s.served++
	return &Answers{store: s, book: s.current, delta: delta, asked: map[string]bool{}, names: map[string]map[string]bool{}, sent: map[string]batch{}}, nil
}

// Close ends the answers.
func (a *Answers) Close() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.store.serving--
}

// Request returns the responses to a request of Envoy.
func (a *Answers) Request(data mem.BufferSlice) ([]mem.BufferSlice, error) {
	q, err := readRequest(data.Materialize(), a.delta)
	if err != nil {
		return nil, fmt.Errorf("read a request: %w", err)
	}
	first := !a.asked[q.typ]
	a.asked[q.typ] = true
	if !a.delta && first {
		a.further(q)
	}
	out := &outbox{a: a}
	if b, ok := a.sent[q.nonce]; ok && q.nonce != "" {
		delete(a.sent, q.nonce)
		if q.refused {
			out.without(b, q.message)
		}
	}
	if first || a.delta && len(q.subscribe) > 0 || !a.delta && a.further(q) {
		a.answer(out, q, first)
	}
	return out.frames, out.err
}

// further reports whether a state-of-the-world request, each of which has all names, has one that was not in the ones before.
func (a *Answers) further(q request) (more bool) {
	known := a.names[q.typ]
	if known == nil {
		known = map[string]bool{}
		a.names[q.typ] = known
	}
	for _, name := range q.subscribe {
		more = more || !known[name]
		known[name] = true
	}
	return more
}

// answer sends what a request asks for.
func (a *Answers) answer(out *outbox, q request, first bool) {
	if !kept(q.typ) {
		return
	}
	all := first && len(q.subscribe) == 0
	var names []string
	for _, name := range q.subscribe {
		if name == "*" {
			all = true
		} else {
			names = append(names, name)
		}
	}
	places, missing, known := a.find(q.typ, all, names)
	a.hosts = a.hosts || q.typ == virtualHostType
	switch {
	case len(places) > 0 || known && all:
		out.send(batch{q.typ, places}, missing)
	case len(missing) > 0:
		out.send(batch{typ: q.typ}, missing)
	}
	if q.typ == routeType && a.hosts && len(places) > 0 {
		// An Envoy that has asked for virtual hosts does not do so for a further route configuration.
		if hosts, _, _ := a.find(virtualHostType, true, nil); len(hosts) > 0 {
			out.send(batch{virtualHostType, hosts}, nil)
		}
	}
}

// find returns the places of resources, of all or by name, and the names of those that are not there. known says that the file
// has the type.
func (a *Answers) find(typ string, all bool, names []string) (places []place, missing []string, known bool) {
	a.store.mu.RLock()
	defer a.store.mu.RUnlock()
	k := a.book.kinds[typ]
	if k != nil && all {
		for _, p := range k.places {
			places = append(places, p)
		}
	}
	for _, name := range names {
		if k != nil {
			if p, ok := k.places[key(name)]; ok {
				if !all {
					places = append(places, p)
				}
				continue
			}
		}
		missing = append(missing, name)
	}
	return places, missing, k != nil
}

// version is what responses of a type have in the state-of-the-world variant.
func (a *Answers) version(typ string) string {
	a.store.mu.RLock()
	defer a.store.mu.RUnlock()
	if k := a.book.kinds[typ]; k != nil && k.version != "" {
		return k.version
	}
	return "copy"
}

// outbox collects responses.
type outbox struct {
	a      *Answers
	frames []mem.BufferSlice
	err    error
}

// send adds a response with the resources at places. Envoy is told that missing ones do not exist, so that it does not wait for
// them, where it stands that.
func (o *outbox) send(b batch, missing []string) {
	if o.err != nil {
		return
	}
	a := o.a
	a.nonce++
	nonce := strconv.Itoa(a.nonce)
	head := appendField(appendField(nil, responseType, b.typ), responseNonce, nonce)
	if a.delta {
		switch b.typ {
		case routeType, assignmentType:
			for _, name := range missing {
				head = appendField(head, responseRemoved, name)
			}
		case virtualHostType:
			for _, name := range missing {
				head = appendField(head, responseResources, appendField(appendField([]byte(nil), resourceName, name), resourceAliases, name))
			}
		default:
			// An Envoy that is told that the filter which a listener waits for was removed never gets live.
			if len(b.places) == 0 && len(missing) > 0 {
				return
			}
		}
	} else {
		if len(b.places) == 0 && len(missing) > 0 {
			return
		}
		head = appendField(head, responseVersion, a.version(b.typ))
	}
	size := len(head)
	for _, p := range b.places {
		size += int(p.size) + 8
	}
	text := append(make([]byte, 0, size), head...)
	for _, p := range b.places {
		one, err := a.book.read(p)
		if err == nil && !a.delta {
			one, err = body(one)
		}
		if err != nil {
			o.err = fmt.Errorf("read the copy of Envoy's configuration: %w", err)
			return
		}
		text = appendField(text, responseResources, one)
	}
	a.sent[nonce] = b
	o.frames = append(o.frames, mem.BufferSlice{mem.SliceBuffer(text)})
}

// body returns the Any in a Resource.
func body(text []byte) (value []byte, err error) {
	err = eachField(text, func(n protowire.Number, v []byte) {
		if n == resourceBody {
			value = v
		}
	})
	return value, err
}

// without sends a batch that Envoy refused again, without the resources that it names. If it names none, the batch is sent in
// halves, until those that it refuses are alone.
func (o *outbox) without(b batch, message string) {
	a := o.a
	var rest []place
	var names []string
	for _, p := range b.places {
		one, err := a.book.resource(p)
		if err != nil {
			o.err = fmt.Errorf("read the copy of Envoy's configuration: %w", err)
			return
		}
		if mentions(message, one.name) || len(b.places) == 1 {
			names = append(names, one.name)
		} else {
			rest = append(rest, p)
		}
	}
	switch {
	case len(names) > 0:
		a.store.drop(a.book, b.typ, names, message)
		if len(rest) > 0 {
			o.send(batch{b.typ, rest}, nil)
		}
	case len(rest) > 1:
		o.send(batch{b.typ, rest[:len(rest)/2]}, nil)
		o.send(batch{b.typ, rest[len(rest)/2:]}, nil)
	}
}

// mentions reports whether a message has a name that is not a part of a longer one.
func mentions(message, name string) bool {
	for at := 0; name != ""; {
		i := strings.Index(message[at:], name)
		if i < 0 {
			return false
		}
		start, end := at+i, at+i+len(name)
		if (start == 0 || !partOfName(message[start-1])) &&
			(end == len(message) || !partOfName(message[end]) || message[end] == '.' && (end+1 == len(message) || message[end+1] == ' ') ||
				message[end] == ':' && (end+1 == len(message) || message[end+1] == ' ')) {
			return true
		}
		at = start + 1
	}
	return false
}

func partOfName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.|:/", c) >= 0
}

// maxMessage bounds Envoy's reason in the log, in bytes.
const maxMessage = 500

// drop removes resources that Envoy refused from a file.
func (s *Store) drop(b *book, typ string, names []string, message string) {
	s.mu.Lock()
	s.dropped += uint64(len(names))
	s.mu.Unlock()
	for _, name := range names {
		s.o.Log.Warn("Envoy refuses a resource of the copy of its configuration, which is removed from it", "type", typ, "name", name,
			"reason", message[:min(len(message), maxMessage)])
		s.post(event{what: refused, book: b, request: request{typ: typ}, name: name})
	}
}
