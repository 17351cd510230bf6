package admit

import (
	"cmp"
	"path"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Text is what was found in one text of objects.
type Text struct {
	// Problems are those of all objects, in the order of the text. Origin is the line of the field, or that of
	// the closest one around it that is in the text.
	Problems []object.Problem
	// Objects are those that were read, those with invalid fields included.
	Objects []object.Object
	// Skipped is how many objects are of kinds that the mesh does not use.
	Skipped int
}

// Documents validates all documents of a file: JSON if its name ends in ".json", otherwise YAML. Errors are
// what the control plane rejects, whether it reads the objects from a file or from the API server.
func Documents(file string, text []byte) Text {
	r := decode.Documents(file, text)
	out := Text{Objects: r.Objects, Skipped: len(r.Skipped)}
	for _, p := range r.Problems {
		if p.Severity != object.Info {
			out.Problems = append(out.Problems, p)
		}
	}
	lines := places{}
	for _, o := range r.Objects {
		verdicts := config.Validate(o)
		if len(verdicts) > 0 && len(lines) == 0 {
			for _, d := range yamltree.Parse(text, path.Ext(file) == ".json") {
				lines.add(d.Root)
			}
		}
		for _, v := range verdicts {
			v.Origin.Line = lines.of(o.Origin.Line, v.Field)
			out.Problems = append(out.Problems, v)
		}
	}
	slices.SortStableFunc(out.Problems, func(a, b object.Problem) int { return cmp.Compare(a.Origin.Line, b.Origin.Line) })
	return out
}

// Lines returns the lines of fields in the text of a file: that of a field of the object that begins at a line, or of the
// closest one around it that is in the text. If no object of this name begins there, it is the line itself.
func Lines(file string, text []byte) func(k object.Key, line int, field string) int {
	lines := places{}
	for _, d := range yamltree.Parse(text, path.Ext(file) == ".json") {
		lines.add(d.Root)
	}
	return func(k object.Key, line int, field string) int {
		if lines[line].Get("metadata").Get("name").Str() != k.Name {
			return line
		}
		return lines.of(line, field)
	}
}

// places are the objects of a text by their lines; empty where several begin in one line.
type places map[int]*yamltree.Tree

// add adds an object, or those of a list.
func (p places) add(t *yamltree.Tree) {
	if t == nil {
		return
	}
	if items := t.Get("items"); items != nil && t.Get("kind").Str() == "List" {
		for _, i := range items.Items {
			p.add(i)
		}
		return
	}
	if _, twice := p[t.Line]; twice {
		t = &yamltree.Tree{Line: t.Line}
	}
	p[t.Line] = t
}

// of returns the line of a field of the object at a line.
func (p places) of(line int, field string) int {
	if t := p[line]; t != nil {
		if steps, _ := resolve(t, field); len(steps) > 0 {
			return steps[len(steps)-1].line
		}
	}
	return line
}
