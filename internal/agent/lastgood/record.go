package lastgood

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/mem"
)

// Recording records one stream between Envoy and discovery. Request and Response may be called by one goroutine each. A nil
// Recording records nothing.
type Recording struct {
	store *Store
	delta bool
	// asked are the types that were asked for, known to Request's goroutine only.
	asked map[string]bool
	empty bool

	// The rest is of Run's goroutine.

	// book gets what Envoy acknowledges; nil for nothing.
	book *book
	// pending are responses without an answer, by nonce.
	pending map[string]mem.BufferSlice
	held    int // bytes of pending
	// again is closed to have the stream begin anew.
	again chan struct{}
	once  sync.Once
}

// Again is closed when the stream should end and begin anew, since what was not written before can be written now. It is nil, and
// blocks for ever, for a nil Recording.
func (r *Recording) Again() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.again
}

// event is something that happened on a stream, or a resource that Envoy refused.
type event struct {
	stream   *Recording
	what     what
	request  request
	first    bool // of its type on the stream
	response mem.BufferSlice
	book     *book // of a refused resource
	name     string
}

type what int

const (
	opened what = iota
	requested
	responded
	closed
	refused
)

// Record records a new stream. empty says that its Envoy has no configuration yet. Call Close at its end.
func (s *Store) Record(delta, empty bool) *Recording {
	r := &Recording{store: s, delta: delta, empty: empty, asked: map[string]bool{}, pending: map[string]mem.BufferSlice{}, again: make(chan struct{})}
	s.post(event{stream: r, what: opened})
	return r
}

// Request takes note of a request of Envoy, and returns what discovery is sent: if Envoy returns with resources that the file
// lacks, discovery is not told that Envoy has them, so that it sends them again.
func (r *Recording) Request(data mem.BufferSlice) mem.BufferSlice {
	if r == nil {
		return data
	}
	text := data.Materialize()
	q, err := readRequest(text, r.delta)
	if err != nil {
		return data // discovery says what is wrong with it
	}
	first := !r.asked[q.typ]
	r.asked[q.typ] = true
	r.store.post(event{stream: r, what: requested, request: q, first: first})
	if !first || r.empty || len(q.initial) == 0 || !kept(q.typ) {
		return data
	}
	has := r.store.has(q.typ)
	lacks := false
	for _, h := range q.initial {
		lacks = lacks || !has(h)
	}
	if !lacks {
		return data
	}
	if text, err = withoutHeld(text, has); err != nil {
		return data
	}
	return mem.BufferSlice{mem.SliceBuffer(text)}
}

// has returns a function that reports whether the file that is written, or is going to be, has a resource. It is true for all
// if nothing can be written.
func (s *Store) has(typ string) func(held) bool {
	b := s.following()
	if s.failedLately() {
		return func(held) bool { return true }
	}
	return func(h held) bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if b == nil || b.kinds[typ] == nil {
			return false
		}
		p, ok := b.kinds[typ].places[key(h.name)]
		return ok && p.version == key(h.version)
	}
}

// failedLately says that the file could not be written a short time ago.
func (s *Store) failedLately() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.problem != nil && time.Since(s.failed) < s.retry
}

// following is the file that a stream of an Envoy with configuration is recorded in.
func (s *Store) following() *book {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.building != nil {
		return s.building.book
	}
	return s.current
}

// Response takes note of a response, before Envoy gets it.
func (r *Recording) Response(data mem.BufferSlice) {
	if r == nil {
		return
	}
	data.Ref()
	r.store.post(event{stream: r, what: responded, response: data})
}

// Close ends the recording.
func (r *Recording) Close() {
	if r != nil {
		r.store.post(event{stream: r, what: closed})
	}
}

// post hands an event to Run.
func (s *Store) post(e event) {
	s.queue.Lock()
	size := e.response.Len()
	if s.queued+size > maxQueued {
		s.lost = true
		e.response.Free()
	} else {
		s.queued += size
		s.events = append(s.events, e)
	}
	s.queue.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run records until ctx ends. Call it once.
func (s *Store) Run(ctx context.Context) error {
	touch := time.NewTicker(s.tick)
	defer touch.Stop()
	settle := time.NewTimer(s.settle)
	defer settle.Stop()
	waiting := true // the timer runs
	defer s.close()
	for {
		select {
		case <-ctx.Done():
			s.drain()
			s.touch(time.Now())
			return nil
		case <-s.wake:
			s.drain()
		case now := <-touch.C:
			s.touch(now)
			s.resync(now)
		case <-settle.C:
			waiting = false
			s.finish(time.Now())
		}
		if x := s.building; !waiting && x != nil && time.Since(x.changed) < 2*settleLimit {
			settle.Reset(s.settle)
			waiting = true
		}
	}
}

// drain handles all events.
func (s *Store) drain() {
	for {
		s.queue.Lock()
		events, lost := s.events, s.lost
		s.events, s.queued, s.lost = nil, 0, false
		s.queue.Unlock()
		if lost {
			s.failing(s.following(), fmt.Errorf("more than %d bytes wait to be written", maxQueued))
		}
		if len(events) == 0 {
			return
		}
		for _, e := range events {
			s.handle(e)
		}
	}
}

func (s *Store) handle(e event) {
	r := e.stream
	if r != nil && e.what != opened && !s.streams[r] {
		e.response.Free()
		return // it was closed
	}
	switch e.what {
	case opened:
		s.streams[r] = true
		r.book = s.attach(r.empty)
	case closed:
		s.touch(time.Now())
		delete(s.streams, r)
		for _, data := range r.pending {
			data.Free()
		}
		if x := s.building; x != nil && x.book == r.book && len(x.kinds) == 0 {
			s.abandon() // discovery did not answer
		}
	case responded:
		s.responded(r, e.response)
	case requested:
		s.requested(r, e.request, e.first)
	case refused:
		if e.book == s.following() {
			s.change(e.book, e.request.typ, "", nil, s.present(e.book, e.request.typ, []string{e.name}))
		}
	}
}

// attach returns the file that a new stream is recorded in.
func (s *Store) attach(empty bool) *book {
	if !empty {
		b, failing := s.following(), s.failedLately()
		switch {
		case b != nil && !failing:
			b.broken = false // discovery is going to send what it lacks
			return b
		case b != nil:
			return b
		case failing:
			return nil
		}
	}
	if s.building != nil {
		s.abandon()
	}
	if err := os.MkdirAll(s.o.Dir, 0o700); err != nil {
		s.failing(nil, err)
		return nil
	}
	b, err := createBook(s.path+".new", s.o.Binding, s.o.MaxSize)
	if err != nil {
		s.failing(nil, err)
		return nil
	}
	now := time.Now()
	s.mu.Lock()
	s.building = &building{book: b, began: now, changed: now, open: map[string]map[uint64]bool{}}
	s.mu.Unlock()
	return b
}

// abandon removes the file that is not complete.
func (s *Store) abandon() {
	s.mu.Lock()
	b := s.building
	s.building = nil
	s.mu.Unlock()
	if b != nil {
		_ = b.discard() // the next one replaces it
	}
}

// responded keeps a response until Envoy answers it.
func (s *Store) responded(r *Recording, data mem.BufferSlice) {
	head, err := newScanner(data.Reader(), int64(data.Len())).response(int64(data.Len()), r.delta)
	switch {
	case err != nil && r.book != nil && !errors.Is(err, errWrapped):
		s.failing(r.book, fmt.Errorf("read a response: %w", err))
	case err == nil && r.book != nil && kept(head.typ):
		if old, ok := r.pending[head.nonce]; ok {
			r.held -= old.Len()
			old.Free()
		}
		if r.held += data.Len(); r.held <= maxQueued {
			r.pending[head.nonce] = data
			return
		}
		r.held -= data.Len()
		s.failing(r.book, fmt.Errorf("more than %d bytes of responses wait for Envoy's answer", maxQueued))
	}
	data.Free()
}

// requested takes what Envoy acknowledges into the file.
func (s *Store) requested(r *Recording, q request, first bool) {
	b := r.book
	if b == nil || !kept(q.typ) {
		return
	}
	if first && !r.empty && r.delta {
		s.prune(b, q.typ, q.initial)
	}
	if first || len(q.subscribe) > 0 {
		s.expect(b, q, r.delta)
	}
	if data, ok := r.pending[q.nonce]; ok && q.nonce != "" {
		delete(r.pending, q.nonce)
		r.held -= data.Len()
		if !q.refused {
			s.acknowledged(b, data, r.delta)
		}
		data.Free()
	}
	switch {
	case r.delta && len(q.unsubscribe) > 0:
		s.change(b, q.typ, "", nil, s.present(b, q.typ, q.unsubscribe))
	case !r.delta && len(q.subscribe) > 0:
		s.retain(b, q.typ, q.subscribe)
	}
}

// acknowledged enters a response.
func (s *Store) acknowledged(b *book, data mem.BufferSlice, delta bool) {
	size := int64(data.Len())
	r, err := newScanner(data.Reader(), size).response(size, delta)
	if err != nil {
		return // it was read before
	}
	k := b.kinds[r.typ]
	removed := s.present(b, r.typ, r.removed)
	version := r.version
	if delta {
		version = ""
	}
	var entries []entry
	seen := make(map[uint64]bool, len(r.resources))
	text := &ranges{data: data}
	for _, one := range r.resources {
		if one.name == "" || !one.body {
			continue // it does not exist, or lives on
		}
		e := entry{key: key(one.name), version: key(one.version), body: one.sum, size: one.size, text: text.copy(one.off, one.size)}
		if !delta {
			e.version = key(version)
			e.head = resourceHead(one.name, version, one.size)
		}
		seen[e.key] = true
		if k != nil {
			if old, ok := k.places[e.key]; ok && old.body == e.body && (!delta || old.version == e.version) {
				continue
			}
		}
		entries = append(entries, e)
	}
	if !delta && (r.typ == clusterType || r.typ == listenerType) {
		removed = append(removed, s.others(b, r.typ, seen)...)
	}
	if x := s.building; x != nil && x.book == b {
		open := x.open[r.typ]
		delete(open, 0)
		for id := range seen {
			delete(open, id)
		}
		for _, one := range r.resources {
			delete(open, key(one.name))
		}
		for _, name := range r.removed {
			delete(open, key(name))
		}
		x.changed = time.Now()
	}
	s.change(b, r.typ, version, entries, removed)
}

// ranges copies parts of a message whose offsets ascend.
type ranges struct {
	data mem.BufferSlice
	src  *mem.Reader
	pos  int64
}

func (r *ranges) copy(off, size int64) func(io.Writer) error {
	return func(w io.Writer) error {
		if r.src == nil {
			r.src = r.data.Reader()
		}
		if _, err := r.src.Discard(int(off - r.pos)); err != nil {
			return err
		}
		n, err := io.CopyN(w, r.src, size)
		r.pos = off + n
		return err
	}
}

// present returns those of the names that the file has.
func (s *Store) present(b *book, typ string, names []string) (out []string) {
	if k := b.kinds[typ]; k != nil {
		for _, name := range names {
			if _, ok := k.places[key(name)]; ok {
				out = append(out, name)
			}
		}
	}
	return out
}

// others returns the names of the resources in the file whose keys are not in keep.
func (s *Store) others(b *book, typ string, keep map[uint64]bool) (out []string) {
	k := b.kinds[typ]
	if k == nil {
		return nil
	}
	for id, p := range k.places {
		if keep[id] {
			continue
		}
		one, err := b.resource(p)
		if err != nil {
			s.failing(b, err)
			return nil
		}
		out = append(out, one.name)
	}
	return out
}

// resource reads the name and the versions of a resource.
func (b *book) resource(p place) (resource, error) {
	return newScanner(io.NewSectionReader(b.file, p.off, int64(p.size)), int64(p.size)).resource(int64(p.size))
}

// prune removes what a returning Envoy does not have.
func (s *Store) prune(b *book, typ string, initial []held) {
	keep := make(map[uint64]bool, len(initial))
	for _, h := range initial {
		keep[key(h.name)] = true
	}
	if gone := s.others(b, typ, keep); len(gone) > 0 {
		s.change(b, typ, "", nil, gone)
	}
}

// retain removes what a state-of-the-world client no longer asks for.
func (s *Store) retain(b *book, typ string, names []string) {
	k := b.kinds[typ]
	if k == nil || typ == clusterType || typ == listenerType {
		return
	}
	keep := make(map[uint64]bool, len(names))
	for _, name := range names {
		keep[key(name)] = true
		if name == "*" {
			return
		}
	}
	if gone := s.others(b, typ, keep); len(gone) > 0 {
		s.change(b, typ, "", nil, gone)
	}
}

// expect notes what an Envoy that starts asks for.
func (s *Store) expect(b *book, q request, delta bool) {
	x := s.building
	if x == nil || x.book != b {
		return
	}
	open := x.open[q.typ]
	if open == nil {
		open = map[uint64]bool{}
		x.open[q.typ] = open
	}
	x.changed = time.Now()
	if len(q.subscribe) == 0 {
		open[0] = true // everything
	}
	for _, name := range q.subscribe {
		id := key(name)
		if name == "*" {
			id = 0
		}
		if k := b.kinds[q.typ]; k == nil || delta || !contains(k, id) {
			open[id] = true
		}
	}
}

func contains(k *kind, id uint64) bool {
	_, ok := k.places[id]
	return ok
}

// change appends to a file. A change without content enters the type.
func (s *Store) change(b *book, typ, version string, entries []entry, removed []string) {
	if k := b.kinds[typ]; b.broken || len(entries)+len(removed) == 0 && k != nil && (version == "" || k.version == version) {
		return
	}
	// It is written without the lock: a slow disk delays nobody who reads the index.
	places, end, err := b.write(typ, version, entries, removed)
	if err != nil {
		s.failing(b, err)
		return
	}
	now := time.Now()
	s.mu.Lock()
	b.enter(typ, version, entries, places, removed, end)
	current := b == s.current
	if current {
		s.fresh, s.problem = now, nil
	}
	rewrite := current && b.outdated() && now.Sub(s.failed) > s.retry
	s.mu.Unlock()
	if rewrite {
		s.rewrite(b)
	}
}

// rewrite replaces the current file by one without what is outdated.
func (s *Store) rewrite(b *book) {
	next, err := b.again(s.path+".smaller", s.o.Binding)
	if err == nil {
		if err = next.rename(s.path); err != nil {
			err = errors.Join(err, next.discard())
		}
	}
	if err != nil {
		// The file stays as it is, and may grow for some time.
		s.report(fmt.Errorf("write a smaller file: %w", err))
		if b.end > 2*b.limit {
			b.broken = true
		}
		return
	}
	s.replace(next)
}

// replace makes a file the current one. Streams that are answered from the old one have it open; it is closed when they have ended.
func (s *Store) replace(next *book) {
	s.mu.Lock()
	old := s.current
	s.current, s.fresh, s.looked, s.problem = next, time.Now(), true, nil
	s.mu.Unlock()
	for r := range s.streams {
		if r.book == old {
			r.book = next
		}
	}
}

// finish makes the new file the current one, if it has what Envoy needs.
func (s *Store) finish(now time.Time) {
	x := s.building
	if x == nil || now.Sub(x.changed) < s.settle || !x.complete() {
		return
	}
	if now.Sub(x.began) < settleLimit {
		for _, open := range x.open {
			if len(open) > 0 {
				return
			}
		}
	}
	if err := x.rename(s.path); err != nil {
		s.failing(x.book, err)
		return
	}
	s.mu.Lock()
	s.building = nil
	s.mu.Unlock()
	s.replace(x.book)
}

// failing notes that a file cannot be written: it stays as it is until a stream begins anew.
func (s *Store) failing(b *book, err error) {
	if b != nil {
		b.broken = true
	}
	s.report(err)
	if s.building != nil && s.building.book == b {
		s.abandon()
		for r := range s.streams {
			if r.book == b {
				r.book = nil
			}
		}
	}
}

// report notes and logs a problem, once until it is over.
func (s *Store) report(err error) {
	s.mu.Lock()
	told := s.problem != nil && s.failed != time.Time{}
	s.problem, s.failed = err, time.Now()
	s.mu.Unlock()
	if !told {
		s.o.Log.Warn("the copy of Envoy's configuration is not written: a restarted agent may not be able to serve while discovery is away", "file", s.path, "reason", err)
	}
}

// touch marks the current file as confirmed if a stream to discovery is open that it follows.
func (s *Store) touch(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.current
	if b == nil || b.broken {
		return
	}
	for r := range s.streams {
		if r.book == b {
			s.fresh = now
			_ = os.Chtimes(b.path, time.Time{}, now) // if it is gone, it is as good as old
			return
		}
	}
}

// resync asks streams that are not recorded, since the file could not be written, to begin anew once there is room on the disk.
func (s *Store) resync(now time.Time) {
	s.mu.RLock()
	wait := s.problem == nil || now.Sub(s.failed) < s.retry || errors.Is(s.problem, errLarge)
	s.mu.RUnlock()
	if wait {
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.o.Dir, &st); err != nil || int64(st.Bavail)*st.Bsize < needed { //nolint:unconvert // Bsize has another type on other architectures
		return
	}
	for r := range s.streams {
		if r.book == nil || r.book.broken {
			r.once.Do(func() { close(r.again) })
		}
	}
}

// close closes the files and removes one that is not complete.
func (s *Store) close() {
	s.abandon()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		_ = s.current.file.Close() // it was written without buffers
		s.current = nil
	}
}
