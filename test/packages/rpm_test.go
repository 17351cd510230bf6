package packages_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Tags of an rpm's header. https://rpm-software-management.github.io/rpm/manual/tags.html
const (
	tagPreIn, tagPostIn, tagPreUn, tagPostUn = 1023, 1024, 1025, 1026
	tagFileModes, tagFileFlags, tagFileUsers = 1030, 1037, 1039
	tagDirIndexes, tagBaseNames, tagDirNames = 1116, 1117, 1118

	flagConfig = 1 // of tagFileFlags
	typeFolder = 0o040000
)

// rpmHeader is the header of an rpm: the values by tag, as they are stored up to the header's end, and the number of files.
type rpmHeader struct {
	values map[uint32][]byte
	count  int
}

// readRPM returns the header of an rpm, which follows the lead and the header of the signatures.
// https://rpm-software-management.github.io/rpm/manual/format_v4.html
func readRPM(file string) (rpmHeader, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return rpmHeader{}, err
	}
	const lead = 96
	if len(text) < lead || !bytes.HasPrefix(text, []byte{0xed, 0xab, 0xee, 0xdb}) {
		return rpmHeader{}, errors.New("no lead of an rpm")
	}
	_, size, err := readHeader(text[lead:])
	if err != nil {
		return rpmHeader{}, fmt.Errorf("signatures: %w", err)
	}
	start := lead + (size+7)/8*8
	if start > len(text) {
		return rpmHeader{}, errors.New("no header")
	}
	h, _, err := readHeader(text[start:])
	return h, err
}

// readHeader reads a header at the start of text and returns its size in bytes.
func readHeader(text []byte) (h rpmHeader, size int, err error) {
	const intro, entry = 16, 16
	if len(text) < intro || !bytes.HasPrefix(text, []byte{0x8e, 0xad, 0xe8, 1}) {
		return h, 0, errors.New("no header")
	}
	entries, stored := int(binary.BigEndian.Uint32(text[8:])), int(binary.BigEndian.Uint32(text[12:]))
	data := intro + entry*entries
	if size = data + stored; size > len(text) {
		return h, 0, errors.New("the header is cut off")
	}
	h.values = map[uint32][]byte{}
	for i := range entries {
		e := text[intro+entry*i:]
		offset := int(binary.BigEndian.Uint32(e[8:]))
		if offset > stored {
			return h, 0, errors.New("a value is outside of the header")
		}
		tag := binary.BigEndian.Uint32(e)
		if h.values[tag] = text[data+offset : size]; tag == tagBaseNames {
			h.count = int(binary.BigEndian.Uint32(e[12:]))
		}
	}
	return h, size, nil
}

// text is the i-th string of a tag.
func (h rpmHeader) text(tag uint32, i int) string {
	rest := h.values[tag]
	for range i {
		_, rest, _ = bytes.Cut(rest, []byte{0})
	}
	s, _, _ := bytes.Cut(rest, []byte{0})
	return string(s)
}

// files are the files as contents has them, and the paths of those that are configuration.
func (h rpmHeader) files() (all, config []string) {
	for i := range h.count {
		path := h.text(tagDirNames, int(binary.BigEndian.Uint32(h.values[tagDirIndexes][4*i:]))) + h.text(tagBaseNames, i)
		if binary.BigEndian.Uint32(h.values[tagFileFlags][4*i:])&flagConfig != 0 {
			config = append(config, path)
		}
		bits := binary.BigEndian.Uint16(h.values[tagFileModes][2*i:])
		mode := fs.FileMode(bits & 0o777)
		if bits&0o170000 == typeFolder {
			mode |= fs.ModeDir
			path += "/"
		}
		all = append(all, fmt.Sprint(mode, " ", h.text(tagFileUsers, i), " ", path))
	}
	return all, config
}
