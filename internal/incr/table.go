package incr

import (
	"iter"
	"reflect"
	"slices"
	"sort"
)

// Table is a set of rows by name. Each row may stand in any number of buckets, through
// which rules list rows without looking at the others. Rows are immutable values.
type Table[T any] struct {
	g       *Graph
	name    string
	rows    map[string]*row[T]
	buckets map[string]*bucket[T]
}

type row[T any] struct {
	cell
	table   *Table[T]
	key     string
	value   T
	present bool
	buckets []string
}

func (r *row[T]) label() (string, any) { return r.table.name, r.key }

// unread frees the place of an absent row.
func (r *row[T]) unread() {
	if !r.present {
		delete(r.table.rows, r.key)
	}
}

type bucket[T any] struct {
	cell
	table *Table[T]
	name  string
	keys  []string // sorted
}

func (b *bucket[T]) label() (string, any) { return b.table.name, "[" + b.name + "]" }

// unread frees the place of an empty bucket.
func (b *bucket[T]) unread() {
	if len(b.keys) == 0 {
		delete(b.table.buckets, b.name)
	}
}

// NewTable adds an empty table to g. The name shows in explanations.
func NewTable[T any](g *Graph, name string) *Table[T] {
	return &Table[T]{g: g, name: name, rows: map[string]*row[T]{}, buckets: map[string]*bucket[T]{}}
}

// Len is the number of rows, for metrics.
func (t *Table[T]) Len() int {
	n := 0
	for _, r := range t.rows {
		if r.present {
			n++
		}
	}
	return n
}

// Put stores a row and the buckets that it stands in, and marks stale what read the row
// or, where membership changed, a bucket. An equal row in equal buckets changes nothing.
func (t *Table[T]) Put(key string, v T, buckets ...string) {
	slices.Sort(buckets)
	buckets = slices.Compact(buckets)
	r := t.row(key)
	if r.present && slices.Equal(r.buckets, buckets) && reflect.DeepEqual(r.value, v) {
		return
	}
	t.move(key, r.buckets, buckets)
	r.value, r.present, r.buckets = v, true, buckets
	t.g.dirty(&r.cell)
}

// Delete removes a row; removing one that is absent changes nothing.
func (t *Table[T]) Delete(key string) {
	r, ok := t.rows[key]
	if !ok || !r.present {
		return
	}
	t.move(key, r.buckets, nil)
	var zero T
	r.value, r.present, r.buckets = zero, false, nil
	t.g.dirty(&r.cell)
	if len(r.readers) == 0 {
		r.unread()
	}
}

func (t *Table[T]) row(key string) *row[T] {
	r, ok := t.rows[key]
	if !ok {
		r = &row[T]{table: t, key: key}
		r.thing = r
		t.rows[key] = r
	}
	return r
}

func (t *Table[T]) bucket(name string) *bucket[T] {
	b, ok := t.buckets[name]
	if !ok {
		b = &bucket[T]{table: t, name: name}
		b.thing = b
		t.buckets[name] = b
	}
	return b
}

// move takes key out of the buckets that only old has and puts it into those that only
// new has; both are sorted.
func (t *Table[T]) move(key string, old, now []string) {
	for _, name := range old {
		if _, still := slices.BinarySearch(now, name); !still {
			b := t.bucket(name)
			i := sort.SearchStrings(b.keys, key)
			b.keys = slices.Delete(slices.Clone(b.keys), i, i+1)
			t.g.dirty(&b.cell)
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
			t.g.dirty(&b.cell)
		}
	}
}

// Get looks one row up and records that it was read, present or absent.
func Get[T any](r *Reader, t *Table[T], key string) (T, bool) {
	c := t.row(key)
	r.record(&c.cell)
	return c.value, c.present
}

// In lists the rows of a bucket in the order of their keys. It records the bucket's
// membership, and each row that the loop comes to.
func In[T any](r *Reader, t *Table[T], name string) iter.Seq2[string, T] {
	b := t.bucket(name)
	r.record(&b.cell)
	keys := b.keys
	return func(yield func(string, T) bool) {
		for _, key := range keys {
			c := t.rows[key]
			r.record(&c.cell)
			if !yield(key, c.value) {
				return
			}
		}
	}
}

// Keys lists the keys of a bucket, sorted, and records its membership only: a change
// inside a row does not make the reader stale. Do not change the slice.
func Keys[T any](r *Reader, t *Table[T], name string) []string {
	b := t.bucket(name)
	r.record(&b.cell)
	return b.keys
}
