package dir

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Each line of a script is one scan: files and their contents, then "->" and the result. The
// contents are "k=v" for a Service k with value v, "k!" for an invalid one, "?" for a document that
// cannot be identified, "#" for a comment, each a line of its own; "~" if the file is being written
// in place; or only "gone" or "noread". The result is "k=v" or "-k" for changes, "n problems" if the
// list of problems is emitted, and "reread f" and "wait f" for the files that apply returns.
func TestMerger(t *testing.T) {
	for name, script := range map[string]string{
		"add, change, nothing": `
			f: a=1 b=1 -> a=1 b=1
			f: a=2 b=1 -> a=2
			f: a=2 b=1 ->`,
		"a document is removed after the second reading": `
			f: a=1 b=1 -> a=1 b=1
			f: a=1 -> reread f
			f: a=1 -> -b`,
		"truncate, then write": `
			f: a=1 b=1 -> a=1 b=1
			f: -> reread f
			f: a=1 b=2 -> b=2
			f: -> reread f
			f: -> -a -b`,
		"a deleted file": `
			f: a=1 -> a=1
			f: gone -> reread f
			f: gone -> -a`,
		"an invalid document keeps its last good value": `
			f: a=1 b=1 -> a=1 b=1
			f: a! b=2 -> b=2 1 problems
			f: a! b=2 ->
			f: a=3 b=2 -> a=3 0 problems`,
		"an invalid document that is removed": `
			f: a=1 b=1 -> a=1 b=1
			f: a! b=1 -> 1 problems
			f: b=1 -> reread f 0 problems
			f: b=1 -> -a`,
		"an unidentified document keeps all missing objects": `
			f: a=1 b=1 -> a=1 b=1
			f: ? a=1 -> 1 problems
			f: ? a=1 ->
			f: a=1 -> reread f 0 problems
			f: a=1 -> -b`,
		"a reading that does not parse does not confirm": `
			f: a=1 b=1 -> a=1 b=1
			f: a=1 -> reread f
			f: ? -> 1 problems
			f: b=1 a=1 -> 0 problems`,
		"an unreadable file keeps its objects": `
			f: a=1 -> a=1
			f: noread -> 1 problems
			f: a=2 -> a=2 0 problems`,
		"never valid": `
			f: a! -> 1 problems
			f: gone -> 0 problems reread f
			f: gone ->`,
		"the first file has priority": `
			g: a=2 -> a=2
			f: a=1 -> a=1 1 problems
			f: gone -> a=2 0 problems reread f
			f: gone ->`,
		"the first position has priority": `
			f: a=1 a=2 -> a=1 1 problems
			f: a=2 a=1 -> a=2`,
		"an invalid first file does not hide a valid second one": `
			f: a! -> 1 problems
			g: a=1 -> a=1 2 problems
			f: a=2 -> a=2 1 problems`,
		"moved to another file in one scan": `
			f: a=1 b=1 -> a=1 b=1
			f: b=1; g: a=1 -> a=1 reread f
			f: b=1 ->`,
		"moved to an earlier file": `
			g: a=1 -> a=1
			g: gone; f: a=1 -> a=1 reread g
			g: gone ->`,
		"rewritten in place, at once": `
			f: # a=1 b=1 -> a=1 b=1
			f: ~ a=2 b=2 -> a=2 b=2`,
		"a document removed in place": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ # a=1 -> wait f
			f: a=1 -> reread f
			f: a=1 -> -b`,
		"truncated, then written line by line": `
			f: # # a=1 b=1 c=1 -> a=1 b=1 c=1
			f: ~ -> wait f
			f: ~ # -> wait f
			f: ~ # a=2 -> wait f
			f: ~ # a=2 b=2 -> wait f
			f: ~ # a=2 b=2 c=1 -> a=2 b=2`,
		"the last document may be truncated": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ a=2 b=2 -> wait f
			f: # a=2 b=2 -> a=2 b=2`,
		"documents before the last one are complete": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ a=2 b=1 -> a=2`,
		"truncated so that it does not parse": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ a=2 ? -> wait f
			f: a=2 ? -> a=2 1 problems`,
		"longer than before, but incomplete": `
			f: # a=1 b=1 -> a=1 b=1
			f: ~ -> wait f
			f: ~ a=2 c=1 d=1 -> wait f
			f: ~ a=2 c=1 d=1 b=1 -> a=2 c=1 d=1`,
		"shorter than before, then gone": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ # a=1 -> wait f
			f: gone -> reread f
			f: gone -> -a -b`,
		"longer in place, with an object missing": `
			f: a=1 b=1 -> a=1 b=1
			f: ~ a=2 c=1 # -> a=2 c=1 wait f
			f: ~ a=2 c=1 # -> wait f
			f: a=2 c=1 # -> -b`,
		"longer in place": `
			f: # a=1 b=1 -> a=1 b=1
			f: ~ # a=1 b=1 c=1 -> c=1`,
		"in place, moved to another file": `
			f: # # a=1 b=1 -> a=1 b=1
			f: ~ # # a=1; g: b=2 -> b=2 wait f
			f: # # a=1 ->`,
		"a file without objects": `
			f: # # ->
			f: ~ ->`,
	} {
		t.Run(name, func(t *testing.T) {
			f, previous := newMerger(), map[string]string{}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				scan, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				var readings []reading
				for file := range strings.SplitSeq(scan, ";") {
					readings = append(readings, parseReading(t, file))
				}
				batch, reread, wait := f.apply(readings, nil)
				if got := describe(batch, reread, wait, previous); !sameWords(got, want) {
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
			r.beingWritten = true
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

// describe formats the result of a scan, without changes that differ from the previous ones in the
// line only.
func describe(b object.Batch, reread, wait []string, previous map[string]string) string {
	var out []string
	for _, c := range b.Changes {
		word, at := "-"+c.Key.Name, ""
		if c.Object != nil {
			word, at = c.Key.Name+"="+c.Object.Spec.(*object.ServiceSpec).Type, c.Object.Origin.File
		}
		if previous[c.Key.Name] != word+at {
			out = append(out, word)
		}
		previous[c.Key.Name] = word + at
	}
	if b.Problems != nil {
		out = append(out, fmt.Sprintf("%d problems", len(b.Problems)))
	}
	for _, path := range reread {
		out = append(out, "reread "+path)
	}
	for _, path := range wait {
		out = append(out, "wait "+path)
	}
	return strings.Join(out, " ")
}

// sameWords compares without regard to order.
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

func TestDuplicate(t *testing.T) {
	const text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
	f := newMerger()
	batch, _, _ := f.apply([]reading{
		{path: "x.yaml", result: decode.Documents("x.yaml", []byte(text))},
		{path: "y.yaml", result: decode.Documents("y.yaml", []byte("---\n"+text))},
	}, nil)
	if len(batch.Problems) != 1 || batch.Problems[0].Error() != "y.yaml:2: Namespace a: duplicate of the object at x.yaml:1, which is in force; remove one of them" {
		t.Errorf("problems %v", batch.Problems)
	}
}

func TestOrderOfChanges(t *testing.T) {
	f := newMerger()
	batch, _, _ := f.apply([]reading{{path: "f", result: decode.Result{Objects: []object.Object{
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

// The first line of a script is what was in force before the restart, the others are scans after
// it, as in TestMerger. The result of the first scan is everything in force.
func TestRestore(t *testing.T) {
	for name, script := range map[string]string{
		"unchanged": `
			f: a=1 b=1
			f: a=1 b=1 -> a=1 b=1`,
		"changed before the restart": `
			f: a=1 b=1
			f: a=2 c=1 -> a=2 b=1 c=1 reread f
			f: a=2 c=1 -> -b`,
		"an invalid document": `
			f: a=1 b=1
			f: a! b=2 -> a=1 b=2 1 problems
			f: a=3 b=2 -> a=3 0 problems`,
		"an unidentified document": `
			f: a=1 b=1
			f: ? b=2 -> a=1 b=2 1 problems
			f: ? b=2 ->
			f: b=2 -> reread f 0 problems
			f: b=2 -> -a`,
		"a file that cannot be read": `
			f: a=1
			f: noread -> a=1 1 problems
			f: a=2 -> a=2 0 problems`,
		"a file that cannot be read, then is gone": `
			f: a=1
			f: noread -> a=1 1 problems
			f: gone -> reread f 0 problems
			f: gone -> -a`,
		"a file that is gone": `
			f: a=1; g: b=1
			f: gone; g: b=1 -> a=1 b=1 reread f
			f: gone -> -a`,
		"a file that has not been read yet": `
			f: a=1; g: b=1
			g: b=2 -> a=1 b=2`,
		"moved to another file": `
			f: a=1 b=1
			f: b=1; g: a=2 -> a=2 b=1 reread f
			f: b=1 ->`,
		"moved to another file and invalid there": `
			f: a=1 b=1
			f: b=1; g: a! -> a=1 b=1 reread f 1 problems
			f: b=1 ->
			g: gone -> reread g 0 problems
			g: gone -> -a`,
		"another file defines it too": `
			g: a=1
			f: a=2; g: ? -> a=2 2 problems
			f: gone -> a=1 reread f 1 problems`,
	} {
		t.Run(name, func(t *testing.T) {
			lines := strings.Split(strings.TrimSpace(script), "\n")
			f := newMerger()
			var restored []object.Object
			for file := range strings.SplitSeq(lines[0], ";") {
				restored = append(restored, parseReading(t, file).result.Objects...)
			}
			f.restore(restored)
			previous := map[string]string{}
			for i, line := range lines[1:] {
				scan, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				var readings []reading
				for file := range strings.SplitSeq(scan, ";") {
					readings = append(readings, parseReading(t, file))
				}
				batch, reread, wait := f.apply(readings, nil)
				if i == 0 {
					batch = f.snapshot()
				}
				if got := describe(batch, reread, wait, previous); !sameWords(got, want) {
					t.Fatalf("%s\ngot %s\nproblems %v", line, got, batch.Problems)
				}
			}
		})
	}
}

// A broken policy without a name gets the key of a policy of the file that is missing now.
func TestKeysOfBrokenPolicies(t *testing.T) {
	const good = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: NAME, namespace: shop}\n---\n"
	const broken = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: [, namespace: shop}\n---\n"
	named := func(n string) string { return strings.ReplaceAll(good, "NAME", n) }
	for name, c := range map[string]struct{ before, after, want string }{
		"one for one":          {named("a") + named("b"), broken + named("b"), "shop/a"},
		"two for one":          {named("a"), broken + broken, "shop/a shop/"},
		"no policy before":     {"", broken, "shop/"},
		"none is missing":      {named("a"), named("a") + broken, "shop/"},
		"of another namespace": {strings.ReplaceAll(named("a"), "shop", "other"), broken, "shop/"},
		"a known name":         {named("a"), strings.Replace(named("b"), "}", "", 1), "shop/b"},
		"unknown namespace":    {named("a"), strings.Replace(broken, "namespace: shop", "", 1), "shop/a"},
	} {
		f := newMerger()
		for _, text := range []string{c.before, c.after} {
			f.apply([]reading{{path: "f.yaml", result: decode.Documents("f.yaml", []byte(text))}}, nil)
		}
		got := ""
		for _, p := range f.problems {
			got += " " + p.Policy.Key.Namespace + "/" + p.Policy.Key.Name
		}
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
