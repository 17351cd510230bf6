package decode

import (
	"path"

	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Whole is Documents without a memory of earlier texts, and without splitting lists.
func Whole(file string, text []byte) Result {
	d := decoder{file: file}
	for _, c := range yamltree.Split(text, path.Ext(file) == ".json") {
		d.chunk(c)
	}
	if p, some := leftOut(file, d.Skipped); some {
		d.Problems = append(d.Problems, p)
	}
	return d.Result
}
