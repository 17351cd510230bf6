package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// modelClient behaves like Envoy as far as it matters for order: it takes a new or changed
// cluster into use when its endpoints have come, acknowledges clusters only when none is
// warming, subscribes to the routes of its listeners, and checks that no route in use
// leads to a cluster that is not.
type modelClient struct {
	delta  bool
	have   [numTypes]map[string]*Resource
	subs   [numTypes]map[string]bool
	nonces [numTypes]string
	asked  [numTypes]bool
	// claims are the versions that it tells a new stream of.
	claims [numTypes]map[string]string
	// blind: it came back in SotW, where the server cannot know what it has and may refer to,
	// or a wait has reached its bound.
	blind bool
	// unasked: clusters were not asked for on this stream, for some warm.
	unasked bool
	// warming clusters wait for endpoints; active ones have had them.
	warming, active map[string]bool
	owed            []*Request // the answers to CDS responses, given after warming
	// bare are route configurations that wait for their virtual hosts.
	bare map[string]bool
	// refuses says why a response is refused, naming what it refuses; empty for not.
	refuses func(Send) string
	// refused are the versions that it refused when it was last sent them, by name.
	refused [numTypes]map[string]string
	// hasty: it says so at once, also of clusters while others warm.
	hasty bool
	out   []*Request
	wrong []string
}

func newModelClient(delta bool) *modelClient {
	c := &modelClient{delta: delta, warming: map[string]bool{}, active: map[string]bool{}, bare: map[string]bool{}, refuses: func(Send) string { return "" }}
	for t := range numTypes {
		c.have[t], c.subs[t], c.claims[t], c.refused[t] = map[string]*Resource{}, map[string]bool{}, map[string]string{}, map[string]string{}
	}
	c.ask(CDS, &Request{})
	c.ask(LDS, &Request{})
	return c
}

func (c *modelClient) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// reconnect starts a new stream. What was on its way is lost; requests go out in a random
// order, but for clusters: Envoy asks for them only when none warms.
func (c *modelClient) reconnect(r *rand.Rand) {
	c.out, c.owed, c.nonces = nil, nil, [numTypes]string{}
	before := c.asked
	c.asked = [numTypes]bool{}
	c.unasked = len(c.warming) > 0
	// Without a claim the server takes it for one that starts. What has gone wrong since a wait had reached its bound
	// stays wrong.
	c.blind = false
	c.blind = !c.delta || c.unasked && before[LDS] && len(c.claims[LDS]) == 0 || len(c.broken()) > 0
	for _, i := range r.Perm(int(numTypes)) {
		if t := Type(i); before[t] && (t != CDS || !c.unasked) {
			c.again(t)
		}
	}
}

// again is the first request for a type on another stream.
func (c *modelClient) again(t Type) {
	q := &Request{Names: namesOf(slices.Sorted(maps.Keys(c.subs[t]))...)}
	if c.delta {
		q.Initial = versionsOf(c.claims[t])
	}
	c.ask(t, q)
}

// warmed goes on with clusters once none warms.
func (c *modelClient) warmed() {
	if len(c.warming) > 0 {
		return
	}
	if c.unasked {
		c.unasked = false
		c.again(CDS)
		return
	}
	if !c.delta && len(c.owed) > 1 {
		c.owed = c.owed[len(c.owed)-1:] // it answers the last one only
	}
	for _, answer := range c.owed {
		c.ask(CDS, answer)
	}
	c.owed = nil
}

// ask sends a request; in SotW it always carries all names.
func (c *modelClient) ask(t Type, r *Request) {
	r.Type = t
	if !c.delta {
		r.Names, r.Unsubscribe = namesOf(slices.Sorted(maps.Keys(c.subs[t]))...), nameList{}
		if r.Nonce == "" {
			r.Nonce = c.nonces[t]
		}
	}
	c.asked[t] = true
	c.out = append(c.out, r)
}

func (c *modelClient) subscribe(t Type, name string) {
	if !c.subs[t][name] {
		c.subs[t][name] = true
		c.ask(t, &Request{Names: namesOf(name)})
	}
}

func (c *modelClient) unsubscribe(t Type, name string) {
	if c.subs[t][name] {
		delete(c.subs[t], name)
		delete(c.have[t], name)
		delete(c.claims[t], name)
		if t == RDS {
			// The virtual hosts go with their route configuration; the stream's state has them still.
			delete(c.bare, name)
			maps.DeleteFunc(c.have[VHDS], func(n string, _ *Resource) bool { return routesOf(n) == name })
		}
		c.ask(t, &Request{Unsubscribe: namesOf(name)})
	}
}

func (c *modelClient) take(s Send) {
	c.nonces[s.Type] = s.Nonce
	// It takes the rest of a response that it refuses.
	why := c.refuses(s)
	refused, _, _ := strings.Cut(why, ":")
	removed := s.Removed
	if !c.delta && types[s.Type].wildcard {
		for n := range c.have[s.Type] {
			if !slices.ContainsFunc(s.Upserts, func(r *Resource) bool { return r.Name == n }) {
				removed = append(removed, n)
			}
		}
		slices.Sort(removed)
	}
	for _, n := range removed {
		c.remove(s.Type, n)
	}
	for _, r := range s.Upserts {
		delete(c.refused[s.Type], r.Name)
		if why == "" || r.Name != refused {
			c.upsert(r)
			continue
		}
		c.refused[s.Type][r.Name] = r.Version
		if s.Type == EDS && c.warming[r.Name] {
			delete(c.warming, r.Name) // it is in use without endpoints
			c.active[r.Name] = true
		}
	}
	answer := &Request{Nonce: s.Nonce, Refused: why != "", Message: why}
	if s.Type == CDS && (why == "" || !c.hasty) {
		c.owed = append(c.owed, answer)
	} else {
		c.ask(s.Type, answer)
	}
	c.warmed()
}

func (c *modelClient) upsert(r *Resource) {
	t := r.Type
	old := c.have[t][r.Name]
	if old != nil && same(old, r) && t != EDS && c.delta && c.claims[t][r.Name] != "" {
		c.fail("%s %s sent again unchanged", t, r.Name)
	}
	if t == EDS || t == RDS || t == ECDS {
		if !c.subs[t][r.Name] {
			return // crossed an unsubscription
		}
	}
	c.claims[t][r.Name] = r.Version
	if t == VHDS {
		delete(c.bare, routesOf(r.Name))
		if c.have[RDS][routesOf(r.Name)] == nil {
			return // nobody takes it
		}
	}
	c.have[t][r.Name] = r
	switch t {
	case CDS:
		if old == nil || !same(old, r) {
			c.warming[r.Name] = true
			if r.Needs != "" {
				c.subscribe(EDS, r.Needs)
			}
		}
	case EDS:
		if strings.HasPrefix(content(r), "\n") && old != nil && c.inUse(r.Name) {
			c.fail("endpoints of cluster %s in use are taken away", r.Name)
		}
		if c.warming[r.Name] {
			delete(c.warming, r.Name)
			c.active[r.Name] = true
		}
	case LDS:
		c.subscribe(ECDS, "e"+r.Name)
		c.subscribe(RDS, content(r))
	case RDS:
		if r.SeparateHosts && old == nil {
			c.bare[r.Name] = true
		}
		if r.SeparateHosts && !c.asked[VHDS] {
			c.ask(VHDS, &Request{Initial: versionsOf(c.claims[VHDS])})
		}
		c.check("after route " + r.Name)
	case VHDS:
		c.check("after virtual host " + r.Name)
	}
}

func (c *modelClient) remove(t Type, name string) {
	// A name that it has no version of must be answered, too.
	if t == EDS && c.claims[t][name] != "" && !c.warming[name] && c.inUse(name) {
		c.fail("endpoints of cluster %s in use are removed", name)
	}
	if t == EDS && c.warming[name] {
		delete(c.warming, name)
		c.active[name] = true
	}
	delete(c.claims[t], name)
	if t == EDS || t == RDS {
		return // Envoy keeps what it has
	}
	old := c.have[t][name]
	delete(c.have[t], name)
	switch {
	case t == VHDS:
		delete(c.bare, routesOf(name))
	case t == ECDS:
		c.fail("extension configuration %s removed, which a listener waits for or goes on with", name)
	case old == nil:
		c.fail("%s %s removed, but never there", t, name)
	case t == CDS:
		delete(c.warming, name)
		delete(c.active, name)
		if old.Needs != "" {
			c.unsubscribe(EDS, name)
		}
		c.check("after removal of cluster " + name)
	case t == LDS:
		c.unsubscribe(ECDS, "e"+name)
		c.unsubscribe(RDS, content(old))
	}
}

// targets are the clusters that routes in use lead to, by route.
func (c *modelClient) targets() map[string]string {
	out := map[string]string{}
	if c.blind {
		return out
	}
	for _, l := range c.have[LDS] {
		if r := c.have[RDS][content(l)]; r != nil && !r.SeparateHosts {
			out[r.Name], _, _ = strings.Cut(content(r), "#")
		}
	}
	for n, r := range c.have[VHDS] {
		out[n], _, _ = strings.Cut(content(r), "#")
	}
	return out
}

func (c *modelClient) inUse(cluster string) bool {
	return slices.Contains(slices.Collect(maps.Values(c.targets())), cluster)
}

// check looks for routes in use to clusters that are not.
func (c *modelClient) check(when string) {
	for route, cluster := range c.broken() {
		c.fail("%s: route %s leads to cluster %s, which is not active", when, route, cluster)
	}
}

// broken are the routes in use to clusters that are not, with these.
func (c *modelClient) broken() map[string]string {
	out := c.targets()
	maps.DeleteFunc(out, func(_, cluster string) bool { return c.active[cluster] })
	return out
}

// content is what a test resource was made from.
func content(r *Resource) string {
	return string(r.Body[2+len(r.Type.URL())+2:])
}

// separateResource is a route configuration that takes its virtual hosts from VHDS.
func separateResource(name, content string) *Resource {
	return NewSeparateRoutes(name, NewResource(RDS, name, []byte(content)).Body)
}

// naming is a resource that names clusters.
func naming(r *Resource, clusters ...string) *Resource {
	r.refers = newReferences(clusters)
	return r
}

// resolved brings the clusters into use whose names are resolved.
func (c *modelClient) resolved() {
	for n := range c.warming {
		if r := c.have[CDS][n]; r != nil && r.slow {
			delete(c.warming, n)
			c.active[n] = true
		}
	}
	c.warmed()
}

// slowCluster is a cluster that warms until its name is resolved.
func slowCluster(name, content string) *Resource {
	r := NewCluster(name, []byte(content), "")
	r.slow = true
	return r
}

// randomView is a consistent view: a listener has its routes, a route its cluster, a
// cluster its endpoints. Listeners name extension configurations, of which some are not there.
//
// If separate is set, routes have virtual hosts in place of a cluster, which name clusters.
func randomView(r *rand.Rand, generation uint64, separate bool) *View {
	v := &View{Generation: generation}
	add := func(res *Resource) { v = v.With(res.Type, []*Resource{res}, nil) }
	for i := range 3 {
		if n := "l" + strconv.Itoa(i); r.IntN(3) > 0 {
			add(naming(NewResource(LDS, n, []byte("r"+n))))
			if r.IntN(3) > 0 {
				cluster := "c" + strconv.Itoa(r.IntN(4))
				add(naming(NewResource(ECDS, "e"+n, fmt.Appendf(nil, "%s#%d", cluster, r.IntN(2))), cluster))
				add(NewCluster(cluster, nil, cluster))
			}
			if separate {
				add(naming(separateResource("r"+n, fmt.Sprint("#", r.IntN(2)))))
				for h := range r.IntN(3) {
					cluster := "c" + strconv.Itoa(r.IntN(4))
					add(naming(NewResource(VHDS, "r"+n+"/h"+strconv.Itoa(h), fmt.Appendf(nil, "%s#%d", cluster, r.IntN(2))), cluster))
					add(NewCluster(cluster, nil, cluster))
				}
				continue
			}
			cluster := "c" + strconv.Itoa(r.IntN(5))
			add(naming(NewResource(RDS, "r"+n, fmt.Appendf(nil, "%s#%d", cluster, r.IntN(2))), cluster))
			if cluster == "c4" {
				add(slowCluster(cluster, "0"))
			} else {
				add(NewCluster(cluster, nil, cluster))
			}
		}
	}
	for i := range 4 {
		if n := "c" + strconv.Itoa(i); v.Of(CDS).Get(n) != nil || r.IntN(3) == 0 {
			add(NewCluster(n, fmt.Appendf(nil, "%d", r.IntN(2)), n))
			add(NewResource(EDS, n, fmt.Appendf(nil, "%d", r.IntN(2))))
		}
	}
	// One that nothing leads to, and that has no endpoints.
	if r.IntN(3) == 0 {
		add(NewCluster("empty", fmt.Appendf(nil, "%d", r.IntN(2)), "empty"))
	}
	return v
}
