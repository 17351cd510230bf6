package incr

import (
	"iter"
	"slices"
	"sort"
	"sync"
)

// Table is a set of rows by key. Each row belongs to any number of buckets, which index the
// table. Rows must not be modified after Put.
type Table[T any] struct {
	g       *Graph
	name    string
	same    func(a, b T) bool
	rows    map[string]*row[T]
	buckets map[string]*bucket[T]

	mu              sync.Mutex // of absent rows and empty buckets that workers have made
	unstoredRows    map[string]*row[T]
	unstoredBuckets map[string]*bucket[T]
}

type row[T any] struct {
	input
	table   *Table[T]
	key     string
	value   T
	present bool
	buckets []string
}

func (r *row[T]) label() (string, any) { return r.table.name, r.key }

func (r *row[T]) read() Read { return Read{Table: r.table.name, Key: r.key, Present: r.present} }

// unread frees an absent row.
func (r *row[T]) unread() {
	if !r.present {
		delete(r.table.rows, r.key)
	}
}

func (r *row[T]) store() { r.table.rows[r.key] = r }

type bucket[T any] struct {
	input
	table *Table[T]
	name  string
	keys  []string // sorted
}

func (b *bucket[T]) label() (string, any) { return b.table.name, "[" + b.name + "]" }

func (b *bucket[T]) read() Read {
	return Read{Table: b.table.name, Key: b.name, Bucket: true, Present: len(b.keys) > 0}
}

// unread frees an empty bucket.
func (b *bucket[T]) unread() {
	if len(b.keys) == 0 {
		delete(b.table.buckets, b.name)
	}
}

func (b *bucket[T]) store() { b.table.buckets[b.name] = b }

// NewTable adds an empty table to g. Reads returns its name.
func NewTable[T any](g *Graph, name string) *Table[T] {
	return &Table[T]{g: g, name: name, same: comparer[T](), rows: map[string]*row[T]{}, buckets: map[string]*bucket[T]{}}
}

// Len returns the number of rows, in time linear to it.
func (t *Table[T]) Len() int {
	n := 0
	for _, r := range t.rows {
		if r.present {
			n++
		}
	}
	return n
}

// Put stores a row and the buckets that it belongs to, and makes stale what has read the row or a
// bucket whose members change. An equal row in equal buckets changes nothing.
func (t *Table[T]) Put(key string, v T, buckets ...string) {
	slices.Sort(buckets)
	buckets = slices.Compact(buckets)
	r := t.row(key)
	if r.present && slices.Equal(r.buckets, buckets) && t.same(r.value, v) {
		return
	}
	t.move(key, r.buckets, buckets)
	r.value, r.present, r.buckets = v, true, buckets
	t.g.dirty(&r.input)
}

// Delete removes a row. Deleting an absent row changes nothing.
func (t *Table[T]) Delete(key string) {
	r, ok := t.rows[key]
	if !ok || !r.present {
		return
	}
	t.move(key, r.buckets, nil)
	var zero T
	r.value, r.present, r.buckets = zero, false, nil
	t.g.dirty(&r.input)
	if len(r.readers) == 0 {
		r.unread()
	}
}

func (t *Table[T]) row(key string) *row[T] {
	r, ok := t.rows[key]
	if !ok {
		r = t.absentRow(key)
		t.rows[key] = r
	}
	return r
}

func (t *Table[T]) absentRow(key string) *row[T] {
	r := &row[T]{table: t, key: key}
	r.container = r
	return r
}

func (t *Table[T]) bucket(name string) *bucket[T] {
	b, ok := t.buckets[name]
	if !ok {
		b = t.emptyBucket(name)
		t.buckets[name] = b
	}
	return b
}

func (t *Table[T]) emptyBucket(name string) *bucket[T] {
	b := &bucket[T]{table: t, name: name}
	b.container = b
	return b
}

// rowFor returns the row for an execution; if there is none, an absent row that records that.
func (t *Table[T]) rowFor(rec *recorder, key string) *row[T] {
	if rec.worker == nil {
		return t.row(key)
	}
	if r, ok := t.rows[key]; ok {
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.unstoredRows[key]
	if r == nil {
		r = t.absentRow(key)
		r.mark = unstored
		if t.unstoredRows == nil {
			t.g.parallel.made(t)
			t.unstoredRows = map[string]*row[T]{}
		}
		t.unstoredRows[key] = r
	}
	return r
}

// bucketFor returns the bucket for an execution; if there is none, an empty one that records that.
func (t *Table[T]) bucketFor(rec *recorder, name string) *bucket[T] {
	if rec.worker == nil {
		return t.bucket(name)
	}
	if b, ok := t.buckets[name]; ok {
		return b
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.unstoredBuckets[name]
	if b == nil {
		b = t.emptyBucket(name)
		b.mark = unstored
		if t.unstoredBuckets == nil {
			t.g.parallel.made(t)
			t.unstoredBuckets = map[string]*bucket[T]{}
		}
		t.unstoredBuckets[name] = b
	}
	return b
}

func (t *Table[T]) forget() { t.unstoredRows, t.unstoredBuckets = nil, nil }

// move removes key from the buckets that are only in old and adds it to those that are only in
// now; both are sorted.
func (t *Table[T]) move(key string, old, now []string) {
	for _, name := range old {
		if _, still := slices.BinarySearch(now, name); !still {
			b := t.bucket(name)
			i := sort.SearchStrings(b.keys, key)
			b.keys = slices.Delete(slices.Clone(b.keys), i, i+1)
			t.g.dirty(&b.input)
			if len(b.readers) == 0 {
				b.unread()
			}
		}
	}
	for _, name := range now {
		if _, had := slices.BinarySearch(old, name); !had {
			b := t.bucket(name)
			i := sort.SearchStrings(b.keys, key)
			b.keys = slices.Insert(slices.Clone(b.keys), i, key)
			t.g.dirty(&b.input)
		}
	}
}

// Get returns a row, if present, and records the read in both cases.
func Get[T any](r *Reader, t *Table[T], key string) (T, bool) {
	rec := r.get()
	c := t.rowFor(rec, key)
	rec.record(&c.input)
	return c.value, c.present
}

// In iterates over the rows of a bucket in the order of their keys. It records the read of the
// bucket's members, and of each row that is yielded.
func In[T any](r *Reader, t *Table[T], name string) iter.Seq2[string, T] {
	rec := r.get()
	b := t.bucketFor(rec, name)
	rec.record(&b.input)
	keys := b.keys
	return func(yield func(string, T) bool) {
		rec := r.get()
		for _, key := range keys {
			c := t.rows[key]
			rec.record(&c.input)
			if !yield(key, c.value) {
				return
			}
		}
	}
}

// Keys returns the sorted keys of a bucket and records the read of its members only: a change of a
// row does not make the reader stale. The caller must not modify the slice.
func Keys[T any](r *Reader, t *Table[T], name string) []string {
	rec := r.get()
	b := t.bucketFor(rec, name)
	rec.record(&b.input)
	return b.keys
}
