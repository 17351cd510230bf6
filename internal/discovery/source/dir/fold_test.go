package dir

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Each line of a script is one look: files and what they hold, then "->" and what
// follows. A file holds "k=v" for a Service k whose value is v, "k!" for one that is bad,
// "?" for a document that cannot be told; "gone" and "noread" are what they say. Each is
// a line; "~" says that the file was written to in place and is not still, and "#" is a
// line of comment. What follows is "k=v" or "-k" for changes, "n problems" where their
// list is emitted, "again f" where a second look is asked for, and "hold f" where one is
// once the file has been still.
func TestFold(t *testing.T) {
	for name, script := range map[string]string{
		"add, change, nothing": `
			f: a=1 b=1 -> a=1 b=1
			f: a=2 b=1 -> a=2
			f: a=2 b=1 ->`,
		"a document goes after a second look": `
			f: a=1 b=1 -> a=1 b=1
			f: a=1 -> again f
			f: a=1 -> -b`,
		"truncate, then write": `
			f: a=1 b=1 -> a=1 b=1
			f: -> again f
			f: a=1 b=2 -> b=2
			f: -> again f
			f: -> -a -b`,
		"a deleted file": `
			f: a=1 -> a=1
			f: gone -> again f
			f: gone -> -a`,
		"a bad document keeps its last good value": `
			f: a=1 b=1 -> a=1 b=1
			f: a! b=2 -> b=2 1 problems
			f: a! b=2 ->
			f: a=3 b=2 -> a=3 0 problems`,
		"a bad document that is removed": `
			f: a=1 b=1 -> a=1 b=1
			f: a! b=1 -> 1 problems
			f: b=1 -> again f 0 problems
			f: b=1 -> -a`,
		"a document that cannot be told keeps all that is missing": `
			f: a=1 b=1 -> a=1 b=1
			f: ? a=1 -> 1 problems
			f: ? a=1 ->
			f: a=1 -> again f 0 problems
			f: a=1 -> -b`,
		"doubt survives a broken look": `
			f: a=1 b=1 -> a=1 b=1
			f: a=1 -> again f
			f: ? -> 1 problems
			f: b=1 a=1 -> 0 problems`,
		"an unreadable file holds what it held": `
			f: a=1 -> a=1
			f: noread -> 1 problems
			f: a=2 -> a=2 0 problems`,
		"never good": `
			f: a! -> 1 problems
			f: gone -> 0 problems again f
			f: gone ->`,
		"the first file counts": `
			g: a=2 -> a=2
			f: a=1 -> a=1 1 problems
			f: gone -> a=2 0 problems again f
			f: gone ->`,
		"the first position counts": `
			f: a=1 a=2 -> a=1 1 problems
			f: a=2 a=1 -> a=2`,
		"a bad first does not hide a good second": `
			f: a! -> 1 problems
			g: a=1 -> a=1 2 problems
			f: a=2 -> a=2 1 problems`,
		"moved to another file in one look": `
			f: a=1 b=1 -> a=1 b=1
			f: b=1; g: a=1 -> a=1 again f
			f: b=1 ->`,
		"moved to an earlier file": `
			g: a=1 -> a=1
			g: gone; f: a=1 -> a=1 again g
			g: gone ->`,
		"rewritten in place, at once": `
			f: # a=1 b=1 -> a=1 b=1
			f: ~ a=2 b=2 -> a=2 b=2`,
		"a document lost in place goes when the file has been still": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ # a=1 -> hold f
			f: a=1 -> again f
			f: a=1 -> -b`,
		"truncated, then written line by line": `
			f: # # a=1 b=1 c=1 -> a=1 b=1 c=1
			f: ~ -> hold f
			f: ~ # -> hold f
			f: ~ # a=2 -> hold f
			f: ~ # a=2 b=2 -> hold f
			f: ~ # a=2 b=2 c=1 -> a=2 b=2`,
		"the last document may break off": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ a=2 b=2 -> hold f
			f: # a=2 b=2 -> a=2 b=2`,
		"documents before the last do not": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ a=2 b=1 -> a=2`,
		"broken off so that it does not parse": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ a=2 ? -> hold f
			f: a=2 ? -> a=2 1 problems`,
		"no longer shorter than before, but not whole": `
			f: # a=1 b=1 -> a=1 b=1
			f: ~ -> hold f
			f: ~ a=2 c=1 d=1 -> hold f
			f: ~ a=2 c=1 d=1 b=1 -> a=2 c=1 d=1`,
		"shorter than before, then gone": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ # a=1 -> hold f
			f: gone -> again f
			f: gone -> -a -b`,
		"grown in place, with an object less": `
			f: a=1 b=1 -> a=1 b=1
			f: ~ a=2 c=1 # -> a=2 c=1 hold f
			f: ~ a=2 c=1 # -> hold f
			f: a=2 c=1 # -> -b`,
		"grown in place": `
			f: # a=1 b=1 -> a=1 b=1
			f: ~ # a=1 b=1 c=1 -> c=1`,
		"in place, moved to another file": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ # # a=1; g: b=2 -> b=2 hold f
			f: # # a=1 ->`,
		"a file that held nothing": `
			f: # # ->
			f: ~ ->`,
	} {
		t.Run(name, func(t *testing.T) {
			f, said := newFold(), map[string]string{}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				look, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				var readings []reading
				for file := range strings.SplitSeq(look, ";") {
					readings = append(readings, parseReading(t, file))
				}
				batch, again, hold := f.step(readings, nil)
				if got := written(batch, again, hold, said); !sameWords(got, want) {
					t.Fatalf("%s\ngot %s\nproblems %v", line, got, batch.Problems)
				}
			}
		})
	}
}

func parseReading(t *testing.T, text string) reading {
	name, holds, ok := strings.Cut(strings.TrimSpace(text), ":")
	if !ok {
		t.Fatalf("no file in %q", text)
	}
	r := reading{path: name}
	for i, w := range strings.Fields(holds) {
		at := object.Origin{File: name, Line: i + 1}
		key := object.Key{Kind: object.Service, Namespace: "n", Name: w[:1]}
		switch {
		case w == "~":
			r.unfinished = true
		case w == "#":
		case w == "gone":
			r.gone = true
		case w == "noread":
			r.unreadable = "permission denied"
		case w == "?":
			r.result.Problems = append(r.result.Problems, object.Problem{Origin: at, Text: "no parse"})
		case w[1] == '!':
			r.result.Problems = append(r.result.Problems, object.Problem{Origin: at, Key: key, Text: "bad"})
		default:
			o := object.Object{Key: key, Spec: &object.ServiceSpec{Type: w[2:]}, Origin: at}
			r.result.Objects = append(r.result.Objects, o)
		}
	}
	r.text = extent{bytes: 10 * len(strings.Fields(holds)), lines: len(strings.Fields(holds))}
	return r
}

// written leaves out changes that say the same as before on another line.
func written(b object.Batch, again, hold []string, said map[string]string) string {
	var out []string
	for _, c := range b.Changes {
		word, at := "-"+c.Key.Name, ""
		if c.Object != nil {
			word, at = c.Key.Name+"="+c.Object.Spec.(*object.ServiceSpec).Type, c.Object.Origin.File
		}
		if said[c.Key.Name] != word+at {
			out = append(out, word)
		}
		said[c.Key.Name] = word + at
	}
	if b.Problems != nil {
		out = append(out, fmt.Sprintf("%d problems", len(b.Problems)))
	}
	for _, path := range again {
		out = append(out, "again "+path)
	}
	for _, path := range hold {
		out = append(out, "hold "+path)
	}
	return strings.Join(out, " ")
}

// sameWords compares without regard to where "again" stands.
func sameWords(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	count := map[string]int{}
	for _, w := range x {
		count[w]++
	}
	for _, w := range y {
		count[w]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return len(x) == len(y)
}

func TestDuplicateNamesBothPlaces(t *testing.T) {
	const text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
	f := newFold()
	batch, _, _ := f.step([]reading{
		{path: "x.yaml", result: decode.Documents("x.yaml", []byte(text))},
		{path: "y.yaml", result: decode.Documents("y.yaml", []byte("---\n"+text))},
	}, nil)
	if len(batch.Problems) != 1 || batch.Problems[0].Error() != "y.yaml:2: Namespace a: the same object is given at x.yaml:1, which counts; remove one of them" {
		t.Errorf("problems %v", batch.Problems)
	}
}

func TestOrderOfChanges(t *testing.T) {
	f := newFold()
	batch, _, _ := f.step([]reading{{path: "f", result: decode.Result{Objects: []object.Object{
		{Key: object.Key{Kind: object.Gateway, Namespace: "a", Name: "a"}},
		{Key: object.Key{Kind: object.Pod, Namespace: "b", Name: "a"}},
		{Key: object.Key{Kind: object.Pod, Namespace: "a", Name: "z"}},
		{Key: object.Key{Kind: object.Namespace, Name: "z"}},
	}}}}, nil)
	var got []string
	for _, c := range batch.Changes {
		got = append(got, c.Key.String())
	}
	if want := "[Namespace z Pod a/z Pod b/a Gateway a/a]"; fmt.Sprint(got) != want {
		t.Errorf("order %v, want %s", got, want)
	}
}
