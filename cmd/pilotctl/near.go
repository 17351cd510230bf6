package main

import (
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/spelling"
)

// maxNear is how many names a message offers.
const maxNear = 3

// near are the names that one who gave another one most likely meant, the likeliest first: those that begin
// with it as a part, such as web-1.shop for web, else those with few other letters.
func near(name string, among []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	most := max(2, len(name)/8)
	var found []candidate
	for _, other := range among {
		switch d := spelling.Distance(strings.ToLower(name), strings.ToLower(other)); {
		case other == name:
		case strings.HasPrefix(other, name+".") || strings.HasPrefix(other, name+"-"):
			found = append(found, candidate{other, 0})
		case samePod(name, other):
			found = append(found, candidate{other, 1}) // in another namespace
		case d <= most && d < len(name):
			found = append(found, candidate{other, d})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		if a.distance != b.distance {
			return a.distance - b.distance
		}
		return strings.Compare(a.name, b.name)
	})
	var out []string
	for _, c := range found {
		if !slices.Contains(out, c.name) && len(out) < maxNear {
			out = append(out, c.name)
		}
	}
	return out
}

// samePod reports whether two names NAME.NAMESPACE differ only in the namespace, or one of them has a set's
// number more.
func samePod(a, b string) bool {
	first, inA, _ := strings.Cut(a, ".")
	second, inB, _ := strings.Cut(b, ".")
	return first == second || inA == inB && strings.HasPrefix(second, first+"-")
}

// didYouMean is a question for the names, to append to a message; empty without names.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + printable.Escape(strings.Join(names, " or ")) + "?"
}
