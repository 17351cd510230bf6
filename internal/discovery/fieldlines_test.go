package discovery

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Problems are at the lines of their fields: what is invalid, what has no effect, and references that lead nowhere.
func TestProblemsAreAtTheLinesOfTheirFields(t *testing.T) {
	const route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata:\n  name: v\n  namespace: shop\nspec:\n  hosts: [v]\n  http:\n  - route:\n    - destination:\n        host: missing\n        subset: none\n"
	l := newLife(t, map[string]string{"a.yaml": "# first\n---\n" + route, "b.yaml": strings.Replace(strings.Replace(route, "name: v", "name: w", 1), "hosts: [v]", "hosts: [w]\n  exportTo: ['?']", 1)})
	l.start()
	defer l.stop()
	page := func() string { _, body := l.plane.get(l.plane.addr.HTTP, "/debug/objectz"); return body }
	body := page()
	for _, want := range []string{
		filepath.Join(l.config, "a.yaml") + `:13","severity":"warning","field":"spec.http[0].route[0].destination.host"`,
		filepath.Join(l.config, "b.yaml") + `:8","severity":"error","field":"spec.exportTo`,
	} {
		if !strings.Contains(strings.NewReplacer(" ", "", "\n", "").Replace(body), want) {
			t.Errorf("the page lacks %q: %s", want, body)
		}
	}
	if again := page(); again != body {
		t.Errorf("another answer about the same files:\n%s\n%s", body, again)
	}
	l.write("a.yaml", "# first\n# second\n---\n"+route)
	wait.Until(t, "the line has moved", func() bool { return strings.Contains(page(), "a.yaml:14") })
}

// The log has the lines that the page has, when a problem comes up and when it is gone.
func TestTheLogHasTheLinesOfFields(t *testing.T) {
	var log wait.Output
	const route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata:\n  name: v\n  namespace: shop\nspec:\n  hosts: [v]\n  exportTo: ['?']\n"
	l := newLife(t, map[string]string{"a.yaml": route})
	l.adjust = func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) }
	l.start()
	defer l.stop()
	at := filepath.Join(l.config, "a.yaml") + ":8: VirtualService shop/v: spec.exportTo"
	told := func(message string) func() bool {
		return func() bool {
			return slices.ContainsFunc(strings.Split(log.String(), "\n"), func(line string) bool { return strings.Contains(line, message) && strings.Contains(line, at) })
		}
	}
	wait.Until(t, "the log has the line of the field", told("configuration is not applied"))
	l.write("a.yaml", "# nothing is wrong\n"+strings.Replace(route, "'?'", "'.'", 1))
	wait.Until(t, "the log says that it is gone, with the same line", told("configuration problem is gone"))
}

// A file that has another object at the line, as while it cannot be read, says nothing about it.
func TestLinesOfAnotherObjectAreNotTaken(t *testing.T) {
	l := newLife(t, map[string]string{"a.yaml": "kind: Service\nmetadata: {name: other}\nspec:\n  ports: []\n"})
	at := object.Origin{File: filepath.Join(l.config, "a.yaml"), Line: 1}
	all := []object.Problem{
		{Origin: at, Field: "spec.ports", Key: object.Key{Kind: object.Service, Name: "gone"}},
		{Origin: at, Field: "spec.ports", Key: object.Key{Kind: object.Service, Name: "other"}},
		{Origin: object.Origin{File: "/nowhere.yaml", Line: 3}, Field: "spec.ports", Key: object.Key{Kind: object.Service, Name: "other"}},
	}
	new(fieldLines).place(all)
	if all[0].Origin.Line != 1 || all[1].Origin.Line != 4 || all[2].Origin.Line != 3 {
		t.Errorf("%+v", all)
	}
}

// Labels of sessions without the filter for them are a problem of their Service, at their line.
func TestSessionsWithoutTheirFilterAreAProblem(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: cart\n  namespace: shop\n  labels:\n    istio.io/persistent-session: cart\nspec: {ports: [{port: 80}]}\n"
	for _, filter := range []bool{false, true} {
		l := newLife(t, map[string]string{"a.yaml": service})
		l.adjust = func(o *Options) { o.Compile.Sessions = filter }
		l.start()
		_, body := l.plane.get(l.plane.addr.HTTP, "/debug/objectz")
		want := filepath.Join(l.config, "a.yaml") + `:7","severity":"warning","field":"metadata.labels[istio.io/persistent-session]","text":"notapplied`
		if got := strings.Contains(strings.NewReplacer(" ", "", "\n", "").Replace(body), want); got == filter {
			t.Errorf("with the filter %v the page has the problem: %v\n%s", filter, got, body)
		}
		l.stop()
	}
}
