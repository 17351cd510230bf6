package xds

import "slices"

// virtualHostDomains is where a virtual host names its domains.
var virtualHostDomains = inMessage(wireFields{2: nameField})

// domains are those of a virtual host; nil if its content is not known.
func (r *Resource) domains() (list []string) {
	if _, value, ok := unpack(r.Body); !ok || !virtualHostDomains.find(value, &list) {
		return nil
	}
	return list
}

// domainOf is a domain of a route configuration.
type domainOf struct{ routes, domain string }

// move says that a virtual host takes a domain, which another one has until it is changed or removed. Both are names.
type move struct{ from, to string }

// moves are the domains that move between virtual hosts of the client with the step to the view. Of what it only claims
// to have the domains are not known, so that each of the others may be among them.
func (c *typeState) moves(upserts, removed []*Resource) (out []move) {
	from := map[domainOf]string{}
	unknown := map[string][]string{}
	note := func(old *Resource) {
		routes := routesOf(old.Name)
		if old.Body == nil {
			unknown[routes] = append(unknown[routes], old.Name)
		}
		for _, d := range old.domains() {
			from[domainOf{routes, d}] = old.Name
		}
	}
	for _, r := range upserts {
		if old := c.get(r.Name); old != nil {
			note(old)
		}
	}
	for _, old := range removed {
		note(old)
	}
	if len(from)+len(unknown) == 0 {
		return nil // nobody has had a domain; there may be thousands of new ones
	}
	for _, r := range upserts {
		routes := routesOf(r.Name)
		for _, d := range r.domains() {
			if n, ok := from[domainOf{routes, d}]; ok && n != r.Name {
				out = append(out, move{n, r.Name})
			}
		}
		for _, n := range unknown[routes] {
			if n != r.Name {
				out = append(out, move{n, r.Name})
			}
		}
	}
	return out
}

// holdTogether withholds virtual hosts that a domain moves between until all of them may be sent: Envoy refuses two with
// the same domain, and would find none for requests between the end of one and the start of another. It returns those of
// removed that stay meanwhile. What loses a domain does not wait for what was refused. [envoy V5]
func (c *typeState) holdTogether(upserts, removed []*Resource, withheld map[string]*Resource) (stay []*Resource) {
	if len(withheld) == 0 || c.bisection != nil {
		return nil
	}
	moves := c.moves(upserts, removed)
	waits := map[string]bool{} // the names of what is not withheld because it was refused
	for n := range withheld {
		if i, ok := slices.BinarySearchFunc(upserts, n, byName); ok && !c.refuses(upserts[i]) {
			waits[n] = true
		}
	}
	withhold := func(n string) {
		waits[n] = true
		if i, ok := slices.BinarySearchFunc(removed, n, byName); ok {
			stay = append(stay, removed[i])
		} else {
			withheld[n] = c.get(n)
		}
	}
	has := func(n string) bool { _, ok := withheld[n]; return ok || hasResource(stay, n) }
	for before := -1; before != len(withheld)+len(stay); {
		before = len(withheld) + len(stay)
		for _, m := range moves {
			if has(m.from) && !has(m.to) && (waits[m.from] || !c.claimed(m.from)) {
				withhold(m.to)
			}
			if waits[m.to] && !has(m.from) && !c.claimed(m.from) {
				withhold(m.from)
				slices.SortFunc(stay, order)
			}
		}
	}
	return stay
}

// claimed says whether the client only claims to have what it has under a name, so that its content is not known.
func (c *typeState) claimed(name string) bool {
	r := c.get(name)
	return r != nil && r.Body == nil
}

// forgiveTakers has virtual hosts tried again that were refused while another had one of their domains, which that has
// given up with a response. Envoy does not say which it refuses, so that the two may have been tried one by one.
func (c *typeState) forgiveTakers(f *flight) {
	lost := map[domainOf]bool{}
	note := func(old *Resource, now []string) {
		for _, d := range old.domains() {
			if !slices.Contains(now, d) {
				lost[domainOf{routesOf(old.Name), d}] = true
			}
		}
	}
	for _, r := range f.upserts() {
		if old := f.before(r.Name); old != nil {
			note(old, r.domains())
		}
	}
	for _, old := range f.gone {
		note(old, nil)
	}
	for n, x := range c.refused {
		if slices.ContainsFunc(x.resource.domains(), func(d string) bool { return lost[domainOf{routesOf(n), d}] }) {
			delete(c.refused, n)
		}
	}
}
