package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRowsAreBounded(t *testing.T) {
	s := State{Status: Status{Generation: 7}}
	for i := range maxRows[sectionProxies] + 3 {
		s.Proxies = append(s.Proxies, Proxy{Connection: fmt.Sprint(i), Name: "p"})
	}
	long := strings.Repeat("é", maxText)
	for range 2 {
		s.Problems = append(s.Problems, Problem{Severity: "error", Object: "VirtualService a/b", Text: long})
	}
	s.Proxies[0].Quarantined = slices.Repeat([]string{"RDS 80"}, maxList+2)
	got := RowsOf(s)
	if n := len(got[sectionProxies]); n != maxRows[sectionProxies] {
		t.Errorf("%d proxies, want %d", n, maxRows[sectionProxies])
	}
	var status Status
	if err := json.Unmarshal([]byte(got[sectionStatus][sectionStatus]), &status); err != nil || status.Left[sectionProxies] != 3 || status.Generation != 7 {
		t.Errorf("status %+v, %v: want 3 proxies left out", status, err)
	}
	var first Proxy
	if err := json.Unmarshal([]byte(got[sectionProxies]["0"]), &first); err != nil || len(first.Quarantined) != maxList+1 || first.Quarantined[maxList] != "and 2 more" {
		t.Errorf("quarantined %q, %v", first.Quarantined, err)
	}
	if len(got[sectionProblems]) != 2 {
		t.Errorf("%d problems, want both of two that are alike", len(got[sectionProblems]))
	}
	for key, row := range got[sectionProblems] {
		if len(row) > 2*maxText || len(key) > 300 {
			t.Errorf("row of %d bytes with a key of %d", len(row), len(key))
		}
	}
}

// What changes the direction of writing, or a line, makes a name look like another one.
func TestUnprintableCharactersAreShown(t *testing.T) {
	s := State{Proxies: []Proxy{{Connection: "a", Name: "pod\u202e\x1b[31m\x00", Refusal: &Refusal{Message: "one\ntwo\u2028", Resources: []string{"a\u202eb"}}}}}
	before := s.Proxies[0].Refusal.Message
	row := RowsOf(s)[sectionProxies]["a"]
	var got Proxy
	if err := json.Unmarshal([]byte(row), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != `pod\u202e\x1b[31m\x00` || got.Refusal.Message != "one\ntwo\\u2028" || got.Refusal.Resources[0] != `a\u202eb` {
		t.Errorf("row %s, want escapes, and the line break", row)
	}
	s.Services = []Service{{Key: "s", Host: "h\u202e", Versions: []Version{{Name: "v\u202e"}}, Routes: []Route{{Name: "r\u202e", To: []Destination{{Name: "d\u202e"}}}}}}
	s.Edits = []Edit{{Generation: 1, Objects: []EditObject{{Object: "o\u202e", Origin: "f\u202e"}}}}
	s.Problems = []Problem{{Object: "o\u202e", Field: "f\u202e", Text: "t\u202e", Meanwhile: "m\u202e"}}
	for section, rows := range RowsOf(s) {
		for _, row := range rows {
			if strings.Contains(row, "\u202e") {
				t.Errorf("%s: %s", section, row)
			}
		}
	}
	if s.Services[0].Routes[0].To[0].Name != "d\u202e" || s.Edits[0].Objects[0].Object != "o\u202e" {
		t.Error("the state has changed")
	}
	if s.Proxies[0].Refusal.Message != before {
		t.Error("the state has changed")
	}
}

// A client that applies differences has what the control plane has.
func TestDifferencesAddUp(t *testing.T) {
	seed := time.Now().UnixNano()
	r := rand.New(rand.NewSource(seed))
	t.Log("seed", seed)
	random := func() Rows {
		out := Rows{}
		for _, section := range []string{sectionProxies, sectionProblems} {
			if r.Intn(5) == 0 {
				continue
			}
			out[section] = map[string]string{}
			for range r.Intn(4) {
				out[section][fmt.Sprint(r.Intn(5))] = fmt.Sprint(r.Intn(3))
			}
		}
		return out
	}
	var before Rows
	has := map[string]map[string]string{}
	for range 500 {
		now := random()
		u := Diff(before, now)
		for section, c := range u {
			if len(c.Set)+len(c.Gone) == 0 {
				t.Errorf("empty change of %s", section)
			}
			if has[section] == nil {
				has[section] = map[string]string{}
			}
			for key, row := range c.Set {
				if has[section][key] == string(row) {
					t.Errorf("%s %s is sent again", section, key)
				}
				has[section][key] = string(row)
			}
			for _, key := range c.Gone {
				delete(has[section], key)
			}
		}
		for _, section := range []string{sectionProxies, sectionProblems} {
			if !maps.Equal(has[section], now[section]) {
				t.Fatalf("%s: client has %v, want %v", section, has[section], now[section])
			}
		}
		before = now
	}
	if u := Diff(before, before); !reflect.DeepEqual(u, Update{}) {
		t.Errorf("difference of equal rows: %v", u)
	}
}
