package kube

import (
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// An hour without the API server, in which every kind is tried again and again with ever other errors, changes nothing but the
// age of what is known: no object is removed, one problem is told once, and the time since when changes may be missing is that
// of the first failure. Time is given, so the hour takes no time.
func TestAnHourWithoutTheAPIServerChangesOnlyTheAge(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	m := newMerger("Kubernetes", 5*time.Second, nil, start)
	kinds := []object.Kind{object.Namespace, object.Service, object.Pod, object.VirtualService}
	for _, k := range kinds {
		m.serve(k, start)
		o := &object.Object{Key: object.Key{Kind: k, Namespace: "shop", Name: "a"}}
		m.replace(k, []entry{{key: o.Key, object: o}})
		m.reading(&m.state(k).health)
	}
	m.known()
	m.reading(&m.api)
	if b, _ := m.batch(start); !b.Synced || len(b.Changes) != len(kinds) || len(b.Problems) > 0 {
		t.Fatalf("at the start: %+v", b)
	}
	away := start.Add(time.Minute)
	told := 0
	errors := []fault{{text: "connection refused"}, {text: "no route to host"}, {text: "too many requests"}, {text: "i/o timeout"}}
	for at := away; at.Before(away.Add(time.Hour)); at = at.Add(3 * time.Second) {
		for i, k := range kinds {
			m.fail(&m.state(k).health, errors[(int(at.Unix())+i)%len(errors)], at)
		}
		m.fail(&m.api, errors[int(at.Unix())%len(errors)], at)
		b, _ := m.batch(at)
		if len(b.Changes) > 0 || b.Synced {
			t.Fatalf("after %s: %+v", at.Sub(away), b)
		}
		if b.Problems != nil {
			if told++; len(b.Problems) != 1 {
				t.Errorf("after %s: problems %v", at.Sub(away), b.Problems)
			}
		}
		if since := m.behindSince(); !since.Equal(away) {
			t.Fatalf("after %s: behind since %s, want %s", at.Sub(away), since, away)
		}
	}
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
	back := away.Add(time.Hour)
	for _, k := range kinds {
		o := &object.Object{Key: object.Key{Kind: k, Namespace: "shop", Name: "a"}}
		m.replace(k, []entry{{key: o.Key, object: o}})
		m.reading(&m.state(k).health)
	}
	m.reading(&m.api)
	if b, _ := m.batch(back); len(b.Changes) > 0 || b.Problems == nil || len(b.Problems) > 0 || !m.behindSince().IsZero() {
		t.Errorf("when it is back: %+v, behind since %s", b, m.behindSince())
	}
}
