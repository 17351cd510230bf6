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
	g        *Graph
	number   int
	name     string
	same     func(a, b T) bool
	rows     map[string]*row[T]
	buckets  map[string]*bucket[T]
	present  int       // rows
	original *Table[T] // of the table of a fork

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

// unread frees an absent row. A fork keeps it: it says that the row is not as in the original.
func (r *row[T]) unread() {
	if !r.present && r.table.original == nil {
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
	if len(b.keys) == 0 && b.table.original == nil {
		delete(b.table.buckets, b.name)
	}
}

func (b *bucket[T]) store() { b.table.buckets[b.name] = b }

// NewTable adds an empty table to g. Reads returns its name.
func NewTable[T any](g *Graph, name string) *Table[T] {
	g.mustNotBeFork("table " + name)
	t := &Table[T]{g: g, number: len(g.tables), name: name, same: comparer[T](), rows: map[string]*row[T]{}, buckets: map[string]*bucket[T]{}}
	g.tables = append(g.tables, t)
	return t
}

// Len returns the number of rows.
func (t *Table[T]) Len() int { return t.present }

// Members returns the sorted keys of a bucket, for code that is not a rule. The caller must not modify the
// slice.
func (t *Table[T]) Members(name string) []string {
	if b, ok := t.buckets[name]; ok || t.original == nil {
		if !ok {
			return nil
		}
		return b.keys
	}
	return t.bucket(name).keys
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
	t.preserveRow(key)
	t.move(key, r.buckets, buckets)
	if !r.present {
		t.present++
	}
	r.value, r.present, r.buckets = v, true, buckets
	t.g.changed(&r.input)
}

// Delete removes a row. Deleting an absent row changes nothing.
func (t *Table[T]) Delete(key string) {
	r := t.kept(key)
	if r == nil || !r.present {
		return
	}
	t.preserveRow(key)
	t.move(key, r.buckets, nil)
	t.present--
	var zero T
	r.value, r.present, r.buckets = zero, false, nil
	t.g.changed(&r.input)
	if len(r.readers) == 0 {
		r.unread()
	}
}

func (t *Table[T]) row(key string) *row[T] {
	r, ok := t.rows[key]
	if !ok {
		r = t.absentRow(key)
		t.rows[key] = r
		t.borrowRow(r)
	}
	return r
}

// kept returns the row for key, nil if there is nothing to say about it.
func (t *Table[T]) kept(key string) *row[T] {
	if t.original != nil {
		return t.row(key)
	}
	return t.rows[key]
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
		t.borrowBucket(b)
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
			t.preserveBucket(name)
			b := t.bucket(name)
			i := sort.SearchStrings(b.keys, key)
			b.keys = slices.Delete(slices.Clone(b.keys), i, i+1)
			t.g.changed(&b.input)
			if len(b.readers) == 0 {
				b.unread()
			}
		}
	}
	for _, name := range now {
		if _, had := slices.BinarySearch(old, name); !had {
			t.preserveBucket(name)
			b := t.bucket(name)
			i := sort.SearchStrings(b.keys, key)
			b.keys = slices.Insert(slices.Clone(b.keys), i, key)
			t.g.changed(&b.input)
		}
	}
}

// Get returns a row, if present, and records the read in both cases.
func Get[T any](r *Reader, t *Table[T], key string) (T, bool) {
	rec := r.get()
	if t.g != rec.g {
		t = t.On(rec.g)
	}
	c := t.rowFor(rec, key)
	rec.record(&c.input)
	return c.value, c.present
}

// In iterates over the rows of a bucket in the order of their keys. It records the read of the
// bucket's members, and of each row that is yielded.
func In[T any](r *Reader, t *Table[T], name string) iter.Seq2[string, T] {
	rec := r.get()
	if t.g != rec.g {
		t = t.On(rec.g)
	}
	b := t.bucketFor(rec, name)
	rec.record(&b.input)
	keys := b.keys
	return func(yield func(string, T) bool) {
		rec := r.get()
		for _, key := range keys {
			c := t.rowFor(rec, key)
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
	if t.g != rec.g {
		t = t.On(rec.g)
	}
	b := t.bucketFor(rec, name)
	rec.record(&b.input)
	return b.keys
}
