package discovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// maxLate is how many commits are remembered whose routes were sent before the policies were acknowledged.
const maxLate = 100

// barriers are the commits whose routes wait for policies. They belong to the loop's goroutine.
type barriers struct {
	open []*barrier // oldest first
	// late are those whose time has passed while proxies had not acknowledged their listeners, and still have not.
	late []*barrier
}

// publishedStep is a viewStep of the members of a class that are in it, but for those in but.
type publishedStep struct {
	viewStep
	members map[string]*publishedProxy
	but     map[string]bool
}

// bar has what the steps of a commit bring wait for the policies that they bring.
func (p *publisher) bar(steps []publishedStep, policies []object.Key) {
	b := &barrier{
		generation: p.generation, policies: policies, until: p.now().Add(policyLimit),
		hosts: map[string]bool{}, own: map[mesh.Class][]string{}, awaited: map[string][]string{},
	}
	for _, s := range steps {
		names := s.guarded(len(policies) > 0)
		if len(names) == 0 {
			continue
		}
		router := s.class.Scope.Role == mesh.Router
		known := false
		for id, m := range s.members {
			if s.but[id] {
				continue
			}
			b.awaited[id] = names
			if router || !known { // the sidecars of a class are of the same services
				p.hostsOf(m, b.hosts)
				known = true
			}
		}
		if router && known {
			b.own[s.class] = names
		}
	}
	if len(b.awaited) == 0 || !slices.ContainsFunc(steps, func(s publishedStep) bool { return s.leads(b.hosts, b.own[s.class]) }) {
		return
	}
	b.all = len(b.awaited)
	for id := range b.awaited {
		p.proxies[id].latest.WatchListeners(true)
	}
	p.barriers.open = append(p.barriers.open, b)
	for _, s := range steps {
		p.rebar(p.classes[s.class])
	}
}

// hostsOf adds the hosts of the services that a proxy is an endpoint of.
func (p *publisher) hostsOf(m *publishedProxy, to map[string]bool) {
	for _, host := range strings.Fields(p.hosts.Want(m.key)) {
		to[host] = true
	}
	p.hosts.Unwant(m.key)
}

// rebar gives a class the view with what it has to wait for now.
func (p *publisher) rebar(c *publishedClass) {
	view := *c.view
	view.Barrier = barrierFor(c.class, p.barriers.open)
	c.view, p.current = &view, nil
}

// settleBarriers ends the waits that are over. It looks at the connections of a list, or at all if that is nil, and
// returns what has been acknowledged, what goes on without, and which of the latter have been acknowledged by now.
func (p *publisher) settleBarriers(connections []string) (acknowledged, late, recovered []*barrier) {
	var open, still []*barrier
	for _, b := range p.barriers.open {
		if p.settle(b, connections); len(b.awaited) == 0 && b.acknowledged.IsZero() {
			b.acknowledged = p.now()
		}
		switch {
		case p.now().Before(b.ends()):
			open = append(open, b)
		case len(b.awaited) == 0:
			acknowledged = append(acknowledged, b)
		default:
			late = append(late, b)
		}
	}
	for _, b := range p.barriers.late {
		if p.settle(b, connections); len(b.awaited) == 0 {
			recovered = append(recovered, b)
		} else {
			still = append(still, b)
		}
	}
	still = append(still, late...)
	p.barriers.late = still[max(0, len(still)-maxLate):]
	if len(acknowledged)+len(late) == 0 {
		return acknowledged, late, recovered
	}
	p.barriers.open = open
	for _, c := range p.classes {
		if c.view.Barrier == nil {
			continue
		}
		p.rebar(c)
		for _, m := range c.proxies {
			m.latest.PublishAt(c.view, p.generation)
		}
	}
	return acknowledged, late, recovered
}

// settle takes the connections out of those that are awaited that have acknowledged, or have ended.
func (p *publisher) settle(b *barrier, connections []string) {
	look := func(id string) {
		names, awaited := b.awaited[id]
		if !awaited {
			return
		}
		m := p.proxies[id]
		if m != nil && !p.superseded(id, m) && !p.hasListeners(m, names, b.generation) {
			return
		}
		if delete(b.awaited, id); m != nil {
			m.latest.WatchListeners(p.barriers.await(id))
		}
	}
	if connections != nil {
		for _, id := range connections {
			look(id)
		}
		return
	}
	for id := range b.awaited {
		look(id)
	}
}

// await says whether a connection is awaited.
func (b *barriers) await(id string) bool {
	awaits := func(b *barrier) bool { _, ok := b.awaited[id]; return ok }
	return slices.ContainsFunc(b.open, awaits) || slices.ContainsFunc(b.late, awaits)
}

// superseded says whether the proxy of a connection has a newer one.
func (p *publisher) superseded(id string, m *publishedProxy) bool {
	proxy, serial := splitConnection(id)
	for other := range p.byKey[m.key] {
		if same, newer := splitConnection(other); same == proxy && newer > serial {
			return true
		}
	}
	return false
}

// hasListeners says whether a proxy has accepted the newest versions of listeners, as part of a generation or a later one.
func (p *publisher) hasListeners(m *publishedProxy, names []string, generation uint64) bool {
	view := p.classes[m.class].view
	for _, name := range names {
		r := view.Of(xds.LDS).Get(name)
		held := slices.ContainsFunc(view.Quarantined, func(q xds.Quarantined) bool { return q.Type == xds.LDS && q.Name == name })
		if held || r != nil && !m.latest.HasListener(r, generation) {
			return false
		}
	}
	return true
}

// barredUntil is when the next wait is over, as far as is known; zero if there is none.
func (p *publisher) barredUntil() (first time.Time) {
	for _, b := range p.barriers.open {
		if at := b.ends(); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// settleBarriers ends the waits for policies that are over, and tells of those that were in vain.
func (l *loop) settleBarriers(connections []string) {
	if len(l.views.barriers.open)+len(l.views.barriers.late) == 0 {
		return
	}
	acknowledged, late, recovered := l.views.settleBarriers(connections)
	l.counts.acknowledged += uint64(len(acknowledged))
	l.counts.late += uint64(len(late))
	for _, b := range late {
		l.log.Warn("routes were sent before all proxies had acknowledged the policies of the same change", "generation", b.generation,
			"policies", b.names(), "proxies", len(b.awaited), "of", b.all, "first", b.first(), "after", policyLimit.String())
	}
	for _, b := range recovered {
		l.log.Info("all proxies have acknowledged the policies of a change", "generation", b.generation, "policies", b.names())
	}
	for _, b := range slices.Concat(late, recovered) {
		for _, k := range b.policies {
			l.touched.object(k)
		}
	}
}

// names are those of the policies, for the log.
func (b *barrier) names() string {
	var out []string
	for _, k := range b.policies[:min(len(b.policies), maxNamed)] {
		out = append(out, k.String())
	}
	return strings.Join(out, ", ")
}

// first is the first of the proxies that are awaited, in order of their names.
func (b *barrier) first() string {
	proxy, _ := splitConnection(slices.Min(slices.Collect(maps.Keys(b.awaited))))
	return proxy
}

// lateProblems are the waits that were in vain as problems of the policies.
func (l *loop) lateProblems() (out []object.Problem) {
	for _, b := range l.views.barriers.late {
		text := fmt.Sprintf("routes of the same change were sent after %s, before %d of %d proxies had acknowledged the policy, and they still have not; the first is %s",
			policyLimit, len(b.awaited), b.all, b.first())
		for _, k := range b.policies[:min(len(b.policies), maxBlamed)] {
			if l.applied.objects[k].generation != b.generation {
				continue // it has changed since
			}
			p := object.Problem{Severity: object.Warning, Key: k, Text: text}
			if o, ok := l.store.Get(k); ok {
				p.Origin = o.Origin
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}

// unacknowledged is how many proxies have not acknowledged policies whose routes have been sent.
func (b *barriers) unacknowledged() int {
	proxies := map[string]bool{}
	for _, late := range b.late {
		for id := range late.awaited {
			proxies[id] = true
		}
	}
	return len(proxies)
}
