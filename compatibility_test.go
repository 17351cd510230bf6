package pilothouse_test

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
)

func TestCompatibilityRowsAreWhole(t *testing.T) {
	p := loadPages(t)
	for _, m := range p.mistakes {
		t.Error(m)
	}
	shown := newProofs(t)
	first := map[string]entry{}
	for _, e := range p.rows {
		key := string(e.part) + " " + e.id
		if old, twice := first[key]; twice {
			t.Errorf("%s is also the id of %s", e.where(), old.where())
		}
		first[key] = e
		if !rowID.MatchString(e.id) {
			t.Errorf("%s: want an id such as S8 or 1.7.12", e.where())
		}
		if e.hasStatus && !statuses.MatchString(e.status) {
			t.Errorf("%s: status %q: want full, part, no, or different on purpose (the reason)", e.where(), e.status)
		}
		names := proofNames(e.shown)
		if len(names) == 0 && (e.status == "full" || e.status == "part") {
			t.Errorf("%s is %s and names no test, golden or sample", e.where(), e.status)
		}
		for _, n := range names {
			if why := shown.missing(n); why != "" {
				t.Errorf("%s: %s: %s", e.where(), n, why)
			}
		}
	}
}

var (
	proofName = regexp.MustCompile("`([^`]+)`")
	testName  = regexp.MustCompile(`^([\w/-]+)\.((?:Test|Fuzz)\w*)$`)
)

func proofNames(cell string) []string {
	var out []string
	for _, m := range proofName.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// proofs are the tests and files that rows may name.
type proofs struct {
	tests map[string][]string // name of a test to the directories that have one
	files []string
}

func newProofs(t *testing.T) proofs {
	t.Helper()
	p := proofs{tests: map[string][]string{}}
	for _, s := range sources(t) {
		for _, d := range s.AST.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.Test && f.Recv == nil {
				p.tests[f.Name.Name] = append(p.tests[f.Name.Name], s.Dir)
			}
		}
	}
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("list the tree's files: %v", err)
	}
	for _, f := range strings.Fields(string(out)) {
		if _, err := os.Stat(f); err == nil {
			p.files = append(p.files, f)
		}
	}
	return p
}

// missing says why a name means no test and no file, or not only one.
func (p proofs) missing(name string) string {
	have, want := p.files, name
	if m := testName.FindStringSubmatch(name); m != nil {
		have, want = p.tests[m[2]], m[1]
	}
	n := 0
	for _, h := range have {
		if h == want || strings.HasSuffix(h, "/"+want) {
			n++
		}
	}
	switch n {
	case 0:
		return "there is no such test or file; write package.TestName, or the end of a file's path"
	case 1:
		return ""
	}
	return fmt.Sprintf("%d have this name; write more of the path", n)
}

// What a comment must not hold: documents that are not in the repository, and what looks like a citation of a row.
var (
	foreign  = regexp.MustCompile(`(?i)\b(?:agent|envoy|control-plane)\.md\b|\bappendix\b|\b(?:agent|control-plane)\s+reference\b|\breference\s+\d`)
	citation = regexp.MustCompile(`\[(?:agent|control-plane|envoy)(?:\s[^\]]*)?\]|\[§?[A-Z]{1,2}\d+\b[^\]]*\]|\([A-Z]\d{1,2}(?:[ ,;][^)]*)?\)`)
	cited    = regexp.MustCompile(`^\[(agent|control-plane|envoy) ([^\]]+)\]$`)
)

// resolve returns what is wrong with a citation. Its form is [part item, item, …]; an item is the id of
// a row, a range of ids such as S3–S7, or the number of a section.
func resolve(text string, known map[part]map[string]bool) error {
	m := cited.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%s: want [agent ID, …], [control-plane ID, …] or [envoy ID, …]", text)
	}
	of := part(m[1])
	for item := range strings.SplitSeq(m[2], ", ") {
		ids, err := members(item)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		for _, id := range ids {
			if !known[of][id] {
				return fmt.Errorf("%s: no page of %s has a row or section %s", text, of, id)
			}
		}
	}
	return nil
}

var ordinal = regexp.MustCompile(`^(.*?)(\d+)$`)

// members lists the ids of a range; of anything else itself.
func members(item string) ([]string, error) {
	from, to, ok := strings.Cut(item, "–")
	if !ok {
		return []string{item}, nil
	}
	a, b := ordinal.FindStringSubmatch(from), ordinal.FindStringSubmatch(to)
	if a == nil || b == nil || a[1] != b[1] {
		return nil, fmt.Errorf("range %q: want two ids that differ in their last number", item)
	}
	first, _ := strconv.Atoi(a[2])
	last, _ := strconv.Atoi(b[2])
	if first >= last {
		return nil, fmt.Errorf("range %q: want the smaller number first", item)
	}
	var out []string
	for n := first; n <= last; n++ {
		out = append(out, a[1]+strconv.Itoa(n))
	}
	return out, nil
}

func TestCitationsResolve(t *testing.T) {
	known := loadPages(t).known()
	for _, s := range sources(t) {
		if s.Path == "compatibility_test.go" {
			continue // it holds the grammar, and examples of what breaks it
		}
		for _, group := range s.AST.Comments {
			text := strings.Join(strings.Fields(group.Text()), " ")
			at := fileset.Position(group.Pos())
			for _, f := range foreign.FindAllString(text, -1) {
				t.Errorf("%s: %q is not in the repository: cite a row of %s", at, f, compatibility)
			}
			for _, c := range citation.FindAllString(text, -1) {
				if err := resolve(c, known); err != nil {
					t.Errorf("%s: %v", at, err)
				}
			}
		}
	}
}

func TestCitationGrammar(t *testing.T) {
	known := map[part]map[string]bool{
		agentPart: {"S8": true, "E8": true, "I1": true, "I2": true, "I3": true, "1.3": true}, controlPart: {"1.7.11": true, "1.7.12": true},
	}
	for text, good := range map[string]bool{
		"[agent S8]": true, "[agent E8, S8]": true, "[agent I1–I3]": true, "[agent 1.3, I1–I2]": true, "[control-plane 1.7.11–1.7.12]": true,
		"[agent S9]": false, "[control-plane S8]": false, "[agent I1-I3]": false, "[agent I3–I1]": false, "[agent I1–S8]": false, "[agent I1–I4]": false,
		"[agent S8; E8]": false, "[agent]": false, "[S8]": false, "[agent §6 (12)]": false, "[envoy S8]": false,
	} {
		if err := resolve(text, known); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
		if !citation.MatchString("so it is. " + text) {
			t.Errorf("%s is not seen", text)
		}
	}
}

// apiPages say which page lists the fields of a message, each as `name`.
var apiPages = []struct {
	page    string
	message protoreflect.ProtoMessage
}{
	{"control-plane/mesh-config.md", &meshv1.MeshConfig{}},
	{"agent/proxy-config.md", &meshv1.ProxyConfig{}},
	{"control-plane/virtual-service.md", &networking.VirtualService{}},
	{"control-plane/virtual-service.md", &networking.HTTPRoute{}},
	{"control-plane/virtual-service.md", &networking.HTTPMatchRequest{}},
	{"control-plane/virtual-service.md", &networking.HTTPRetry{}},
	{"control-plane/virtual-service.md", &networking.HTTPRedirect{}},
	{"control-plane/virtual-service.md", &networking.CorsPolicy{}},
	{"control-plane/destination-rule.md", &networking.DestinationRule{}},
	{"control-plane/destination-rule.md", &networking.TrafficPolicy{}},
	{"control-plane/destination-rule.md", &networking.LoadBalancerSettings{}},
	{"control-plane/destination-rule.md", &networking.ConnectionPoolSettings_TCPSettings{}},
	{"control-plane/destination-rule.md", &networking.ConnectionPoolSettings_HTTPSettings{}},
	{"control-plane/destination-rule.md", &networking.OutlierDetection{}},
	{"control-plane/destination-rule.md", &networking.ClientTLSSettings{}},
	{"control-plane/other-networking.md", &networking.ServiceEntry{}},
	{"control-plane/other-networking.md", &networking.WorkloadEntry{}},
	{"control-plane/other-networking.md", &networking.Sidecar{}},
	{"control-plane/other-networking.md", &networking.IstioEgressListener{}},
	{"control-plane/security.md", &security.PeerAuthentication{}},
}

func TestEveryFieldHasARow(t *testing.T) {
	rows := map[string]string{}
	for _, e := range loadPages(t).rows {
		rows[e.page] += e.text + "\n"
	}
	for _, a := range apiPages {
		fields := a.message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			name := fields.Get(i).JSONName()
			if !strings.Contains(rows[a.page], "`"+name+"`") {
				t.Errorf("%s/%s has no row with `%s` of %s", compatibility, a.page, name, fields.Get(i).Parent().FullName())
			}
		}
	}
}
