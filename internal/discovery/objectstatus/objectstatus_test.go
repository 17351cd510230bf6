package objectstatus_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/object"
)

var (
	now      = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	notFound = objectstatus.Finding{Code: objectstatus.CodeNotApplied, Text: "spec.hosts: is empty"}
	broken   = objectstatus.Finding{Code: objectstatus.CodeRejected, Text: "spec.port: want 1–65535"}
	refused  = objectstatus.Finding{Code: objectstatus.CodeRefused, Text: "RDS 9080 refused: no"}
)

// Each object's status has one writer among the leaders of all revisions, of which one leads them all.
func TestOneRevisionWritesEachStatus(t *testing.T) {
	for _, labels := range []map[string]string{nil, {"istio.io/rev": "default"}, {"istio.io/rev": "canary"}, {"app": "web"}} {
		for _, leader := range []string{"default", "canary"} {
			var writers []string
			for _, revision := range []string{"default", "canary"} {
				if objectstatus.Writes(labels, revision, revision == leader) {
					writers = append(writers, revision)
				}
			}
			want := leader
			if of, ok := labels["istio.io/rev"]; ok {
				want = of
			}
			if len(writers) != 1 || writers[0] != want {
				t.Errorf("labels %v, %s leads all: %v write, want %s", labels, leader, writers, want)
			}
		}
	}
	if objectstatus.Writes(map[string]string{"istio.io/rev": "gone"}, "default", true) {
		t.Error("an object that another revision uses is written")
	}
}

// TestDecide has what is said about what is known of an object.
func TestDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		newest, unknown int64
		o               objectstatus.Observation
		want            string // of the conditions; empty for nothing
	}{
		"all up to date": {5, 0, objectstatus.Observation{Generation: 5, InForce: 5, Counts: objectstatus.Counts{Proxies: 3, Applied: 3}},
			"True UpToDate 3/3 proxies up to date to latest generation 5 | True NothingFound "},
		"one is behind": {5, 0, objectstatus.Observation{Generation: 5, InForce: 5, Counts: objectstatus.Counts{Proxies: 3, Applied: 2}},
			"False StillPropagating 2/3 proxies up to date to latest generation 5 | True NothingFound "},
		"no proxy": {5, 0, objectstatus.Observation{Generation: 5, InForce: 5},
			"True NotUsed 0/0 proxies up to date to latest generation 5 | True NothingFound "},
		"a replica is silent": {5, 1, objectstatus.Observation{Generation: 5, InForce: 5, Counts: objectstatus.Counts{Proxies: 3, Applied: 3}},
			"False StillPropagating 3/3 proxies up to date to latest generation 5; 1 more replicas of the control plane have not reported | True NothingFound "},
		"refused": {5, 0, objectstatus.Observation{Generation: 5, InForce: 5, Refusals: []objectstatus.Finding{refused}, Counts: objectstatus.Counts{Proxies: 3, Applied: 2, Refused: 1}},
			"False RefusedByProxies 2/3 proxies up to date to latest generation 5; 1 have refused it | False ErrorsFound RDS 9080 refused: no"},
		"a warning": {5, 0, objectstatus.Observation{Generation: 5, InForce: 5, Findings: []objectstatus.Finding{notFound}, Counts: objectstatus.Counts{Proxies: 1, Applied: 1}},
			"True UpToDate 1/1 proxies up to date to latest generation 5 | False WarningsFound spec.hosts: is empty"},
		"rejected": {6, 0, objectstatus.Observation{Generation: 6, InForce: 5, Findings: []objectstatus.Finding{broken}, Counts: objectstatus.Counts{Proxies: 1, Applied: 1}},
			"False Rejected generation 6 is rejected; generation 5 stays in force | False ErrorsFound spec.port: want 1–65535"},
		"never in force": {1, 0, objectstatus.Observation{Generation: 1, Findings: []objectstatus.Finding{broken}},
			"False Rejected generation 1 is rejected; no version of the object is in force | False ErrorsFound spec.port: want 1–65535"},
		"a newer version is stored":        {6, 0, objectstatus.Observation{Generation: 5, InForce: 5}, ""},
		"a newer version is in force here": {5, 0, objectstatus.Observation{Generation: 6, InForce: 6}, ""},
	} {
		s, ok := objectstatus.Decide(tt.newest, &tt.o, int(tt.unknown))
		var got []string
		for _, c := range s.Conditions {
			got = append(got, c.Status+" "+c.Reason+" "+c.Message)
		}
		if text := strings.Join(got, " | "); text != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, text, ok, tt.want)
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	o := objectstatus.Observation{Generation: 1, InForce: 1}
	for range 60 {
		o.Findings = append(o.Findings, objectstatus.Finding{Code: objectstatus.CodeNotApplied, Text: strings.Repeat("ä", 4000)})
	}
	s, _ := objectstatus.Decide(1, &o, 0)
	if m := s.Conditions[1].Message; len(m) > 6000 || !strings.HasSuffix(m, "and 50 more") {
		t.Errorf("%d bytes: …%s", len(m), m[len(m)-20:])
	}
}

func TestFindingOf(t *testing.T) {
	for _, tt := range []struct {
		p    object.Problem
		want objectstatus.Finding
		ok   bool
	}{
		{object.Problem{Severity: object.Error, Field: "spec.port", Text: "want 1–65535"}, broken, true},
		{object.Problem{Severity: object.Warning, Field: "spec.hosts", Text: "is empty"}, notFound, true},
		{object.Problem{Severity: object.Info, Text: "is left out"}, objectstatus.Finding{}, false},
	} {
		if got, ok := objectstatus.FindingOf(tt.p); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%+v: %+v, %v", tt.p, got, ok)
		}
	}
}

// TestJoin: what replicas report is added, and a replica with another version in force has not applied this one.
func TestJoin(t *testing.T) {
	own := objectstatus.Observation{Generation: 5, InForce: 5, Counts: objectstatus.Counts{Proxies: 3, Applied: 3}}
	got := own.Join(
		objectstatus.Report{InForce: 5, Refusals: []objectstatus.Finding{refused}, Counts: objectstatus.Counts{Proxies: 4, Applied: 3, Refused: 1}},
		objectstatus.Report{InForce: 5, Refusals: []objectstatus.Finding{refused}, Counts: objectstatus.Counts{Proxies: 1, Refused: 1}},
		objectstatus.Report{InForce: 4, Counts: objectstatus.Counts{Proxies: 2, Applied: 2}},
	)
	want := own
	want.Refusals, want.Counts = []objectstatus.Finding{refused}, objectstatus.Counts{Proxies: 10, Applied: 6, Refused: 2}
	if !got.Same(&want) || own.Proxies != 3 {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// again is what a status is after it was stored and read.
func again(t *testing.T, status map[string]any) map[string]any {
	t.Helper()
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

func status(t *testing.T, newest int64, o objectstatus.Observation) objectstatus.Status {
	t.Helper()
	o.Generation = newest
	s, ok := objectstatus.Decide(newest, &o, 0)
	if !ok {
		t.Fatal("nothing is said")
	}
	return s
}

// TestMergeKeepsWhatOthersWrite: their conditions, messages and fields stay as they are and where they are.
func TestMergeKeepsWhatOthersWrite(t *testing.T) {
	stored := parse(t, `{"conditions": [{"type": "Programmed", "status": "True", "x": 1}, {"type": "Reconciled", "status": "True", "observedGeneration": "4",
		"lastTransitionTime": "2020-01-01T00:00:00Z"}, {"type": "Z"}], "validationMessages": [{"type": {"code": "IST0101"}, "level": "ERROR"}], "addresses": ["a"]}`)
	copied := again(t, stored)
	got, change := objectstatus.Merge(stored, status(t, 5, objectstatus.Observation{InForce: 5, Findings: []objectstatus.Finding{notFound}}), now)
	want := parse(t, `{"addresses": ["a"], "observedGeneration": 5,
		"conditions": [{"type": "Programmed", "status": "True", "x": 1},
			{"type": "Reconciled", "status": "True", "reason": "NotUsed", "message": "0/0 proxies up to date to latest generation 5", "observedGeneration": 5, "lastTransitionTime": "2020-01-01T00:00:00Z"},
			{"type": "Z"},
			{"type": "PassedAnalysis", "status": "False", "reason": "WarningsFound", "message": "spec.hosts: is empty", "observedGeneration": 5, "lastTransitionTime": "2026-01-02T03:04:05Z"}],
		"validationMessages": [{"type": {"code": "IST0101"}, "level": "ERROR"}, {"type": {"name": "NotApplied", "code": "PHS0002"}, "level": "WARNING"}]}`)
	if !reflect.DeepEqual(again(t, got), want) || change != objectstatus.VersionChange {
		t.Errorf("%v\n%v\nwant\n%v", change, got, want)
	}
	if !reflect.DeepEqual(stored, copied) {
		t.Errorf("the stored status was modified: %v", stored)
	}
}

// TestMergeSaysHowStatusesDiffer has a stored status, made from an observation, and what is observed now.
func TestMergeSaysHowStatusesDiffer(t *testing.T) {
	counts := func(applied, proxies int) objectstatus.Observation {
		return objectstatus.Observation{InForce: 5, Counts: objectstatus.Counts{Proxies: proxies, Applied: applied}}
	}
	warned, refusing := counts(3, 3), counts(2, 3)
	warned.Findings = []objectstatus.Finding{notFound}
	refusing.Refused, refusing.Refusals = 1, []objectstatus.Finding{refused}
	for name, tt := range map[string]struct {
		stored, now objectstatus.Observation
		newest      int64
		want        objectstatus.Change
	}{
		"the same":              {counts(3, 3), counts(3, 3), 5, objectstatus.Unchanged},
		"the same warning":      {warned, warned, 5, objectstatus.Unchanged},
		"another version":       {counts(3, 3), counts(3, 3), 6, objectstatus.VersionChange},
		"more proxies":          {counts(3, 3), counts(4, 4), 5, objectstatus.CountChange},
		"a new proxy is behind": {counts(3, 3), counts(3, 4), 5, objectstatus.LagChange},
		"all proxies have gone": {counts(3, 3), counts(0, 0), 5, objectstatus.LagChange},
		"progress":              {counts(1, 3), counts(2, 3), 5, objectstatus.ProgressChange},
		"the end of it":         {counts(1, 3), counts(3, 3), 5, objectstatus.ProgressChange},
		"the first proxy":       {counts(0, 0), counts(1, 1), 5, objectstatus.ProgressChange},
		"a refusal":             {counts(3, 3), refusing, 5, objectstatus.FindingChange},
		"a warning":             {counts(3, 3), warned, 5, objectstatus.FindingChange},
		"no warning":            {warned, counts(3, 3), 5, objectstatus.FindingChange},
	} {
		first, change := objectstatus.Merge(nil, status(t, 5, tt.stored), now)
		if change != objectstatus.VersionChange {
			t.Errorf("%s: a status that does not exist differs by %d", name, change)
		}
		if got, change := objectstatus.Merge(again(t, first), status(t, tt.newest, tt.now), now.Add(time.Hour)); change != tt.want {
			t.Errorf("%s: %d, want %d: %v", name, change, tt.want, got)
		}
	}
	// The field is removed with its last message.
	first, _ := objectstatus.Merge(nil, status(t, 5, warned), now)
	second, _ := objectstatus.Merge(again(t, first), status(t, 5, counts(3, 3)), now)
	if v, ok := second["validationMessages"]; v != nil || !ok {
		t.Errorf("messages %v, %v; want null, which removes them", v, ok)
	}
}

var pace = objectstatus.Pace{Interval: 3 * time.Second, CountInterval: time.Minute, Hold: 30 * time.Second, Grace: 20 * time.Second, Counts: time.Second}

func key(name string) object.Key {
	return object.Key{Kind: object.VirtualService, Namespace: "shop", Name: name}
}

func TestPace(t *testing.T) {
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	p := objectstatus.NewPacer(pace, now)
	due := func(what string, change objectstatus.Change, text string, when, want int) {
		t.Helper()
		if got := p.Due(key("a"), change, text, at(when)); !got.Equal(at(want)) {
			t.Errorf("%s: due after %s, want %ds", what, got.Sub(now), want)
		}
	}
	due("findings wait for the end of the grace", objectstatus.FindingChange, "x", 0, 20)
	due("a new version does not", objectstatus.VersionChange, "5", 1, 1)
	p.Wrote(key("a"), "5", at(1))
	due("progress comes after the interval", objectstatus.ProgressChange, "5 2/3", 2, 4)
	p.Wrote(key("a"), "5 2/3", at(4))
	due("a delay must last", objectstatus.LagChange, "5 lag", 10, 40)
	due("it counts from its beginning", objectstatus.LagChange, "5 lag", 20, 40)
	if !p.Due(key("a"), objectstatus.Unchanged, "", at(21)).IsZero() {
		t.Error("nothing is to be written, and is due")
	}
	due("the next one counts anew", objectstatus.LagChange, "5 lag", 30, 60)
	due("a refusal is written at once", objectstatus.FindingChange, "5 refused", 31, 31)
	p.Wrote(key("a"), "5 refused", at(31))
	due("counts have an interval of their own", objectstatus.CountChange, "5 4/4", 40, 91)
	p.Forget(key("a"))
	due("a new object is new", objectstatus.VersionChange, "1", 41, 41)
}

// TestCountsAreSpread: counts of many objects that change at once are written one after another.
func TestCountsAreSpread(t *testing.T) {
	p := objectstatus.NewPacer(pace, now)
	for i, name := range []string{"a", "b", "c"} {
		if got, want := p.Due(key(name), objectstatus.CountChange, "1/1", now), now.Add(time.Duration(30+i)*time.Second); !got.Equal(want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestSomebodyWhoUndoesWritesIsNotFought: the same is written again at growing intervals.
func TestSomebodyWhoUndoesWritesIsNotFought(t *testing.T) {
	p := objectstatus.NewPacer(pace, now)
	at, writes := now, 0
	for end := now.Add(time.Hour); at.Before(end); writes++ {
		at = p.Due(key("a"), objectstatus.VersionChange, "5", at)
		if again := p.Wrote(key("a"), "5", at); again != writes {
			t.Fatalf("write %d is the %d. repetition", writes, again)
		}
	}
	if writes > 22 {
		t.Errorf("%d writes in an hour", writes)
	}
}
