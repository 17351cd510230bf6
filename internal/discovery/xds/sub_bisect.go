package xds

import "slices"

// maxTries bounds the responses that are sent to find out which resources of one were refused.
const maxTries = 64

// bisection looks for the resources that a client refuses without naming them: what was in the
// response is sent in halves, and what is refused in halves again, until one resource is left. The
// others get in meanwhile.
type bisection struct {
	groups [][]string // names; the last group is tried next
	tries  int
	trial  uint64 // the number of the response with the group that is being tried
}

// tries says whether a resource may be sent: while there is a bisection, only those of its next group.
func (c *typeState) tries(name string) bool {
	b := c.bisection
	return b == nil || slices.Contains(b.groups[len(b.groups)-1], name)
}

// bisect has the resources of a refused response tried in two halves; false if there is nothing to be
// divided, or it takes too long: all of them count as refused then. again says that it was itself
// a part of another one.
func (c *typeState) bisect(f *flight, suspects []*Resource) (again, ok bool) {
	b := c.bisection
	again = b != nil
	if again && f.seq != b.trial {
		return false, false
	}
	b.finished(c, f)
	if len(suspects) < 2 || again && b.tries >= maxTries {
		if again && b.tries >= maxTries {
			c.bisection = nil
		}
		return false, false
	}
	if !again {
		b = &bisection{}
	}
	var list []string
	for _, u := range suspects {
		list = append(list, u.Name)
		c.keepOld(f, u)
	}
	half := (len(list) + 1) / 2
	b.groups = append(b.groups, list[half:], list[:half])
	b.tries++
	c.bisection = b
	c.forced = c.forced.with(newNameSet(f.removed, 0), nil) // nobody knows whether they were taken
	return again, true
}

// finished ends the trial of the last group if the response was that.
func (b *bisection) finished(c *typeState, f *flight) {
	if b == nil || f.seq != b.trial || len(b.groups) == 0 {
		return
	}
	if b.groups = b.groups[:len(b.groups)-1]; len(b.groups) == 0 {
		c.bisection = nil
	}
}

// prune ends a bisection's groups of which nothing is to be sent any more.
func (c *typeState) prune(upserts []*Resource) {
	for b := c.bisection; b != nil; {
		last := len(b.groups) - 1
		if slices.ContainsFunc(b.groups[last], func(n string) bool {
			i, ok := slices.BinarySearchFunc(upserts, n, byName)
			return ok && c.has(n) && !c.refuses(upserts[i])
		}) {
			return
		}
		if b.groups = b.groups[:last]; last == 0 {
			c.bisection = nil
			return
		}
	}
}

// suspects are the resources of a response that may be what was refused.
func (f *flight) suspects(delta bool) []*Resource {
	if !delta {
		// The others are in it because it has to be complete.
		if list := slices.DeleteFunc(slices.Clone(f.upserts()), func(r *Resource) bool { return !f.changes(r) }); len(list) > 0 {
			return list
		}
	}
	return f.upserts()
}
