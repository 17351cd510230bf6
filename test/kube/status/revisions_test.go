package status_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/test/wait"
)

// canaryRules are what a second revision needs beside the documented rules.
const canaryRules = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: canary}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [istio-canary], verbs: [list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update], resourceNames: [pilothouse-leader-canary]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: canary}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: canary}
subjects: [{kind: ServiceAccount, name: istiod}]
`

// labelled is a VirtualService of a revision, or of all.
func labelled(name, revision string) string {
	text := strings.ReplaceAll(route("first"), "reviews", name)
	if revision != "" {
		text = strings.Replace(text, "{name: "+name+"}", "{name: "+name+", labels: {istio.io/rev: "+revision+"}}", 1)
	}
	return text + "---\n" + strings.ReplaceAll(service, "reviews", name)
}

// Two revisions in one namespace write each status once: that of an object of one revision is written by this one, that of others
// by one of the two, with the proxies of both. When the one that leads both ends, the other one goes on.
func TestRevisionsDoNotUndoEachOthersStatuses(t *testing.T) {
	e := begin(t)
	e.c.Apply(t, e.system, strings.Replace(canaryRules, "name: istiod", "name: istiod, namespace: "+e.system, 1))
	e.plane.stop()
	e.pace = objectstatus.Pace{Interval: time.Second, CountInterval: 2 * time.Second, Hold: time.Second, Grace: time.Second, Counts: 10 * time.Millisecond}
	e.plane = e.startOf("istiod-1", "default")
	wait.Until(t, "the default revision leads", func() bool { return e.plane.metric("pilothouse_leader") == "1" })
	canary := e.startOf("istiod-canary-1", "canary")
	wait.Until(t, "the canary leads itself", func() bool { return canary.metric("pilothouse_revision_leader") == "1" })
	if canary.metric("pilothouse_leader") != "0" {
		t.Error("two revisions lead all")
	}
	connect(t, e.shop, "a", e.grpc())
	connect(t, e.shop, "b", canary.server.Addresses().GRPC)
	connect(t, e.shop, "c", canary.server.Addresses().GRPC)
	for name, revision := range map[string]string{"all": "", "stable": "default", "next": "canary"} {
		e.c.Apply(t, e.shop, labelled(name, revision))
	}
	e.until("all", "True UpToDate 3/3 proxies up to date to latest generation 1 | True NothingFound ")
	e.until("stable", "True UpToDate 1/1 proxies up to date to latest generation 1 | True NothingFound ")
	e.until("next", "True UpToDate 2/2 proxies up to date to latest generation 1 | True NothingFound ")
	// Both write the objects of their revisions, and each is written a few times only.
	written, size := e.written(0)
	count := func(all []string, name string) (n int) {
		for _, o := range all {
			if strings.HasSuffix(o, e.shop+"/"+name) {
				n++
			}
		}
		return n
	}
	for _, name := range []string{"all", "stable", "next"} {
		if n := count(written, name); n < 1 || n > 6 {
			t.Errorf("the status of %s was written %d times", name, n)
		}
	}
	if e.plane.metric("pilothouse_status_writes_total") == "0" || canary.metric("pilothouse_status_writes_total") == "0" {
		t.Error("a revision has written nothing")
	}
	// Nothing changes, so nothing is written: for as long as several looks at the reports of the other one take.
	<-time.After(8 * time.Second)
	if again, _ := e.written(size); slices.ContainsFunc(again, func(o string) bool { return strings.Contains(o, e.shop+"/") }) {
		t.Errorf("written although nothing has changed: %q", again)
	}
	e.plane.stop()
	wait.Until(t, "the canary leads all", func() bool { return canary.metric("pilothouse_leader") == "1" })
	e.c.Apply(t, e.shop, strings.Replace(labelled("all", ""), "name: first", "name: second", 1))
	e.until("all", "True UpToDate 2/2 proxies up to date to latest generation 2 | True NothingFound ")
	if s := e.untilHas("stable", "generation 1"); s.ObservedGeneration != 1 {
		t.Errorf("the status of an object of a revision that has ended was changed: %+v", s)
	}
}
