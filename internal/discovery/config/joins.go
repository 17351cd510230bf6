package config

import (
	"cmp"
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// entryHost is a host of ServiceEntries of a namespace.
type entryHost struct{ namespace, host string }

// entryHosts finds the ServiceEntries that have a host in common.
type entryHosts struct {
	entries map[entryHost]map[object.Key]bool
	// stale are the hosts of ServiceEntries that have changed since the last comparison.
	stale map[entryHost]bool
}

func newEntryHosts() entryHosts {
	return entryHosts{entries: map[entryHost]map[object.Key]bool{}, stale: map[entryHost]bool{}}
}

// hostsOf returns the hosts of a ServiceEntry; none of nil.
func hostsOf(o *object.Object) (out []entryHost) {
	if o == nil {
		return nil
	}
	for _, h := range entrySpec(o).GetHosts() {
		out = append(out, entryHost{o.Namespace, mesh.HostName(h)})
	}
	return out
}

func entrySpec(o *object.Object) *networking.ServiceEntry {
	s, _ := o.Spec.(*networking.ServiceEntry)
	return s
}

// replace notes that a ServiceEntry is in force in place of another version; either may be nil.
func (e entryHosts) replace(before, now *object.Object) {
	for _, h := range hostsOf(before) {
		e.stale[h] = true
		if delete(e.entries[h], before.Key); len(e.entries[h]) == 0 {
			delete(e.entries, h)
		}
	}
	for _, h := range hostsOf(now) {
		e.stale[h] = true
		if e.entries[h] == nil {
			e.entries[h] = map[object.Key]bool{}
		}
		e.entries[h][now.Key] = true
	}
}

// namesake is a ServiceEntry with what it has in common with others that are one service with it.
type namesake struct {
	*object.Object
	joins mesh.EntryJoin
}

// compareEntries updates the verdicts on ServiceEntries that have a host in common with one that changed: on a host that is not used
// because an older one is different, and on a port that an older one has, too. [control-plane 1.9.11]
func (s *Store) compareEntries() {
	ordered := map[entryHost][]namesake{}
	touched := map[object.Key]bool{}
	for h := range s.hosts.stale {
		for k := range s.hosts.entries[h] {
			touched[k] = true
		}
	}
	clear(s.hosts.stale)
	for k := range touched {
		o := s.good[k]
		var now []Verdict
		for i, h := range hostsOf(o) {
			if len(s.hosts.entries[h]) < 2 {
				continue
			}
			list, known := ordered[h]
			if !known {
				list = s.orderedEntries(h)
				ordered[h] = list
			}
			now = append(now, entryConflicts(list, o, i)...)
		}
		s.setConflicts(k, now)
	}
}

// orderedEntries returns the ServiceEntries with a host, those with priority first.
func (s *Store) orderedEntries(h entryHost) (out []namesake) {
	for k := range s.hosts.entries[h] {
		o := s.good[k]
		out = append(out, namesake{o, mesh.EntryJoinOf(entrySpec(o), o.Namespace)})
	}
	slices.SortFunc(out, func(a, b namesake) int {
		return cmp.Or(a.Meta.Created.Compare(b.Meta.Created), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// entryConflicts returns the verdicts on a host of a ServiceEntry, which is in the list of those with this host.
func entryConflicts(list []namesake, o *object.Object, host int) (out []Verdict) {
	warn := func(field, format string, args ...any) {
		out = append(out, Verdict{
			Severity: object.Warning, Origin: o.Origin, Key: o.Key, Generation: o.Meta.Generation, Field: field, Text: fmt.Sprintf(format, args...),
		})
	}
	self := slices.IndexFunc(list, func(e namesake) bool { return e.Key == o.Key })
	same := func(e namesake) bool { return e.joins.Visible == list[self].joins.Visible }
	at := item("spec.hosts", host)
	name := entrySpec(o).Hosts[host]
	first := list[slices.IndexFunc(list, same)]
	if first.joins != list[self].joins {
		warn(at, "not applied: ServiceEntry %s/%s, which comes first, has the host %q with another %s; make the two equal, or remove the host from one",
			first.Namespace, first.Name, name, list[self].joins.Differs(first.joins))
		return out
	}
	for _, e := range list[:self] {
		if !same(e) {
			warn(at, "ServiceEntry %s/%s, which comes first, has the host %q with another exportTo: clients that see both use only that one; make exportTo equal to join them",
				e.Namespace, e.Name, name)
			break
		}
	}
	if mine, theirs := o.Meta.Annotations[mesh.DistributionAnnotation], first.Meta.Annotations[mesh.DistributionAnnotation]; mine != theirs {
		warn(entry("metadata.annotations", mesh.DistributionAnnotation), "%q is not applied for the host %q: ServiceEntry %s/%s, which comes first, has %q; make the two equal",
			mine, name, first.Namespace, first.Name, theirs)
	}
	for i, p := range entrySpec(o).GetPorts() {
		for _, e := range list[:self] {
			if e.joins != list[self].joins {
				continue
			}
			q := slices.IndexFunc(entrySpec(e.Object).GetPorts(), func(q *networking.ServicePort) bool { return q.GetNumber() == p.GetNumber() })
			if q < 0 {
				continue
			}
			if theirs := entrySpec(e.Object).Ports[q].GetProtocol(); mesh.ParseProtocol(theirs) != mesh.ParseProtocol(p.GetProtocol()) {
				warn(item("spec.ports", i)+".protocol", "%s is not applied for the host %q: port %d is %s in ServiceEntry %s/%s, which comes first; make the two equal",
					cmp.Or(p.GetProtocol(), "detection"), name, p.GetNumber(), cmp.Or(theirs, "detected"), e.Namespace, e.Name)
			}
			break
		}
	}
	return out
}
