package xds

import "slices"

// names is an immutable sorted set of resource names.
type names []string

func (n names) has(name string) bool {
	_, ok := slices.BinarySearch(n, name)
	return ok
}

// with is the set with add put in and drop taken out.
func (n names) with(add, drop []string) names {
	if len(add) == 0 && len(drop) == 0 {
		return n
	}
	out := make(names, 0, len(n)+len(add))
	out = append(append(out, n...), add...)
	slices.Sort(out)
	out = slices.Compact(out)
	if len(drop) > 0 {
		drop = slices.Sorted(slices.Values(drop))
		out = slices.DeleteFunc(out, names(drop).has)
	}
	return slices.Clip(out)
}

// holdsAll says whether every name of o is in n.
func (n names) holdsAll(o []string) bool {
	for _, name := range o {
		if !n.has(name) {
			return false
		}
	}
	return true
}
