package discovery

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// scratchLog logs the differences between two complete lists of problems. The loop, which computes
// them from changes, must log the same.
type scratchLog struct {
	logged map[string]object.Severity
	lines  []string
}

// commit compares all current problems with those logged before.
func (s *scratchLog) commit(l *loop, source []object.Problem) (unenforced []string) {
	all := append(slices.Clone(source), l.store.Verdicts()...)
	now, seen := map[string]object.Severity{}, map[object.Policy]bool{}
	s.lines = nil
	for _, v := range all {
		_, good := l.store.Get(policyObject(v.Policy))
		if v.Severity == object.Error && v.Policy.Broken && !good && !seen[v.Policy] {
			seen[v.Policy] = true
			unenforced = append(unenforced, v.Error())
			v.Text += l.effect(v)
		}
		text := v.Error()
		now[text] = v.Severity
		if _, logged := s.logged[text]; logged {
			continue
		}
		s.logged[text] = v.Severity
		if v.Severity != object.Info {
			s.lines = append(s.lines, "+ "+text)
		}
	}
	for text, severity := range s.logged {
		if _, stands := now[text]; !stands && severity != object.Info {
			s.lines = append(s.lines, "- "+text)
		}
	}
	s.logged = now
	slices.Sort(s.lines)
	return unenforced
}

// loggedProblems collects the log's lines about problems.
type loggedProblems struct {
	bytes.Buffer
	t *testing.T
}

// take returns and removes the lines, sorted by text.
func (l *loggedProblems) take() []string {
	var out []string
	for line := range strings.Lines(l.String()) {
		sign := "+ "
		if strings.Contains(line, "problem is gone") {
			sign = "- "
		}
		if _, quoted, ok := strings.Cut(line, " problem="); ok {
			text := ""
			if _, err := fmt.Sscanf(quoted, "%q", &text); err != nil {
				l.t.Fatalf("read the line %q: %v", line, err)
			}
			out = append(out, sign+text)
		}
	}
	l.Reset()
	slices.Sort(out)
	return out
}

// Each problem is logged once when it appears and once when it disappears.
func TestProblemsAreLoggedAsFromScratch(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignore=%v", ignore), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			lines := &loggedProblems{t: t}
			l := newLoop("cluster.local", compile.Options{}, Lenience{BrokenPolicies: ignore}, openKeeper(wait.Folder(t), "", slog.New(slog.DiscardHandler)), slog.New(slog.NewTextHandler(lines, nil)))
			l.commit(object.Batch{Synced: true})
			lines.Reset()
			scratch, source := &scratchLog{logged: map[string]object.Severity{}}, []object.Problem(nil)
			for step := range 3000 {
				b := randomBatch(r)
				if b.Problems != nil {
					source = b.Problems
				}
				l.commit(b)
				unenforced := scratch.commit(l, source)
				if got := lines.take(); !slices.Equal(got, scratch.lines) {
					t.Fatalf("step %d: logged\n%s\nfrom scratch it would be\n%s", step, strings.Join(got, "\n"), strings.Join(scratch.lines, "\n"))
				}
				var got []string
				for _, v := range l.problems.unenforced {
					got = append(got, v.Error())
				}
				if !slices.Equal(got, unenforced) {
					t.Fatalf("step %d: not enforced\n%s\nwant\n%s", step, strings.Join(got, "\n"), strings.Join(unenforced, "\n"))
				}
			}
			if len(l.problems.policies) > len(l.problems.lines) || len(l.problems.byKey) > len(l.problems.policies) {
				t.Errorf("%d policies by %d keys are remembered for %d lines", len(l.problems.policies), len(l.problems.byKey), len(l.problems.lines))
			}
		})
	}
}

// randomBatch changes some of a few objects, half of them to invalid ones, and sometimes the source's
// problems, some of which are about the same objects.
func randomBatch(r *rand.Rand) object.Batch {
	var b object.Batch
	for range r.IntN(3) {
		kind := []object.Kind{object.VirtualService, object.PeerAuthentication}[r.IntN(2)]
		k := object.Key{Kind: kind, Namespace: "shop", Name: fmt.Sprint(r.IntN(3))}
		c := object.Change{Key: k}
		if bad := r.IntN(2) == 0; r.IntN(3) > 0 {
			c.Object = &object.Object{Key: k, Origin: object.Origin{File: "a.yaml", Line: 1 + r.IntN(2)}, Spec: randomSpec(kind, bad, r)}
		}
		b.Changes = append(b.Changes, c)
	}
	if r.IntN(3) == 0 {
		b.Problems = []object.Problem{}
		for range r.IntN(4) {
			severity := object.Severity(r.IntN(3))
			p := object.Problem{Origin: object.Origin{File: "b.yaml", Line: 1 + r.IntN(2)}, Text: severity.String(), Severity: severity}
			if r.IntN(2) == 0 {
				p.Policy = object.Policy{Broken: true, Key: object.Key{Kind: object.PeerAuthentication, Namespace: "shop", Name: fmt.Sprint(r.IntN(3))}}
			}
			b.Problems = append(b.Problems, p)
		}
	}
	return b
}

func randomSpec(kind object.Kind, bad bool, r *rand.Rand) any {
	if kind == object.VirtualService {
		weight := int32(1)
		if bad {
			weight = -1
		}
		return &networking.VirtualService{Hosts: []string{"web"}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{
			{Destination: &networking.Destination{Host: "web"}, Weight: weight},
		}}}}
	}
	spec := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_STRICT}}
	if bad {
		spec.PortLevelMtls = map[uint32]*security.PeerAuthentication_MutualTLS{80: spec.Mtls, 81: {Mode: 77}}
		if r.IntN(2) == 0 {
			spec.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": "web", "": "x"}}
		}
	}
	return spec
}
