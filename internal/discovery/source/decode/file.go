package decode

import (
	"crypto/sha256"
	"fmt"
	"path"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// File decodes successive texts of one file. A document, or an item of a list, that was in one of the last two texts
// is not decoded again: its objects have the specs and metadata of the earlier result, which must not be modified,
// and the lines of this text. The result is that of Documents. A File holds the objects of the last two texts. It is
// not safe for concurrent use.
type File struct {
	name        string
	last, older texts
}

// texts is what the chunks of a text were decoded to, and of each list its items.
type texts struct {
	chunks parts
	lists  []parts
}

// parts are decoded chunks by the hash of their text.
type parts map[[sha256.Size]byte]*decoded

// decoded is what a chunk was decoded to.
type decoded struct {
	line   int    // of the chunk, at that time
	at     string // the path of an item in the document, at that time
	count  int    // of objects, those with problems included
	result Result
	items  parts // of a list
}

// NewFile returns the File of a name, which is the file of all origins.
func NewFile(name string) *File { return &File{name: name} }

// Documents parses all documents of the file. See the function of that name.
func (f *File) Documents(text []byte) Result {
	chunks := yamltree.Split(text, path.Ext(f.name) == ".json")
	now := texts{chunks: make(parts, len(chunks))}
	all := decoder{file: f.name}
	all.Objects = make([]object.Object, 0, len(chunks))
	for _, c := range chunks {
		sum := sha256.Sum256(c.Text)
		part := known(sum, now.chunks, f.last.chunks, f.older.chunks)
		if part == nil || !part.fits(c.Line, "", all.count) {
			part = f.list(c, all.count)
		}
		if part == nil {
			part = f.whole(c, all.count)
		}
		if all.add(part, c.Line) {
			now.chunks[sum] = part
		}
		if part.items != nil {
			now.lists = append(now.lists, part.items)
		}
	}
	f.last, f.older = now, f.last
	if p, some := leftOut(f.name, all.Skipped); some {
		all.Problems = append(all.Problems, p)
	}
	return all.Result
}

// known returns what a chunk with this hash was decoded to, or nil.
func known(sum [sha256.Size]byte, from ...parts) *decoded {
	for _, p := range from {
		if d := p[sum]; d != nil {
			return d
		}
	}
	return nil
}

// whole decodes a chunk that follows a number of objects.
func (f *File) whole(c yamltree.Chunk, before int) *decoded {
	d := decoder{file: f.name, count: before}
	d.chunk(c)
	return &decoded{line: c.Line, count: d.count - before, result: d.Result}
}

// list decodes a chunk that is a list, and that follows a number of objects, item by item. It returns nil if it is
// not one, or must be decoded whole.
func (f *File) list(c yamltree.Chunk, before int) *decoded {
	head, items, ok := c.List()
	if !ok || !isList(head) {
		return nil
	}
	all, now := decoder{file: f.name, count: before + 1}, make(parts, len(items))
	for i, item := range items {
		at, sum := fmt.Sprintf("items[%d]", i), sha256.Sum256(item.Text)
		part := now[sum]
		for _, lists := range [][]parts{f.last.lists, f.older.lists} {
			if part == nil {
				part = known(sum, lists...)
			}
		}
		if part == nil || !part.fits(item.Line, at, all.count) {
			doc := item.Parse()[0]
			if doc.Fault != nil {
				return nil
			}
			d := decoder{file: f.name, count: all.count}
			d.document(doc.Root, at)
			part = &decoded{line: item.Line, at: at, count: d.count - all.count, result: d.Result}
		}
		if !all.add(part, item.Line) {
			return nil
		}
		now[sum] = part
	}
	return &decoded{line: c.Line, count: all.count - before, result: all.Result, items: now}
}

// fits reports whether a chunk at a line and path, which follows a number of objects, is decoded to the same, but
// for the lines of origins. The texts of problems may contain lines, and their fields the path.
func (d *decoded) fits(line int, at string, before int) bool {
	return before+d.count <= yamltree.MaxDocuments && (line == d.line && at == d.at || len(d.result.Problems) == 0)
}

// add appends what a chunk at a line was decoded to. It returns false if there are too many objects, so that the
// result depends on those before it.
func (d *decoder) add(part *decoded, line int) bool {
	d.count += part.count
	objects, skipped, shift := len(d.Objects), len(d.Skipped), line-part.line
	d.Problems = append(d.Problems, part.result.Problems...)
	d.Objects, d.Skipped = append(d.Objects, part.result.Objects...), append(d.Skipped, part.result.Skipped...)
	if shift != 0 {
		for i := range d.Objects[objects:] {
			d.Objects[objects+i].Origin.Line += shift
		}
		for i := range d.Skipped[skipped:] {
			d.Skipped[skipped+i].Origin.Line += shift
		}
	}
	return d.count <= yamltree.MaxDocuments
}
