package xds

import (
	"slices"
	"strings"
	"time"
)

// A listener that could not be bound is sent again, after firstRetry, twice that and so on,
// but at least every lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// rejection is what is known of a resource that was NACKed.
type rejection struct {
	version string
	// tries counts how often the version was refused because it could not be bound.
	tries int
	// next is when it is sent again; zero for never. retried: that time has come.
	next    time.Time
	retried bool
	// resource is what was refused, and text what the client says of it.
	resource *Resource
	text     string
	// after is the generation of the last response that was accepted before, generation its own.
	after, generation uint64
}

// refuses says whether a resource is not to be sent since the client has refused it.
func (c *typeState) refuses(r *Resource) bool {
	f, ok := c.refused[r.Name]
	return ok && f.version == r.Version && !f.retried
}

// maxReason bounds what is kept of what a client says of a resource, in bytes.
const maxReason = 500

// cannotBind is what Envoy says of a listener whose address it could not bind, as in
// "virtualOutbound: cannot bind '0.0.0.0:15001': Address already in use". Nothing is wrong
// with such a listener: the address may be free, local or permitted later.
const cannotBind = "cannot bind"

// nacked handles the refusal of a response. The client goes on with what it had of each refused
// resource, and is not sent it again before it changes. Where the message names none, the response
// is sent again in parts.
func (s *Sub) nacked(c *typeState, r Request, f *flight) {
	named := blame(f.upserts(), r.Message)
	e := Nacked{Type: r.Type, Nonce: f.nonce, Message: r.Message}
	if len(named) == 0 {
		suspects := f.suspects(s.delta)
		if again, ok := c.bisect(f, suspects); ok {
			e.Again = again
			s.emit(e)
			return
		}
		for _, u := range suspects {
			named = append(named, blamed{resource: u, text: r.Message})
		}
	} else {
		c.bisection.finished(c, f)
	}
	e.Again = len(named) > 0
	for _, b := range named {
		e.Names = append(e.Names, b.resource.Name)
		if !f.changes(b.resource) && !s.awaited(b.resource) {
			continue // it has accepted the very same before, and goes on with it
		}
		if again := c.keepOld(f, b.resource); again != nil || c.forced.has(b.resource.Name) {
			if again != nil && r.Type == CDS {
				s.clusterSentAgain(b.resource, again)
			}
			e.Again = false
			continue // it is tried again in any case
		}
		if now := s.wanted(r.Type).Get(b.resource.Name); now == nil || !same(now, b.resource) {
			e.Again = false
			continue // the view is another one by now
		}
		bind := types[r.Type].retried && strings.Contains(b.text, cannotBind)
		e.Again = s.refuse(c, b, bind, f.generation) && e.Again
		if instead := InPlaceOf(b.resource, c.get(b.resource.Name)); !bind && instead != nil && instead == b.resource.Closed {
			c.close(b.resource)
		}
	}
	for _, u := range f.upserts() {
		if c.refused[u.Name].version == u.Version && !slices.Contains(e.Names, u.Name) {
			delete(c.refused, u.Name) // of several, Envoy names all that it refuses
		}
	}
	s.emit(e)
}

// refuse notes that the client refused a resource, and says whether it had done so before.
func (s *Sub) refuse(c *typeState, b blamed, bind bool, generation uint64) (again bool) {
	r := b.resource
	old, again := c.refused[r.Name]
	again = again && old.version == r.Version
	now := rejection{version: r.Version, resource: r, text: strings.Clone(b.text[:min(len(b.text), maxReason)]), after: c.accepted, generation: generation}
	if bind {
		if again {
			now.tries = old.tries
		}
		now.next = s.now.Add(min(firstRetry<<min(now.tries, 10), lastRetry))
		now.tries++
	}
	if c.refused == nil {
		c.refused = map[string]rejection{}
	}
	c.refused[r.Name] = now
	return again
}

// forgetRefused forgets the refusals of what the view has in another version now.
func (s *Sub) forgetRefused() {
	for t := range numTypes {
		c := &s.states[t]
		if len(c.refused) == 0 {
			continue
		}
		for n, f := range c.refused {
			r := s.cur.Of(t).Get(n)
			if l, ok := c.closed[n]; ok && r != nil && r == l.refused {
				continue
			}
			c.reopen(n)
			if r == nil || r.Version != f.version {
				delete(c.refused, n)
			}
		}
		if len(c.refused) == 0 {
			s.emit(Unrefused{Type: t})
		}
	}
}

// retry has the resources sent again whose time has come, and returns when the next one's
// comes, zero for never.
func (s *Sub) retry() (next time.Time) {
	for t := range numTypes {
		if !types[t].retried {
			continue
		}
		c := &s.states[t]
		for n, f := range c.refused {
			switch {
			case f.next.IsZero() || f.retried:
			case s.now.Before(f.next):
				next = sooner(next, f.next)
			default:
				f.retried = true
				c.refused[n] = f
			}
		}
	}
	return next
}

// blamed is a resource that an error message names, and what the message says of it.
type blamed struct {
	resource *Resource
	at       int
	text     string
}

// blame finds the resources that an error message names. Envoy's has a line for each, its
// name and a colon first; where no name has a colon, any mention counts. What is said of a
// resource goes on to the end of the line or to the next resource's name.
func blame(sent []*Resource, message string) []blamed {
	var out, mentioned []blamed
	for _, r := range sent {
		if at := mention(r.Name, ":", message); at >= 0 {
			out = append(out, blamed{resource: r, at: at})
		} else if at := mention(r.Name, "", message); at >= 0 {
			mentioned = append(mentioned, blamed{resource: r, at: at})
		}
	}
	if len(out) == 0 {
		out = mentioned
	}
	places := make([]int, len(out))
	for i, b := range out {
		places[i] = b.at
	}
	slices.Sort(places)
	for i, b := range out {
		text, _, _ := strings.Cut(message[b.at:], "\n")
		if k, _ := slices.BinarySearch(places, b.at+1); k < len(places) {
			text = text[:min(len(text), places[k]-b.at)]
		}
		out[i].text = text
	}
	return out
}

// mention is where a message has a name with what is to follow it, or -1. Names may contain
// each other, so a name counts only where it does not go on to either side.
func mention(name, then, message string) int {
	for at, rest := 0, message; name != ""; {
		i := strings.Index(rest, name)
		if i < 0 {
			break
		}
		from, to := at+i, at+i+len(name)
		if !continues(reversed(message[max(0, from-2):from])) && !continues(message[to:]) && strings.HasPrefix(message[to:], then) {
			return from
		}
		at, rest = from+1, message[from+1:]
	}
	return -1
}

// continues says whether a name would go on with s: a character of names, or a separator
// that such a character follows.
func continues(s string) bool {
	if s == "" {
		return false
	}
	if isNameByte(s[0]) {
		return true
	}
	return (s[0] == '.' || s[0] == ':') && len(s) > 1 && isNameByte(s[1])
}

func isNameByte(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || strings.IndexByte("-_|~/*", b) >= 0
}

func reversed(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
