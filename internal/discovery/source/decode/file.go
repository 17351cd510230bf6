package decode

import (
	"crypto/sha256"
	"path"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// File decodes successive texts of one file. A document of the last two texts is not decoded again: its
// objects have the specs and metadata of the earlier result, which must not be modified, and the lines of
// this text. The result is that of Documents. A File holds the objects of the last two texts. It is not safe
// for concurrent use.
type File struct {
	name        string
	last, older map[[sha256.Size]byte]*decoded
}

// decoded is what a chunk was decoded to.
type decoded struct {
	line   int // of the chunk, at that time
	count  int // of objects, those with problems included
	result Result
}

// NewFile returns the File of a name, which is the file of all origins.
func NewFile(name string) *File { return &File{name: name} }

// Documents parses all documents of the file. See the function of that name.
func (f *File) Documents(text []byte) Result {
	chunks := yamltree.Split(text, path.Ext(f.name) == ".json")
	now := make(map[[sha256.Size]byte]*decoded, len(chunks))
	var all decoder
	all.file = f.name
	all.Objects = make([]object.Object, 0, len(chunks))
	for _, c := range chunks {
		sum := sha256.Sum256(c.Text)
		part := now[sum]
		if part == nil {
			part = f.last[sum]
		}
		if part == nil {
			part = f.older[sum]
		}
		if part == nil || !part.fits(c.Line, all.count) {
			part = decodeChunk(f.name, c, all.count)
		}
		if all.count += part.count; all.count <= yamltree.MaxDocuments {
			now[sum] = part // otherwise it depends on the documents before it
		}
		all.add(part.result, c.Line-part.line)
	}
	f.last, f.older = now, f.last
	if p, some := leftOut(f.name, all.Skipped); some {
		all.Problems = append(all.Problems, p)
	}
	return all.Result
}

// decodeChunk decodes a chunk that follows a number of objects.
func decodeChunk(file string, c yamltree.Chunk, before int) *decoded {
	d := decoder{file: file, count: before}
	d.chunk(c)
	return &decoded{line: c.Line, count: d.count - before, result: d.Result}
}

// fits reports whether a chunk at a line, which follows a number of objects, is decoded to the same, but
// for the lines of origins. The texts of problems may contain lines.
func (d *decoded) fits(line, before int) bool {
	return before+d.count <= yamltree.MaxDocuments && (line == d.line || len(d.result.Problems) == 0)
}

// add appends a result whose lines are less by shift than in this text.
func (r *Result) add(part Result, shift int) {
	r.Problems = append(r.Problems, part.Problems...)
	objects, skipped := len(r.Objects), len(r.Skipped)
	r.Objects, r.Skipped = append(r.Objects, part.Objects...), append(r.Skipped, part.Skipped...)
	if shift == 0 {
		return
	}
	for i := range r.Objects[objects:] {
		r.Objects[objects+i].Origin.Line += shift
	}
	for i := range r.Skipped[skipped:] {
		r.Skipped[skipped+i].Origin.Line += shift
	}
}
