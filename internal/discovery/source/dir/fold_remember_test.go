package dir

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// TestFoldGoesOnFromWhatIsRemembered has the scripts of TestFold in two parts: what was
// in force when discovery ended, and the looks of the one that started then. The first
// batch is everything in force.
func TestFoldGoesOnFromWhatIsRemembered(t *testing.T) {
	for name, script := range map[string]string{
		"unchanged": `
			f: a=1 b=1
			f: a=1 b=1 -> a=1 b=1`,
		"changed while it was down": `
			f: a=1 b=1
			f: a=2 c=1 -> a=2 b=1 c=1 again f
			f: a=2 c=1 -> -b`,
		"a document that is bad": `
			f: a=1 b=1
			f: a! b=2 -> a=1 b=2 1 problems
			f: a=3 b=2 -> a=3 0 problems`,
		"a document that cannot be told": `
			f: a=1 b=1
			f: ? b=2 -> a=1 b=2 1 problems
			f: ? b=2 ->
			f: b=2 -> again f 0 problems
			f: b=2 -> -a`,
		"a file that cannot be read": `
			f: a=1
			f: noread -> a=1 1 problems
			f: a=2 -> a=2 0 problems`,
		"a file that cannot be read, then is gone": `
			f: a=1
			f: noread -> a=1 1 problems
			f: gone -> again f 0 problems
			f: gone -> -a`,
		"a file that is gone": `
			f: a=1; g: b=1
			f: gone; g: b=1 -> a=1 b=1 again f
			f: gone -> -a`,
		"a file that nobody has looked at": `
			f: a=1; g: b=1
			g: b=2 -> a=1 b=2`,
		"moved to another file": `
			f: a=1 b=1
			f: b=1; g: a=2 -> a=2 b=1 again f
			f: b=1 ->`,
		"moved to another file and bad there": `
			f: a=1 b=1
			f: b=1; g: a! -> a=1 b=1 again f 1 problems
			f: b=1 ->
			g: gone -> again g 0 problems
			g: gone -> -a`,
		"another file gives it too": `
			g: a=1
			f: a=2; g: ? -> a=2 2 problems
			f: gone -> a=1 again f 1 problems`,
	} {
		t.Run(name, func(t *testing.T) {
			lines := strings.Split(strings.TrimSpace(script), "\n")
			f := newFold()
			var held []object.Object
			for file := range strings.SplitSeq(lines[0], ";") {
				held = append(held, parseReading(t, file).result.Objects...)
			}
			f.remember(held)
			said := map[string]string{}
			for i, line := range lines[1:] {
				look, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				var readings []reading
				for file := range strings.SplitSeq(look, ";") {
					readings = append(readings, parseReading(t, file))
				}
				batch, again, hold := f.step(readings, nil)
				if i == 0 {
					batch = f.everything()
				}
				if got := written(batch, again, hold, said); !sameWords(got, want) {
					t.Fatalf("%s\ngot %s\nproblems %v", line, got, batch.Problems)
				}
			}
		})
	}
}

// TestABrokenPolicyWithoutANameIsOneThatTheFileHeld: policies are told by name where they
// have one; those without stand for what the file held and does not show any more.
func TestABrokenPolicyWithoutANameIsOneThatTheFileHeld(t *testing.T) {
	const good = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: NAME, namespace: shop}\n---\n"
	const broken = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: [, namespace: shop}\n---\n"
	named := func(n string) string { return strings.ReplaceAll(good, "NAME", n) }
	for name, c := range map[string]struct{ before, after, want string }{
		"one for one":              {named("a") + named("b"), broken + named("b"), "shop/a"},
		"two for one":              {named("a"), broken + broken, "shop/a shop/"},
		"none was held":            {"", broken, "shop/"},
		"all are there":            {named("a"), named("a") + broken, "shop/"},
		"of another namespace":     {strings.ReplaceAll(named("a"), "shop", "other"), broken, "shop/"},
		"one that tells its name":  {named("a"), strings.Replace(named("b"), "}", "", 1), "shop/b"},
		"namespace cannot be told": {named("a"), strings.Replace(broken, "namespace: shop", "", 1), "shop/a"},
	} {
		f := newFold()
		for _, text := range []string{c.before, c.after} {
			f.step([]reading{{path: "f.yaml", result: decode.Documents("f.yaml", []byte(text))}}, nil)
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
