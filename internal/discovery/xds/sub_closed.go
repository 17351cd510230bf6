package xds

import "maps"

// closedListener is a listener that closes every connection, in place of one that the client refuses
// while it has an older version that accepts more.
type closedListener struct{ refused, instead *Resource }

// close has the client sent a listener that accepts nothing, in place of one that it refuses.
func (c *typeState) close(r *Resource) {
	closed := maps.Clone(c.closed)
	if closed == nil {
		closed = map[string]closedListener{}
	}
	closed[r.Name] = closedListener{refused: r, instead: r.Closed}
	c.closed, c.target = closed, closedView{}
}

// reopen ends that.
func (c *typeState) reopen(name string) {
	if _, ok := c.closed[name]; ok {
		c.closed = maps.Clone(c.closed)
		delete(c.closed, name)
		c.target = closedView{}
	}
}

// closedView is a view with the listeners in it that take the place of others.
type closedView struct{ view, target TypeView }

// wanted is what the client shall have of a type: what the view has, but for listeners that are closed.
func (s *Sub) wanted(t Type) TypeView {
	c := &s.states[t]
	view := s.target(t)
	if len(c.closed) == 0 {
		return view
	}
	if c.target.view != view {
		c.target = closedView{view: view, target: view}
		for n, l := range c.closed {
			for i, part := range view.parts {
				if part.get(n) == l.refused {
					c.target.target.parts[i] = part.with([]*Resource{l.instead}, nil)
				}
			}
		}
	}
	return c.target.target
}
