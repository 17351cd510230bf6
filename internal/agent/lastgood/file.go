package lastgood

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"io"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The file begins with magic, whose number is that of the format, and a record with the binding as JSON. Each further
// record is what one acknowledged response changed, encoded as a DeltaDiscoveryResponse. A record is its length in 4 bytes, its text, and the
// CRC-32C of the text in 4 bytes, little endian. Appending to it is what a change costs; a file of which much is outdated
// is written anew.
const (
	magic = "pilothouse xds copy 1\n"
	// maxBinding bounds the first record.
	maxBinding = 64 << 10
	// frameSize is what a record has besides its text, in bytes.
	frameSize = 8
	// slack is how much of a file may be outdated, in addition to half of what is not, in bytes.
	slack = 256 << 10
)

// Types whose resources Envoy needs to serve at all.
const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// place is where a resource is in the file, with sums of its version and its body.
type place struct {
	off           int64
	version, body uint64
	size          uint32
}

// kind has the resources of one type, by the keys of their names.
type kind struct {
	version string // of the last response, in the state-of-the-world variant
	places  map[uint64]place
}

func key(name string) uint64 { return maphash.String(seed, name) }

// book is an open file and its index. It knows no locks.
type book struct {
	path  string
	file  *os.File
	end   int64 // of the last complete record
	live  int64 // of end, what is not outdated
	limit int64
	kinds map[string]*kind
	// broken says that something could not be written. It is of the one goroutine that writes.
	broken bool
}

// errLarge says that the configuration is larger than the limit.
var errLarge = errors.New("the configuration is larger")

// createBook creates a file, replacing one that is not open.
func createBook(path string, binding Binding, limit int64) (*book, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	b := &book{path: path, file: f, limit: limit, kinds: map[string]*kind{}}
	text, err := json.Marshal(binding)
	if err == nil {
		_, err = f.WriteString(magic)
	}
	if err == nil {
		b.end = int64(len(magic))
		b.end, err = b.record(int64(len(text)), func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	if err != nil {
		return nil, errors.Join(err, b.discard())
	}
	b.live = b.end
	return b, nil
}

// discard closes and removes the file.
func (b *book) discard() error { return errors.Join(b.file.Close(), os.Remove(b.path)) }

// rename gives the file its final name, once its content is on the disk.
func (b *book) rename(path string) error {
	if err := b.file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(b.path, path); err != nil {
		return err
	}
	b.path = path
	return nil
}

// record writes a record, whose text write gives, to the end of the file, and returns the new end. If that fails, the file is as
// before.
func (b *book) record(size int64, write func(io.Writer) error) (end int64, err error) {
	defer func() {
		if err != nil {
			// If that fails too, the next record overwrites what is there, or a reader finds it incomplete.
			_ = b.file.Truncate(b.end)
		}
	}()
	if size > math.MaxUint32 || b.end+size+frameSize > math.MaxInt64/2 {
		return 0, errLarge
	}
	sum := &summed{w: bufio.NewWriterSize(io.NewOffsetWriter(b.file, b.end), int(min(size+frameSize, 32<<10)))}
	var number [4]byte
	binary.LittleEndian.PutUint32(number[:], uint32(size))
	if _, err := sum.w.Write(number[:]); err != nil {
		return 0, err
	}
	if err := write(sum); err != nil {
		return 0, err
	}
	if sum.n != size {
		return 0, fmt.Errorf("a record of %d bytes is %d long", size, sum.n)
	}
	binary.LittleEndian.PutUint32(number[:], sum.crc)
	if _, err := sum.w.Write(number[:]); err != nil {
		return 0, err
	}
	if err := sum.w.Flush(); err != nil {
		return 0, err
	}
	return b.end + size + frameSize, nil
}

// summed counts and sums what is written.
type summed struct {
	w   *bufio.Writer
	n   int64
	crc uint32
}

func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.n += int64(n)
	s.crc = crc32.Update(s.crc, castagnoli, p[:n])
	return n, err
}

// entry is a resource to be written: its encoded Resource is head and then size bytes that body gives.
type entry struct {
	key           uint64
	version, body uint64
	head          []byte
	size          int64
	text          func(io.Writer) error
}

// write appends what one response changed: resources, and the names of removed ones. It does not change the index: enter does.
func (b *book) write(typ, version string, entries []entry, removed []string) (places []place, end int64, err error) {
	prefix := appendField(nil, responseType, typ)
	if version != "" {
		prefix = appendField(prefix, responseVersion, version)
	}
	for _, name := range removed {
		prefix = appendField(prefix, responseRemoved, name)
	}
	total, added := int64(len(prefix)), int64(0)
	for _, e := range entries {
		added += int64(len(e.head)) + e.size
		total += int64(len(appendPrefix(nil, responseResources, int64(len(e.head))+e.size))) + int64(len(e.head)) + e.size
	}
	if b.live+added > b.limit {
		return nil, 0, fmt.Errorf("%w: %d bytes, want at most %d", errLarge, b.live+added, b.limit)
	}
	start := b.end + 4
	places = make([]place, len(entries))
	end, err = b.record(total, func(w io.Writer) error {
		if _, err := w.Write(prefix); err != nil {
			return err
		}
		at := start + int64(len(prefix))
		for i, e := range entries {
			size := int64(len(e.head)) + e.size
			tag := appendPrefix(nil, responseResources, size)
			at += int64(len(tag))
			places[i] = place{off: at, size: uint32(size), version: e.version, body: e.body}
			at += size
			if _, err := w.Write(tag); err != nil {
				return err
			}
			if _, err := w.Write(e.head); err != nil {
				return err
			}
			if err := e.text(w); err != nil {
				return err
			}
		}
		return nil
	})
	return places, end, err
}

// enter takes what write wrote into the index.
func (b *book) enter(typ, version string, entries []entry, places []place, removed []string, end int64) {
	k := b.kind(typ, version)
	for _, name := range removed {
		b.forget(k, key(name))
	}
	for i, e := range entries {
		b.set(k, e.key, places[i])
	}
	b.end = end
}

func (b *book) kind(typ, version string) *kind {
	k := b.kinds[typ]
	if k == nil {
		k = &kind{places: map[uint64]place{}}
		b.kinds[typ] = k
	}
	if version != "" {
		k.version = version
	}
	return k
}

func (b *book) set(k *kind, id uint64, p place) {
	b.forget(k, id)
	k.places[id] = p
	b.live += int64(p.size)
}

func (b *book) forget(k *kind, id uint64) {
	if old, ok := k.places[id]; ok {
		b.live -= int64(old.size)
		delete(k.places, id)
	}
}

// complete says that the file has what Envoy needs to serve.
func (b *book) complete() bool { return b.kinds[clusterType] != nil && b.kinds[listenerType] != nil }

// outdated says that the file should be written anew.
func (b *book) outdated() bool { return b.end > b.live+b.live/2+slack }

// resources counts the resources of all types.
func (b *book) resources() (n int) {
	for _, k := range b.kinds {
		n += len(k.places)
	}
	return n
}

// read returns the encoded Resource at a place.
func (b *book) read(p place) ([]byte, error) {
	text := make([]byte, p.size)
	_, err := b.file.ReadAt(text, p.off)
	return text, err
}

// again writes what is not outdated to a new file, which the caller renames.
func (b *book) again(path string, binding Binding) (*book, error) {
	next, err := createBook(path, binding, b.limit)
	if err != nil {
		return nil, err
	}
	for typ, k := range b.kinds {
		entries := make([]entry, 0, len(k.places))
		for id, p := range k.places {
			entries = append(entries, entry{key: id, version: p.version, body: p.body, size: int64(p.size), text: func(w io.Writer) error {
				_, err := io.Copy(w, io.NewSectionReader(b.file, p.off, int64(p.size)))
				return err
			}})
		}
		slices.SortFunc(entries, func(x, y entry) int { return int(k.places[x.key].off - k.places[y.key].off) })
		places, end, err := next.write(typ, k.version, entries, nil)
		if err != nil {
			return nil, errors.Join(err, next.discard())
		}
		next.enter(typ, k.version, entries, places, nil, end)
	}
	return next, nil
}

// openBook reads a file that this process may append to. The error wraps os.ErrNotExist if there is none.
func openBook(path string, binding Binding, limit int64) (b *book, changed time.Time, err error) {
	// Not blocking: the path may be that of a pipe without a writer.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	st, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	owner, known := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		err = errors.New("not a regular file")
	case !known || int(owner.Uid) != os.Geteuid():
		err = fmt.Errorf("owned by another user than %d", os.Geteuid())
	case st.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("mode %04o, want 0600", st.Mode().Perm())
	case st.Size() > 2*limit+slack:
		err = fmt.Errorf("%d bytes, want at most %d", st.Size(), 2*limit+slack)
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	b = &book{path: path, file: f, limit: limit, kinds: map[string]*kind{}}
	if err = b.load(newScanner(io.NewSectionReader(f, 0, st.Size()), st.Size()), st.Size(), binding); err != nil {
		return nil, time.Time{}, err
	}
	return b, st.ModTime(), nil
}

// load reads all records of a file of size bytes. What follows the last complete one is overwritten later.
func (b *book) load(s *scanner, size int64, binding Binding) error {
	var head []byte
	if err := s.take(min(size, int64(len(magic))), func(p []byte) { head = append(head, p...) }); err != nil {
		return err
	}
	if string(head) != magic {
		return errors.New("it has another format, perhaps of another version")
	}
	b.end = s.pos
	var text []byte
	found, err := b.next(s, size, func(n int64) error {
		if n > maxBinding {
			return fmt.Errorf("its first record has %d bytes, want at most %d", n, maxBinding)
		}
		return s.take(n, func(p []byte) { text = append(text, p...) })
	})
	switch {
	case err != nil:
		return err
	case !found:
		return errors.New("its first record is incomplete")
	}
	var written Binding
	if err := json.Unmarshal(text, &written); err != nil {
		return fmt.Errorf("its first record is not valid: %w", err)
	}
	if err := written.matches(binding); err != nil {
		return err
	}
	b.live = b.end
	for {
		start := s.pos + 4
		var r response
		found, err := b.next(s, size, func(n int64) (err error) {
			r, err = s.response(n, true)
			if err == nil && s.pos != start+n {
				err = errCut
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("the record at byte %d: %w", start-4, err)
		}
		if !found {
			return nil
		}
		if err := b.apply(r); err != nil {
			return fmt.Errorf("the record at byte %d: %w", start-4, err)
		}
	}
}

// next reads a record by f, which must read all of it; false if there is no complete one.
func (b *book) next(s *scanner, size int64, f func(size int64) error) (bool, error) {
	if size-s.pos < frameSize {
		return false, nil
	}
	var number [4]byte
	read := func() error {
		got := number[:0]
		return s.take(4, func(p []byte) { got = append(got, p...) })
	}
	if err := read(); err != nil {
		return false, err
	}
	n := int64(binary.LittleEndian.Uint32(number[:]))
	if n > size-s.pos-4 {
		return false, nil
	}
	s.crc = 0
	failed := f(n)
	if failed != nil {
		return false, failed
	}
	crc := s.crc
	if err := read(); err != nil {
		return false, err
	}
	if binary.LittleEndian.Uint32(number[:]) != crc {
		return false, errors.New("its checksum is wrong")
	}
	b.end = s.pos
	return true, nil
}

// apply enters a record into the index.
func (b *book) apply(r response) error {
	if !kept(r.typ) {
		return fmt.Errorf("type %.100q is not kept", r.typ)
	}
	k := b.kind(r.typ, r.version)
	for _, name := range r.removed {
		b.forget(k, key(name))
	}
	for _, one := range r.resources {
		if one.name == "" || !one.body || one.size > math.MaxUint32 {
			return errors.New("a resource without a name or a body")
		}
		b.set(k, key(one.name), place{off: one.off, size: uint32(one.size), version: key(one.version), body: one.sum})
	}
	return nil
}

// resourceHead encodes name and version of a Resource and the beginning of its body, which has size bytes.
func resourceHead(name, version string, size int64) []byte {
	head := appendField(nil, protowire.Number(resourceName), name)
	if version != "" {
		head = appendField(head, resourceVersion, version)
	}
	return appendPrefix(head, resourceBody, size)
}
