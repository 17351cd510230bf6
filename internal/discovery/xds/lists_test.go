package xds

import (
	"maps"
	"slices"

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
	l.count([]byte(name), []byte(version))
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
