package xds

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// namesOf is a list of names as a request has it.
func namesOf(names ...string) (l nameList) {
	l.field = 3
	for _, n := range names {
		l.wire = protowire.AppendTag(l.wire, l.field, protowire.BytesType)
		l.wire = protowire.AppendString(l.wire, n)
		l.count([]byte(n))
	}
	return l
}

// versionsOf is a list of versions by name as a request has it.
func versionsOf(versions map[string]string) (l versionList) {
	l.field = 5
	for _, n := range slices.Sorted(maps.Keys(versions)) {
		l.add(n, versions[n])
	}
	return l
}

func (l *versionList) add(name, version string) {
	l.field = 5
	entry := protowire.AppendTag(nil, 1, protowire.BytesType)
	entry = protowire.AppendString(entry, name)
	entry = protowire.AppendTag(entry, 2, protowire.BytesType)
	entry = protowire.AppendString(entry, version)
	l.wire = protowire.AppendTag(l.wire, l.field, protowire.BytesType)
	l.wire = protowire.AppendBytes(l.wire, entry)
	l.count(entry, []byte(name), []byte(version))
}

// table is the versions by name.
func (l versionList) table() map[string]string {
	if l.n == 0 {
		return nil
	}
	out := map[string]string{}
	for n, v := range l.all() {
		out[string(n)] = string(v)
	}
	return out
}

// The hash of a claim is the same however it is encoded.
func TestHashOfAClaimIsThatOfItsContent(t *testing.T) {
	long := strings.Repeat("n", 200)
	for _, c := range [][2]string{{"", ""}, {"a", "1"}, {"a", ""}, {"", "1"}, {long, "1"}, {"a", long}, {long[:127], long[:127]}, {"a\x12\x011", "1"}} {
		name, version := protowire.AppendString([]byte{1<<3 | 2}, c[0]), protowire.AppendString([]byte{2<<3 | 2}, c[1])
		for _, entry := range [][]byte{
			slices.Concat(name, version), slices.Concat(version, name), slices.Concat(name, name, version), slices.Concat([]byte{1<<3 | 2, 0}, name, version),
			slices.Concat(name, version, []byte{3<<3 | 2, 0}),
		} {
			var l versionList
			n, v, size := consumeEntry(entry)
			if size < 0 {
				t.Fatalf("%q: %d", entry, size)
			}
			if l.count(entry, n, v); l.sum != hashOfEntry(c[0], c[1]) {
				t.Errorf("%q has another hash than %q", entry, c)
			}
		}
	}
}
