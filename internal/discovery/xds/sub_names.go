package xds

import (
	"hash/maphash"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// nameSeed makes the hashes of names unpredictable for clients.
var nameSeed = maphash.MakeSeed()

func hashOf(name string) uint64 { return maphash.String(nameSeed, name) }

func hashOfBytes(name []byte) uint64 { return maphash.Bytes(nameSeed, name) }

// nameList is a list of resource names in a request. It refers to the request's bytes, so that a
// list that is known already is compared without being copied.
type nameList struct {
	wire  []byte // fields of an encoded message, checked when they were decoded
	field protowire.Number
	listID
	// named is how many are plain, which are all but * and the empty name; sum is of their hashes,
	// whatever their order.
	named       int
	sum         uint64
	star, empty bool // whether * and the empty name are in the list
}

// listID stands for a list of names in an order. That different lists have the same is as unlikely as
// that two random numbers of 64 bits are equal.
type listID struct {
	n     int
	order uint64
}

// count takes note of the next name of the list.
func (l *nameList) count(name []byte) {
	h := hashOfBytes(name)
	l.n++
	l.order = (l.order ^ h) * 0x9e3779b97f4a7c15
	l.order ^= l.order >> 32
	switch {
	case len(name) == 0:
		l.empty = true
	case isStar(name):
		l.star = true
	default:
		l.named++
		l.sum += h
	}
}

func isStar(name []byte) bool { return len(name) == 1 && name[0] == '*' }

// plain ranges over the plain names, which are good until the request has been handled.
func (l nameList) plain() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := range eachOf(l.wire, l.field) {
			if len(b) > 0 && !isStar(b) && !yield(b) {
				return
			}
		}
	}
}

// strings are all names of the list, copied.
func (l nameList) strings() (out []string) {
	for b := range eachOf(l.wire, l.field) {
		out = append(out, string(b))
	}
	return out
}

// eachOf ranges over the values of a length-delimited field of a message that is well formed.
func eachOf(wire []byte, field protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(wire) > 0 {
			num, v, delimited, n := consumeField(wire)
			if n < 0 || delimited && num == field && !yield(v) {
				return
			}
			wire = wire[n:]
		}
	}
}

// consumeField is the first field of an encoded message, its value if it is length-delimited, and how long
// the field is; less than zero is an error of protowire.
func consumeField(b []byte) (num protowire.Number, v []byte, delimited bool, n int) {
	// Nearly all that is long has a tag of one byte and a length of one or two.
	if len(b) > 2 && b[0]&0x87 == byte(protowire.BytesType) && b[0] > 7 {
		size, begin := int(b[1]), 2
		if b[1] >= 0x80 {
			size, begin = int(b[1]&0x7f)|int(b[2])<<7, 3
		}
		if b[begin-1] < 0x80 && size <= len(b)-begin {
			return protowire.Number(b[0] >> 3), b[begin : begin+size], true, begin + size
		}
	}
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return num, nil, false, tag
	}
	if n = protowire.ConsumeFieldValue(num, typ, b[tag:]); n < 0 {
		return num, nil, false, n
	}
	if typ == protowire.BytesType {
		v, _ = protowire.ConsumeBytes(b[tag:])
	}
	return num, v, typ == protowire.BytesType, tag + n
}

// consumeEntry is an entry of an encoded map of strings. Less than zero is an error of protowire.
func consumeEntry(b []byte) (key, value []byte, n int) {
	for len(b) > 0 {
		num, v, delimited, n := consumeField(b)
		if n < 0 {
			return nil, nil, n
		}
		switch {
		case delimited && num == 1:
			key = v
		case delimited && num == 2:
			value = v
		}
		b = b[n:]
	}
	return key, value, 0
}

// versionList is what a client claims to have from an earlier stream: names and versions, of which
// the last of a name counts. Like nameList it refers to the request's bytes.
type versionList struct {
	wire  []byte
	field protowire.Number
	n     int    // with repetitions
	sum   uint64 // of hashOfEntry
}

// hashOfEntry is the hash of a name with a version: that of an entry of the map as it is usually encoded, from the
// name on.
func hashOfEntry(name, version string) uint64 {
	var scratch [256]byte
	return hashOfBytes(appendBytes(append(scratch[:0], name...), 2, version))
}

// isShort says whether an entry is a short name and, after it, a short version, and nothing else: what comes before
// each is a tag and a length of one byte.
func isShort(entry, name, version []byte) bool {
	return len(name) < 0x80 && len(version) < 0x80 && len(entry) == 4+len(name)+len(version) && entry[0] == 1<<3|2 && entry[2+len(name)] == 2<<3|2
}

// count takes note of the next claim of the list, which is encoded in entry.
func (l *versionList) count(entry, name, version []byte) {
	l.n++
	if isShort(entry, name, version) {
		l.sum += hashOfBytes(entry[2:])
	} else {
		l.sum += hashOfEntry(string(name), string(version))
	}
}

// all ranges over names and versions, which are good until the request has been handled.
func (l versionList) all() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, version []byte) bool) {
		for entry := range eachOf(l.wire, l.field) {
			if name, version, _ := consumeEntry(entry); !yield(name, version) {
				return
			}
		}
	}
}

// nameIndex finds names by their hashes in a list that does not change.
type nameIndex struct {
	slots []uint32 // one more than a position; zero is free
	shift int
}

// newNameIndex makes an index of n names.
func newNameIndex(n int, name func(i int) string) nameIndex {
	bits := 1
	for 1<<bits < 2*n {
		bits++
	}
	x := nameIndex{slots: make([]uint32, 1<<bits), shift: 64 - bits}
	for i := range n {
		at := hashOf(name(i)) >> x.shift
		for x.slots[at] != 0 {
			at = (at + 1) % uint64(len(x.slots))
		}
		x.slots[at] = uint32(i) + 1
	}
	return x
}

// find is the position of the name with that hash that is the one looked for; -1 if there is none.
func (x nameIndex) find(hash uint64, is func(i int) bool) int {
	if len(x.slots) == 0 {
		return -1
	}
	for at := hash >> x.shift; x.slots[at] != 0; at = (at + 1) % uint64(len(x.slots)) {
		if i := int(x.slots[at]) - 1; is(i) {
			return i
		}
	}
	return -1
}

// nameSet is an immutable set of resource names, which any number of streams share. A nil nameSet is
// empty, and every empty set is nil.
type nameSet struct {
	list  []string // in order
	index nameIndex
	sum   uint64 // of the names' hashes
	// own is the size of the names that only the set has, in bytes; a view has the others.
	own int
}

// newNameSet makes a set of names in order, each once, which it keeps.
func newNameSet(list []string, own int) *nameSet {
	if len(list) == 0 {
		return nil
	}
	n := &nameSet{list: list, own: own, index: newNameIndex(len(list), func(i int) string { return list[i] })}
	for _, name := range list {
		n.sum += hashOf(name)
	}
	return n
}

func (n *nameSet) len() int { return len(n.all()) }

// all is the names in order; it must not be changed.
func (n *nameSet) all() []string {
	if n == nil {
		return nil
	}
	return n.list
}

func (n *nameSet) has(name string) bool {
	return n != nil && n.index.find(hashOf(name), func(i int) bool { return n.list[i] == name }) >= 0
}

// is says whether the set has exactly the plain names of a list, as far as their number and the sum of their hashes
// tell: that these are equal otherwise is as unlikely as that two random numbers of 64 bits are.
func (n *nameSet) is(l nameList) bool { return n.len() == l.named && n.hashes() == l.sum }

// hasAll says whether every name of o is in n.
func (n *nameSet) hasAll(o *nameSet) bool {
	return n == o || !slices.ContainsFunc(o.all(), func(name string) bool { return !n.has(name) })
}

// union ranges in order over the names of n and add without those of drop.
func (n *nameSet) union(add, drop *nameSet) iter.Seq[string] {
	return func(yield func(string) bool) {
		a, b := n.all(), add.all()
		for len(a) > 0 || len(b) > 0 {
			order := -1
			switch {
			case len(a) == 0:
				order = 1
			case len(b) > 0:
				order = strings.Compare(a[0], b[0])
			}
			var name string
			if order <= 0 {
				name, a = a[0], a[1:]
			}
			if order >= 0 {
				name, b = b[0], b[1:]
			}
			if (drop == nil || !drop.has(name)) && !yield(name) {
				return
			}
		}
	}
}

// changes says whether adding and dropping names would make another set of n.
func (n *nameSet) changes(add, drop *nameSet) bool {
	return !n.hasAll(add) || slices.ContainsFunc(drop.all(), n.has)
}

// with is the set with names added and others dropped.
func (n *nameSet) with(add, drop *nameSet) *nameSet {
	switch {
	case !n.changes(add, drop):
		return n
	case n == nil && drop == nil:
		return add
	}
	list := make([]string, 0, n.len()+add.len())
	return newNameSet(slices.AppendSeq(list, n.union(add, drop)), n.ownSize()+add.ownSize())
}

// without are the names of n that o has not, in order.
func (n *nameSet) without(o *nameSet) (out []string) {
	for _, name := range n.all() {
		if !o.has(name) {
			out = append(out, name)
		}
	}
	return out
}

// ownSize is the size of the names that only the set has, in bytes.
func (n *nameSet) ownSize() int {
	if n == nil {
		return 0
	}
	return n.own
}

// hashes is the sum of the names' hashes.
func (n *nameSet) hashes() uint64 {
	if n == nil {
		return 0
	}
	return n.sum
}

// equalNames says whether a list is a sequence.
func equalNames(list []string, seq iter.Seq[string]) bool {
	for name := range seq {
		if len(list) == 0 || list[0] != name {
			return false
		}
		list = list[1:]
	}
	return len(list) == 0
}

// bitmap is a set of numbers from zero on.
type bitmap []uint64

func newBitmap(n int) bitmap { return make(bitmap, (n+63)/64) }

func (b bitmap) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }

// set says whether i is new.
func (b bitmap) set(i int) bool {
	before := b[i/64]
	b[i/64] |= 1 << (i % 64)
	return before != b[i/64]
}

// Subscription returns what the client has subscribed to of a type: "*" for all, else names in order. It
// is nil if the client has not asked. The slice must not be changed.
func (s *Sub) Subscription(t Type) []string {
	c := &s.states[t]
	switch {
	case !c.asked:
		return nil
	case c.wildcard:
		return []string{"*"}
	}
	return c.names.all()
}
