// Package pilothouse_test checks the rules of the architecture: what may import what, what must be pure, what must be documented.
//
// It reads source text only, so it takes a moment and holds for every package from the
// day it appears. Each rule is one test; each exception stands in a table with its
// reason. ARCHITECTURE.md explains the layers that the first table spells out.
package pilothouse_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pilothouse/pilothouse"

// layer is a place in the order of imports; a package may import lower ones only.
type layer int

// The layers, bottom up.
const (
	vocabulary layer = iota + 1 // values both halves share
	tools                       // mechanisms that know nothing of meshes
	pure                        // decisions
	edge                        // sockets, files, processes, clocks
	wiring                      // joins the edges of one half
	lab                         // builds whole meshes: tests and the demo
	command                     // flags, environment, signals, exit codes
)

// layers places every package. A package that is not in it fails the test: place it.
var layers = map[string]layer{
	"internal/mesh": vocabulary, "internal/object": vocabulary, "internal/pki": vocabulary,
	"internal/incr": tools, "internal/run": tools, "internal/filewatch": tools,
	"internal/yamltree": tools, "internal/statefile": tools, "internal/claim": tools, "internal/cgroup": tools, "test/wait": tools,
	"internal/settings": tools, "internal/settings/cli": edge,

	"internal/agent/supervise": pure, "internal/agent/bootstrap": pure, "internal/agent/spec": pure, "internal/agent/identity": pure,
	"internal/agent/capture/plan": pure, "internal/agent/capture/xtables": pure,
	"internal/agent/host": edge, "internal/agent/launch": edge, "internal/agent/reload": edge, "internal/agent/startup": edge,
	"internal/agent/envoy": edge, "internal/agent/upstream": edge, "internal/agent/app": edge, "internal/agent/secret": edge,
	"internal/agent/sds": edge, "internal/agent/xdsproxy": edge, "internal/agent/dns": edge,
	"internal/agent/status": edge, "internal/agent/capture": edge,
	"internal/agent/capture/nft": edge, "internal/agent/capture/iptables": edge, "internal/agent/capture/netns": edge, "internal/agent/capture/plan/plantest": edge,
	"internal/agent": wiring,

	"internal/discovery/source/decode": pure, "internal/discovery/saved": pure, "internal/discovery/config": pure,
	"internal/discovery/model": pure, "internal/discovery/compile": pure,
	"internal/discovery/compile/cluster": pure, "internal/discovery/compile/listener": pure,
	"internal/discovery/compile/route":     pure,
	"internal/discovery/source/dir":        edge,
	"internal/discovery/source/sourcetest": edge, "internal/discovery/xds": edge, "internal/discovery/ca": edge,
	"internal/discovery/authn": edge,
	"internal/discovery":       wiring,

	"internal/lab/netmesh": edge, "test/load": edge, "test/envoytest": edge, "test/golden": edge, "test/agenttest": lab,
	"internal/lab/meshup": lab, "internal/demo": lab,
	"test/e2e": command, "test/hotrestart": command, "test/bench": command, "test/bench/agent": command, "test/capture": command, "test/fakeenvoy": command, "test/clitest": edge,
	"test/environment": command, "test/filesecret": command,
	"hack/man": command, "cmd/pilot-agent": command, "cmd/pilot-discovery": command, "cmd/pilotctl": command, "samples/app": command,
	"proxy": wiring,
}

// sideways lists the imports inside one layer that are meant.
var sideways = map[string][]string{
	"internal/agent/identity":              {"internal/agent/spec"}, // every part of the agent reads the Spec
	"internal/agent/bootstrap":             {"internal/agent/spec"},
	"internal/agent/launch":                {"internal/agent/envoy"}, // it makes an envoy.Launch
	"internal/agent/startup":               {"internal/agent/envoy"}, // folders are Envoy's user's
	"internal/agent/host":                  {"internal/agent/envoy"}, // which capabilities it may hand on
	"internal/pki":                         {"internal/mesh"},
	"internal/object":                      {"internal/mesh"},
	"internal/agent/capture":               {"internal/agent/capture/..."},  // it chooses between iptables and nft
	"internal/agent/capture/xtables":       {"internal/agent/capture/plan"}, // it translates plans
	"internal/discovery/model":             {"internal/discovery/config"},
	"internal/discovery/saved":             {"internal/discovery/source/decode"}, // which message an Istio kind carries
	"internal/discovery/compile":           {"internal/discovery/config", "internal/discovery/model", "internal/discovery/compile/..."},
	"internal/discovery/compile/route":     {"internal/discovery/compile/cluster"}, // routes name clusters
	"internal/discovery/compile/listener":  {"internal/discovery/compile/cluster"}, // so do filter chains
	"internal/discovery/source/dir":        {"internal/discovery/source"},
	"internal/discovery/source/sourcetest": {"internal/discovery/source"},
	"internal/demo":                        {"internal/lab/meshup"},
	"test/e2e":                             {"test/fakeenvoy"},
}

// pureFiles are the decisions that share a directory with an edge; the rules for pure
// code hold for them file by file. Patterns that match nothing yet are fine.
var pureFiles = []string{
	"internal/agent/reload/change.go", "internal/agent/secret/due*.go", "internal/agent/app/ended*.go", "internal/agent/dns/table*.go", "internal/agent/dns/conf.go", "internal/agent/dns/message.go", "internal/agent/status/ready*.go",
	"internal/discovery/xds/sub*.go", "internal/discovery/xds/view.go", "internal/discovery/ca/policy*.go",
	"internal/discovery/source/dir/merger*.go", "internal/filewatch/debounce*.go", "internal/filewatch/shrunk*.go", "internal/filewatch/follow_set*.go", "internal/settings/*.go",
}

// impure are the imports, each with all below it, that decide nothing but act.
var impure = []string{
	"os", "net", "context", "sync", "log", "syscall", "math/rand", "google.golang.org/grpc", "k8s.io/client-go",
	"golang.org/x/sys", "io/ioutil", "github.com/fsnotify/fsnotify",
}

// owners says which packages may import a library at all; tests are free.
var owners = map[string][]string{
	"k8s.io": {"internal/discovery/source"},
	"github.com/envoyproxy/go-control-plane": {
		"internal/discovery/compile", "internal/discovery/xds", "internal/discovery",
		"internal/agent/bootstrap", "internal/agent/sds", "internal/agent/xdsproxy", "test",
	},
	"github.com/spf13/cobra":              {"cmd", "internal/settings/cli", "test/clitest"},
	"github.com/google/nftables":          {"internal/agent/capture/nft"},
	"github.com/vishvananda":              {"internal/agent/capture/netns", "internal/lab/netmesh"},
	"github.com/fsnotify/fsnotify":        {"internal/filewatch"},
	"github.com/prometheus/client_golang": {"internal/discovery", "internal/discovery/xds", "internal/discovery/ca"},
	"github.com/google/go-cmp":            {"test/golden"},
	"google.golang.org/grpc/test/bufconn": {"test"},
}

// agentModules is everything that pilot-agent is built from. It runs in every Pod: a new
// line here costs every Pod memory and every reader trust.
var agentModules = []string{
	"cel.dev/expr", "github.com/cespare/xxhash/v2", "github.com/cncf/xds/go",
	"github.com/envoyproxy/go-control-plane/envoy", "github.com/envoyproxy/protoc-gen-validate",
	"github.com/fsnotify/fsnotify", "github.com/golang/protobuf", "github.com/google/nftables", "github.com/mdlayher/netlink", "github.com/mdlayher/socket",
	"github.com/planetscale/vtprotobuf", "github.com/prometheus/common", "github.com/spf13/cobra", "github.com/spf13/pflag",
	"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "go.yaml.in/yaml/v2", "go.yaml.in/yaml/v3",
	"golang.org/x/net", "golang.org/x/sync", "golang.org/x/sys", "golang.org/x/text", "google.golang.org/genproto/googleapis/api",
	"google.golang.org/genproto/googleapis/rpc", "google.golang.org/grpc", "google.golang.org/protobuf", "istio.io/api",
	"sigs.k8s.io/yaml", module,
}

// source is one parsed Go file; Dir and Path are relative to the root, with slashes.
type source struct {
	Dir, Path string
	Test      bool
	AST       *ast.File
	Text      string
}

var fileset = token.NewFileSet()

// sources parses the tree once for all tests; generated files are left out.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fileset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		p = filepath.ToSlash(p)
		all = append(all, source{Dir: path.Dir(p), Path: p, Test: strings.HasSuffix(p, "_test.go"), AST: f, Text: string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// imports lists what the file imports, as written.
func (s source) imports() []string {
	var out []string
	for _, i := range s.AST.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		out = append(out, p)
	}
	return out
}

// within says whether a path is root or below it.
func within(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

func isPure(s source) bool {
	if s.Test {
		return false
	}
	if l := layers[s.Dir]; l == vocabulary || l == pure {
		return true
	}
	return slices.ContainsFunc(pureFiles, func(glob string) bool {
		ok, _ := path.Match(glob, s.Path)
		return ok
	})
}

// meant says whether an import inside one layer is in the sideways table, where a name
// ending in /... stands for all below it.
func meant(from, to string) bool {
	return slices.ContainsFunc(sideways[from], func(ok string) bool {
		dir, family := strings.CutSuffix(ok, "/...")
		return to == ok || family && within(to, dir)
	})
}

func TestArrowsOnlyGoDown(t *testing.T) {
	for _, s := range sources(t) {
		if s.Dir == "." {
			continue
		}
		from, placed := layers[s.Dir]
		if !placed {
			t.Errorf("%s: package %s has no place in the layers table of architecture_test.go", s.Path, s.Dir)
			continue
		}
		for _, i := range s.imports() {
			to, ours := strings.CutPrefix(i, module+"/")
			if !ours || to == s.Dir || s.Test && strings.HasPrefix(to, "test/") {
				continue
			}
			if layers[to] >= from && !meant(s.Dir, to) && !s.Test {
				t.Errorf("%s imports %s: arrows only go down", s.Path, to)
			}
			if within(s.Dir, "internal/agent") && within(to, "internal/discovery") || within(s.Dir, "internal/discovery") && within(to, "internal/agent") {
				t.Errorf("%s imports %s: the agent and the control plane never import each other", s.Path, to)
			}
			if s.Dir == "cmd/pilot-agent" && within(to, "internal/discovery") || s.Dir == "cmd/pilot-discovery" && within(to, "internal/agent") {
				t.Errorf("%s imports %s: that is the other program", s.Path, to)
			}
		}
	}
}

// What users run is not built from what only tests need.
func TestProductImportsNoTests(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test || within(s.Dir, "test") {
			continue
		}
		for _, i := range s.imports() {
			if within(i, module+"/test") {
				t.Errorf("%s imports %s: move what the product needs out of test/", s.Path, i)
			}
		}
	}
}

func TestPureCodeOnlyDecides(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}
	for _, s := range sources(t) {
		if !isPure(s) {
			continue
		}
		for _, i := range s.imports() {
			for _, bad := range impure {
				if within(i, bad) && i != "net/netip" && i != "net/url" {
					t.Errorf("%s imports %s: pure code acts on nothing", s.Path, i)
				}
			}
		}
		for _, c := range calls(s, "time") {
			if slices.Contains(clock, c.name) {
				t.Errorf("%s: time.%s: pure code is told what time it is", c.pos, c.name)
			}
		}
	}
}

func TestLibrariesHaveOwners(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test {
			continue
		}
		for _, i := range s.imports() {
			for lib, dirs := range owners {
				if !within(i, lib) || lib == "k8s.io" && strings.HasPrefix(i, "sigs.") {
					continue
				}
				// The wiring packages are named by themselves, not with all below them.
				if !slices.ContainsFunc(dirs, func(d string) bool { return s.Dir == d || layers[d] != wiring && within(s.Dir, d) }) {
					t.Errorf("%s imports %s: only %v may", s.Path, i, dirs)
				}
			}
		}
	}
}

func TestAgentIsBuiltFromLittle(t *testing.T) {
	if _, err := os.Stat("cmd/pilot-agent"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}} {{.ImportPath}}", "./cmd/pilot-agent")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list what pilot-agent is built from: %v", err)
	}
	reported := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		mod, pkg, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if mod != "" && !slices.Contains(agentModules, mod) && !reported[mod] {
			reported[mod] = true
			t.Errorf("pilot-agent is built from %s (through %s), which agentModules does not list", mod, pkg)
		}
		if strings.HasPrefix(pkg, module+"/internal/discovery") {
			t.Errorf("pilot-agent is built from %s", pkg)
		}
	}
}
