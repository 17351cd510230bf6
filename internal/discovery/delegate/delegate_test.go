package delegate_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/delegate"
	"github.com/pilothouse/pilothouse/test/wait"
)

func parse(t *testing.T, text string) *networking.VirtualService {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v := &networking.VirtualService{}
	if err := protojson.Unmarshal(j, v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

const domain = "cluster.local"

// merge merges into a root of namespace shop, with delegates by "namespace/name".
func merge(root *networking.VirtualService, byDefault []string, delegates map[string]*networking.VirtualService) ([]*networking.HTTPRoute, []delegate.Problem) {
	return delegate.Merge("shop", root, delegate.Mesh{
		Domain: domain, ExportTo: byDefault,
		Find: func(namespace, name string) *networking.VirtualService { return delegates[namespace+"/"+name] },
	})
}

func TestMerge(t *testing.T) {
	const to = `, route: [{destination: {host: web}}]`
	const full = `, route: [{destination: {host: web.team.svc.cluster.local}}]`
	for name, c := range map[string]struct {
		root, sub string // http routes
		want      string // http routes, and problems after "!"
	}{
		"without matches":          {`{delegate: {name: d, namespace: team}}`, `{name: x` + to + `}`, `{name: x` + full + `}`},
		"the root's matches":       {`{match: [{uri: {prefix: /a}}], delegate: {name: d, namespace: team}}`, `{name: x` + to + `}`, `{name: x, match: [{uri: {prefix: /a}}]` + full + `}`},
		"the delegate's matches":   {`{delegate: {name: d, namespace: team}}`, `{match: [{uri: {regex: x}}]` + to + `}`, `{match: [{uri: {regex: x}}]` + full + `}`},
		"a longer prefix":          {`{match: [{uri: {prefix: /a}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {prefix: /a/b}}]` + to + `}`, `{match: [{uri: {prefix: /a/b}}]` + full + `}`},
		"a path below it":          {`{match: [{uri: {prefix: /a}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {exact: /a/b}}]` + to + `}`, `{match: [{uri: {exact: /a/b}}]` + full + `}`},
		"another prefix":           {`{match: [{uri: {prefix: /a}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {prefix: /b}}]` + to + `}`, `! is not within`},
		"one of two is outside":    {`{match: [{uri: {prefix: /a}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {prefix: /a/x}}, {uri: {prefix: /b}}]` + to + `}`, `! http[0].match[1] is not within`},
		"a prefix of an exact one": {`{match: [{uri: {exact: /a}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {prefix: /a}}]` + to + `}`, `! is not within`},
		"the same exact one":       {`{match: [{uri: {exact: /a}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {exact: /a}}]` + to + `}`, `{match: [{uri: {exact: /a}}]` + full + `}`},
		"expressions":              {`{match: [{uri: {regex: /a.*}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {regex: /a.*}}]` + to + `}`, `! is not within`},
		"case":                     {`{match: [{uri: {prefix: /a}, ignoreUriCase: true}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {prefix: /a}}]` + to + `}`, `! is not within`},
		"case of the root's path":  {`{match: [{uri: {prefix: /a}, ignoreUriCase: true}], delegate: {name: d, namespace: team}}`, `{match: [{method: {exact: GET}}]` + to + `}`, `{match: [{uri: {prefix: /a}, ignoreUriCase: true, method: {exact: GET}}]` + full + `}`},
		"every condition": {
			`{match: [{name: r, scheme: {exact: http}, authority: {exact: a}, headers: {h: {exact: x}}, withoutHeaders: {w: {exact: x}}, queryParams: {q: {exact: x}}, port: 80, sourceLabels: {app: a}, sourceNamespace: ns, gateways: [gw], statPrefix: s}], delegate: {name: d, namespace: team}}`,
			`{match: [{name: s, method: {exact: GET}, headers: {i: {exact: z}}, withoutHeaders: {v: {exact: z}}, queryParams: {p: {exact: z}}, sourceLabels: {rack: b}, gateways: [shop/gw]}]` + to + `}`,
			`{match: [{name: r-s, scheme: {exact: http}, authority: {exact: a}, method: {exact: GET}, headers: {h: {exact: x}, i: {exact: z}}, withoutHeaders: {w: {exact: x}, v: {exact: z}}, queryParams: {q: {exact: x}, p: {exact: z}}, port: 80, sourceLabels: {app: a, rack: b}, sourceNamespace: ns, gateways: [shop/gw], statPrefix: s}]` + full + `}`,
		},
		"a header that is there":      {`{match: [{headers: {h: {}}}], delegate: {name: d, namespace: team}}`, `{match: [{headers: {h: {exact: x}}}]` + to + `}`, `{match: [{headers: {h: {exact: x}}}]` + full + `}`},
		"another header's value":      {`{match: [{headers: {h: {exact: z}}}], delegate: {name: d, namespace: team}}`, `{match: [{headers: {h: {exact: x}}}]` + to + `}`, `! is not within`},
		"fewer absent values":         {`{match: [{withoutHeaders: {h: {prefix: x}}}], delegate: {name: d, namespace: team}}`, `{match: [{withoutHeaders: {h: {prefix: xy}}}]` + to + `}`, `! is not within`},
		"more absent values":          {`{match: [{withoutHeaders: {h: {prefix: xy}}}], delegate: {name: d, namespace: team}}`, `{match: [{withoutHeaders: {h: {prefix: x}}}]` + to + `}`, `{match: [{withoutHeaders: {h: {prefix: x}}}]` + full + `}`},
		"another port":                {`{match: [{port: 80}], delegate: {name: d, namespace: team}}`, `{match: [{port: 81}]` + to + `}`, `! is not within`},
		"another label":               {`{match: [{sourceLabels: {app: a}}], delegate: {name: d, namespace: team}}`, `{match: [{sourceLabels: {app: b}}]` + to + `}`, `! is not within`},
		"another namespace":           {`{match: [{sourceNamespace: a}], delegate: {name: d, namespace: team}}`, `{match: [{sourceNamespace: b}]` + to + `}`, `! is not within`},
		"another namespace's gateway": {`{match: [{gateways: [gw]}], delegate: {name: d, namespace: team}}`, `{match: [{gateways: [gw]}]` + to + `}`, `! is not within`},
		"two by two":                  {`{match: [{uri: {prefix: /a}}, {uri: {prefix: /a/b}}], delegate: {name: d, namespace: team}}`, `{match: [{uri: {prefix: /a/b/c}}, {uri: {exact: /a/x}}]` + to + `}`, `{match: [{uri: {prefix: /a/b/c}}, {uri: {prefix: /a/b/c}}, {uri: {exact: /a/x}}]` + full + `}`},
		"the root's values": {
			`{name: r, timeout: 1s, retries: {attempts: 1}, rewrite: {uri: /}, fault: {abort: {httpStatus: 500}}, mirror: {host: m}, mirrorPercentage: {value: 1}, mirrors: [{destination: {host: m}}], corsPolicy: {}, headers: {request: {set: {a: b}}}, delegate: {name: d, namespace: team}}`,
			`{name: x` + to + `}`,
			`{name: r-x, timeout: 1s, retries: {attempts: 1}, rewrite: {uri: /}, fault: {abort: {httpStatus: 500}}, mirror: {host: m}, mirrorPercentage: {value: 1}, mirrors: [{destination: {host: m}}], corsPolicy: {}, headers: {request: {set: {a: b}}}` + full + `}`,
		},
		"the delegate's values": {
			`{timeout: 1s, rewrite: {uri: /r}, headers: {request: {set: {a: b}}}, delegate: {name: d, namespace: team}}`,
			`{timeout: 2s, rewrite: {uri: /d}, headers: {response: {set: {c: d}}}, mirror: {host: m}, mirrors: [{destination: {host: k}}]` + to + `}`,
			`{timeout: 2s, rewrite: {uri: /d}, headers: {response: {set: {c: d}}}, mirror: {host: m.team.svc.cluster.local}, mirrors: [{destination: {host: k.team.svc.cluster.local}}]` + full + `}`,
		},
		"answers are not rewritten": {`{rewrite: {uri: /r}, fault: {abort: {httpStatus: 500}}, delegate: {name: d, namespace: team}}`, `{redirect: {uri: /x}}, {directResponse: {status: 200}}`, `{redirect: {uri: /x}}, {directResponse: {status: 200}}`},
		"a delegate of a delegate":  {`{delegate: {name: d, namespace: team}}`, `{delegate: {name: e}}, {name: x` + to + `}`, `{name: x` + full + `}! http[0] delegates itself`},
		"none":                      {`{delegate: {name: lost}}, {name: x, route: [{destination: {host: web}}]}`, ``, `{name: x, route: [{destination: {host: web}}]}! there is no VirtualService shop/lost`},
	} {
		wantText, wantProblem, _ := strings.Cut(c.want, "!")
		root, sub := parse(t, `{hosts: [a], http: [`+c.root+`]}`), parse(t, `{http: [`+c.sub+`]}`)
		before := proto.CloneOf(root)
		got, problems := merge(root, []string{"*"}, map[string]*networking.VirtualService{"team/d": sub})
		want := parse(t, `{http: [`+wantText+`]}`)
		if !proto.Equal(&networking.VirtualService{Http: got}, want) {
			t.Errorf("%s:\n got %v\nwant %v", name, got, want.Http)
		}
		var text string
		if len(problems) > 0 {
			text = problems[0].Text
		}
		if len(problems) > 1 || (wantProblem == "") != (text == "") || !strings.Contains(text, strings.TrimSpace(wantProblem)) {
			t.Errorf("%s: problems %v, want %q", name, problems, wantProblem)
		}
		if !proto.Equal(root, before) {
			t.Errorf("%s: the root has been modified", name)
		}
	}
}

func TestWhoMayUseADelegate(t *testing.T) {
	root := parse(t, `{hosts: [a], http: [{delegate: {name: d, namespace: team}}]}`)
	const routes = `http: [{route: [{destination: {host: web}}]}]`
	for _, c := range []struct {
		spec      string
		byDefault []string
		want      string
	}{
		{`{` + routes + `}`, []string{"*"}, ""},
		{`{` + routes + `}`, []string{"."}, "not exported to namespace shop"},
		{`{exportTo: ["."], ` + routes + `}`, []string{"*"}, "not exported to namespace shop"},
		{`{exportTo: [shop], ` + routes + `}`, []string{"."}, ""},
		{`{hosts: [b], ` + routes + `}`, []string{"*"}, "has hosts"},
	} {
		got, problems := merge(root, c.byDefault, map[string]*networking.VirtualService{"team/d": parse(t, c.spec)})
		if (len(got) == 1) != (c.want == "") || (len(problems) == 0) != (c.want == "") || len(problems) > 0 && !strings.Contains(problems[0].Text, c.want) {
			t.Errorf("%s, default %v: %d routes, %v; want %q", c.spec, c.byDefault, len(got), problems, c.want)
		}
	}
}

// Two objects of a size that is accepted would have as many merged matches as the product of theirs.
func TestMatchesAreBounded(t *testing.T) {
	matches := func(prefix string, n int) (out []*networking.HTTPMatchRequest) {
		for i := range n {
			out = append(out, &networking.HTTPMatchRequest{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: fmt.Sprint(prefix, i)}}})
		}
		return out
	}
	root := &networking.VirtualService{Hosts: []string{"a"}}
	for range 3 {
		root.Http = append(root.Http, &networking.HTTPRoute{Match: matches("/", 10_000), Delegate: &networking.Delegate{Name: "d"}})
	}
	sub := &networking.VirtualService{Http: []*networking.HTTPRoute{{Match: matches("/", 10_000)}, {Match: matches("/", 1)}}}
	got, problems := merge(root, nil, map[string]*networking.VirtualService{"shop/d": sub})
	if len(got) != 0 || len(problems) != 6 || !strings.Contains(problems[0].Text, "too many matches") {
		t.Errorf("%d routes, %d problems", len(got), len(problems))
	}
}

// request is what the matches of TestMergedRoutesAreWithinTheRoots look at.
type request struct{ path, header string }

func matchesText(m *networking.StringMatch, text string) bool {
	switch {
	case m.GetExact() != "":
		return text == m.GetExact()
	case m.GetPrefix() != "":
		return strings.HasPrefix(text, m.GetPrefix())
	}
	return text != ""
}

func (q request) matches(list []*networking.HTTPMatchRequest) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(m *networking.HTTPMatchRequest) bool {
		if m.Uri != nil && !matchesText(m.Uri, q.path) {
			return false
		}
		if h, ok := m.Headers["h"]; ok && !matchesText(h, q.header) {
			return false
		}
		h, ok := m.WithoutHeaders["h"]
		return !ok || !matchesText(h, q.header)
	})
}

// Whatever a delegate says, its routes match no request that its root does not give it, and none that it does not ask for.
func TestMergedRoutesAreWithinTheRoots(t *testing.T) {
	seed := wait.Seed(t, 1)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // of a test
	texts := []string{"/a", "/a/b", "/a/bc", "/b", "/ab"}
	value := func() *networking.StringMatch {
		text := texts[r.IntN(len(texts))]
		if r.IntN(2) == 0 {
			return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: text}}
		}
		return &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: text}}
	}
	list := func() (out []*networking.HTTPMatchRequest) {
		for range r.IntN(3) {
			m := &networking.HTTPMatchRequest{}
			if r.IntN(3) > 0 {
				m.Uri = value()
			}
			if r.IntN(3) == 0 {
				m.Headers = map[string]*networking.StringMatch{"h": value()}
			}
			if r.IntN(3) == 0 {
				m.WithoutHeaders = map[string]*networking.StringMatch{"h": value()}
			}
			out = append(out, m)
		}
		return out
	}
	merges := 0
	for range 20_000 {
		root := &networking.VirtualService{Hosts: []string{"a"}, Http: []*networking.HTTPRoute{{Match: list(), Delegate: &networking.Delegate{Name: "d"}}}}
		sub := &networking.VirtualService{Http: []*networking.HTTPRoute{{Match: list()}}}
		got, problems := merge(root, nil, map[string]*networking.VirtualService{"shop/d": sub})
		if len(got)+len(problems) != 1 {
			t.Fatalf("%v and %v: %v, %v", root, sub, got, problems)
		}
		if len(got) == 0 {
			continue
		}
		merges++
		for _, path := range texts {
			for _, header := range append(texts, "") {
				q := request{path, header}
				is, should := q.matches(got[0].Match), q.matches(root.Http[0].Match) && q.matches(sub.Http[0].Match)
				if is && !should {
					t.Fatalf("%v in %v is %v: %+v is outside", sub.Http[0].Match, root.Http[0].Match, got[0].Match, q)
				}
			}
		}
	}
	if merges < 1000 {
		t.Errorf("only %d delegates were merged", merges)
	}
}
