package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page is a page as one replica has it; the replica has no name if it was named by its address.
type page[T any] struct {
	replica string
	value   T
}

// joinLists joins lists of objects. Each object of a replica with a name says in the field replica whose it is.
func joinLists(lists []page[[]json.RawMessage]) ([]json.RawMessage, error) {
	out := []json.RawMessage{}
	for _, l := range lists {
		for _, text := range l.value {
			if l.replica != "" {
				var err error
				if text, err = with(text, "replica", l.replica); err != nil {
					return nil, fmt.Errorf("%s: %w", l.replica, err)
				}
			}
			out = append(out, text)
		}
	}
	return out, nil
}

// with sets a field of a JSON object.
func with(text []byte, field string, value any) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("decode the response: %w", err)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	fields[field] = encoded
	return json.Marshal(fields)
}

// joinProblems joins entries of /debug/objectz: the same problem of several replicas is one entry with the proxies of all. One
// that only some replicas have names them in the field replicas.
func joinProblems(lists []page[[]json.RawMessage]) ([]json.RawMessage, error) {
	type entry struct {
		fields   map[string]json.RawMessage
		counts   map[string]int
		replicas []string
	}
	var order []string
	entries := map[string]*entry{}
	for _, l := range lists {
		for _, text := range l.value {
			fields := map[string]json.RawMessage{}
			if err := json.Unmarshal(text, &fields); err != nil {
				return nil, fmt.Errorf("%s: decode the response: %w", l.replica, err)
			}
			counts := map[string]int{}
			for _, name := range []string{"proxies", "applied"} {
				if n, err := strconv.Atoi(string(fields[name])); err == nil { // null where it is not known
					counts[name] = n
				}
				delete(fields, name)
			}
			same, err := json.Marshal(fields)
			if err != nil {
				return nil, err
			}
			e := entries[string(same)]
			if e == nil {
				e = &entry{fields: fields, counts: map[string]int{}}
				entries[string(same)], order = e, append(order, string(same))
			}
			if !slices.Contains(e.replicas, l.replica) {
				e.replicas = append(e.replicas, l.replica)
			}
			for name, n := range counts {
				e.counts[name] += n
			}
		}
	}
	out := []json.RawMessage{}
	for _, same := range order {
		e := entries[same]
		for name, n := range e.counts {
			e.fields[name] = json.RawMessage(strconv.Itoa(n))
		}
		text, err := json.Marshal(e.fields)
		if err == nil && len(e.replicas) < len(lists) {
			text, err = with(text, "replicas", e.replicas)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// joinApplied joins responses of /debug/applied: proxies are added up. Generations count for each replica, and are
// kept by its name.
func joinApplied(all []page[appliedAnswer]) appliedAnswer {
	if len(all) == 1 {
		return all[0].value
	}
	// A replica that serves no proxy knows perhaps no object yet.
	serving := slices.DeleteFunc(slices.Clone(all), func(p page[appliedAnswer]) bool { return p.value.NotServed != "" })
	if len(serving) == 0 {
		serving = all
	}
	out := appliedAnswer{Objects: []appliedObject{}, Problems: serving[0].value.Problems, NotServed: serving[0].value.NotServed}
	type key struct{ kind, namespace, name string }
	objects := map[key][]page[appliedObject]{}
	var started []string
	for _, p := range serving {
		started = append(started, p.replica+" "+p.value.Started)
		for _, o := range p.value.Objects {
			k := key{o.Kind, o.Namespace, o.Name}
			objects[k] = append(objects[k], page[appliedObject]{p.replica, o})
		}
	}
	out.Started = strings.Join(started, ", ")
	for _, versions := range objects {
		out.Objects = append(out.Objects, joinObject(versions))
	}
	slices.SortFunc(out.Objects, func(a, b appliedObject) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	// A proxy that has moved to another replica is connected.
	out.Disconnected = slices.DeleteFunc(slices.Clone(serving[0].value.Disconnected), func(name string) bool {
		return slices.ContainsFunc(serving, func(p page[appliedAnswer]) bool { return !slices.Contains(p.value.Disconnected, name) })
	})
	return out
}

// joinObject joins what replicas say about one object.
func joinObject(versions []page[appliedObject]) appliedObject {
	first := versions[0].value
	out := appliedObject{Kind: first.Kind, Namespace: first.Namespace, Name: first.Name, Origin: first.Origin, Generations: map[string]uint64{}}
	var states []string
	for _, v := range versions {
		states = append(states, v.value.State)
		out.Generations[v.replica] = v.value.Generation
		out.Proxies += v.value.Proxies
		out.Applied += v.value.Applied
		out.Behind = append(out.Behind, v.value.Behind...)
		for _, p := range v.value.Problems {
			if !slices.ContainsFunc(out.Problems, func(o problem) bool { return o.Text == p.Text && o.Field == p.Field }) {
				out.Problems = append(out.Problems, p)
			}
		}
	}
	out.State = joinStates(states)
	if out.State == stateOther {
		for _, v := range versions {
			if v.value.State == stateOther || v.value.State == stateUnknown {
				out.lacking = append(out.lacking, v.replica)
			}
		}
	}
	slices.SortFunc(out.Behind, func(a, b behindProxy) int { return cmp.Compare(a.Proxy, b.Proxy) })
	return out
}

// joinStates is the state of an object of which replicas have these: the one that all have, or what is still to come.
func joinStates(states []string) string {
	has := func(state string) bool { return slices.Contains(states, state) }
	switch {
	case !slices.ContainsFunc(states, func(s string) bool { return s != states[0] }):
		return states[0]
	case has(stateRejected):
		return stateRejected
	case has(stateOther):
		return stateOther
	case has(stateInForce) && has(stateUnknown):
		return stateOther // not read everywhere yet
	case has(stateInForce):
		return stateInForce // the removal is not read everywhere yet, or the object is new again
	}
	return stateRemoved // a replica that has started since then does not know the object
}

// joinCA joins pages about the CA, whose state the replicas share: the newest, and those with another phase or other
// roots, which the JSON has in the field differing. The newest is the one that knows of the last certificate.
func joinCA(all []page[json.RawMessage]) (text []byte, newest page[caStatus], differing []page[caStatus], err error) {
	type different struct {
		Replica string          `json:"replica"`
		Status  json.RawMessage `json:"status"`
	}
	states := make([]page[caStatus], len(all))
	first := 0
	for i, p := range all {
		states[i].replica = p.replica
		if err := json.Unmarshal(p.value, &states[i].value); err != nil {
			return nil, newest, nil, fmt.Errorf("%s: decode the response: %w", p.replica, err)
		}
		if states[i].value.lastLeaf().After(states[first].value.lastLeaf()) {
			first = i
		}
	}
	text, newest = all[first].value, states[first]
	var others []different
	for i, s := range states {
		if s.value.shared() != newest.value.shared() {
			others = append(others, different{s.replica, all[i].value})
			differing = append(differing, s)
		}
	}
	if len(others) > 0 {
		text, err = with(text, "differing", others)
	}
	return text, newest, differing, err
}

// lastLeaf is when the last certificate ends that any root has signed.
func (s *caStatus) lastLeaf() (last time.Time) {
	for _, r := range s.Roots {
		if r.LastLeaf.After(last) {
			last = r.LastLeaf
		}
	}
	return last
}

// shared is what all replicas have alike, as text: each has read the times of the others' certificates, and their
// reports, at another moment.
func (s *caStatus) shared() string {
	out := s.Phase
	for _, r := range s.Roots {
		out += fmt.Sprintf(" %s:%s:%v", r.SHA256, r.Role, r.Serving)
	}
	return out
}
