package compile

import (
	"crypto/sha256"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// The whole route configurations of a mesh are as large as it is, and those of its namespaces differ in a few virtual hosts. So
// the virtual hosts of a scope without base are joined once, and a route configuration consists of parts of that, with what
// the scope has of its own in between (decision 114).

// joinedHosts are the virtual hosts of a route configuration of a scope without base. They are immutable.
type joinedHosts struct {
	// sums has sumSize bytes for each virtual host, which identify it.
	sums []byte
	// hosts are the hosts that have one, sorted, and ends where the virtual host of each ends in fields.
	hosts []string
	ends  []int
	// fields has the virtual hosts as fields of an encoded RouteConfiguration, catchAll that for all other hosts, if there is one.
	fields, catchAll []byte
}

const sumSize = 16

// appendSum appends what identifies a virtual host, encoded as a field.
func appendSum(sums, field []byte) []byte {
	sum := sha256.Sum256(field)
	return append(sums, sum[:sumSize]...)
}

// joinHosts joins the virtual hosts of a route configuration of a scope without base. There are none if it does not exist.
func (c *Compiler) joinHosts(r *incr.Reader, k scopeName) (out joinedHosts) {
	t, ok := c.routesNamed(r, k)
	if !ok {
		return out
	}
	keys := make([]scopeNameHost, len(t.Hosts))
	for i, h := range t.Hosts {
		keys[i] = scopeNameHost{k.scope, k.name, h}
	}
	encoded := c.inner.host.OfAll(r, keys)
	size, n := 0, 0
	for _, b := range encoded {
		if b != nil {
			size += route.HostSize(b)
			n++
		}
	}
	out = joinedHosts{sums: make([]byte, 0, n*sumSize), hosts: make([]string, 0, n), ends: make([]int, 0, n), fields: make([]byte, 0, size)}
	for i, b := range encoded {
		if b == nil {
			continue
		}
		start := len(out.fields)
		out.fields = route.AppendHost(out.fields, b)
		out.sums = appendSum(out.sums, out.fields[start:])
		out.hosts, out.ends = append(out.hosts, t.Hosts[i]), append(out.ends, len(out.fields))
	}
	if !t.Own {
		out.catchAll = route.AppendHost(nil, c.catchAllHost(r, k.scope, k.name, t.Binds))
	}
	return out
}

// part returns the virtual hosts from one index to another, the last not included, and what identifies them.
func (h *joinedHosts) part(from, to int) (fields, sums []byte) {
	start, end := 0, 0
	if from > 0 {
		start = h.ends[from-1]
	}
	if to > 0 {
		end = h.ends[to-1]
	}
	return h.fields[start:end:end], h.sums[from*sumSize : to*sumSize]
}

// common returns what route configurations that are made of these have in common.
func (h *joinedHosts) common() [][]byte { return nonEmpty(h.fields, h.catchAll) }

func nonEmpty(parts ...[]byte) [][]byte {
	return slices.DeleteFunc(parts, func(p []byte) bool { return len(p) == 0 })
}

// joinedRoutes returns a route configuration with all its virtual hosts.
func (c *Compiler) joinedRoutes(r *incr.Reader, k scopeName) Body {
	base, derived := c.model.Base(k.scope)
	if !derived {
		base = k.scope
	}
	theirs := c.inner.joinedHosts.Of(r, scopeName{base, k.name})
	j := routesJoiner{base: &theirs}
	if !derived {
		if _, ok := c.routesNamed(r, k); !ok {
			return Body{}
		}
		j.keep(len(theirs.hosts))
		if len(theirs.catchAll) > 0 {
			j.rest, j.sums = append(j.rest, theirs.catchAll), appendSum(j.sums, theirs.catchAll)
		}
		return j.body(k.name)
	}
	change, ok := c.changeOf(r, k)
	if !ok {
		return Body{}
	}
	own := c.inner.ownDomains.Of(r, k)
	differs := slices.Clone(change.Without)
	keys := make([]scopeNameHost, 0, len(own))
	for _, d := range own {
		if !has(change.Without, d.host) {
			differs = append(differs, d.host)
			keys = append(keys, scopeNameHost{k.scope, k.name, d.host})
		}
	}
	encoded := map[string][]byte{}
	for i, b := range c.inner.host.OfAll(r, keys) {
		encoded[keys[i].host] = b
	}
	for _, host := range sortedSet(differs) {
		i, found := slices.BinarySearch(theirs.hosts, host)
		j.keep(i)
		if found {
			j.leaveOut()
		}
		if b := encoded[host]; b != nil {
			j.add(b)
		}
	}
	j.keep(len(theirs.hosts))
	if len(theirs.catchAll) > 0 {
		j.replaced = append(j.replaced, theirs.catchAll)
	}
	if !change.Own {
		j.add(c.catchAllHost(r, k.scope, k.name, change.Binds))
	}
	return j.body(k.name)
}

// routesJoiner makes a route configuration of another one's virtual hosts and of others, in their order.
type routesJoiner struct {
	base                *joinedHosts
	next                int // the first of base's that has not been kept or left out
	sums                []byte
	rest, replaced, own [][]byte
}

// keep keeps the virtual hosts of the base before an index.
func (j *routesJoiner) keep(to int) {
	if to <= j.next {
		return
	}
	fields, sums := j.base.part(j.next, to)
	j.rest, j.sums, j.next = append(j.rest, fields), append(j.sums, sums...), to
}

// leaveOut leaves out the next virtual host of the base.
func (j *routesJoiner) leaveOut() {
	fields, _ := j.base.part(j.next, j.next+1)
	j.replaced = append(j.replaced, fields)
	j.next++
}

// add adds an encoded virtual host.
func (j *routesJoiner) add(host []byte) {
	field := route.AppendHost(make([]byte, 0, route.HostSize(host)), host)
	j.rest, j.own, j.sums = append(j.rest, field), append(j.own, field), appendSum(j.sums, field)
}

// body returns the route configuration of that name.
func (j *routesJoiner) body(name string) Body {
	frame := route.Frame(name)
	h := sha256.New()
	_, _ = h.Write(marshal.Must(frame)) // one name has one frame, so that it is clear where it ends
	_, _ = h.Write(j.sums)
	out := marshal.Joined{Rest: nonEmpty(j.rest...), Common: j.base.common(), Replaced: j.replaced, Own: j.own}
	copy(out.Sum[:], h.Sum(nil))
	return Body{Joined: marshal.NewJoined(frame, out)}
}
