// Package pilothouse_test checks the rules of the architecture: what may import what, what must be pure, what must be documented.
//
// The tests read source text, so they are quick and hold for every new package. Each rule is one test;
// each exception stands in a table with its reason, and TestTablesNameWhatExists fails for rows that are
// no longer needed. ARCHITECTURE.md explains the layers.
package pilothouse_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pilothouse/pilothouse"

// layer is a position in the order of imports: a package may import packages of lower layers only.
type layer int

// The layers, bottom up.
const (
	vocabulary layer = iota + 1 // values that the agent and the control plane share
	tools                       // mechanisms that are not specific to meshes
	pure                        // decisions
	edge                        // sockets, files, processes, clocks
	wiring                      // constructs and connects the parts of one program
	lab                         // runs whole meshes, for tests and the demo
	command                     // flags, environment, signals, exit codes; tests that need all of it
)

// layers lists every package with its layer. A package that is not in it fails TestImportsPointDown.
var layers = map[string]layer{
	"internal/mesh": vocabulary, "internal/object": vocabulary, "internal/pki": vocabulary,
	"internal/join": tools,
	"internal/incr": tools, "internal/run": tools, "internal/filewatch": tools,
	"internal/yamltree": tools, "internal/statefile": tools, "internal/claim": tools, "internal/cgroup": tools, "internal/unmap": tools, "internal/printable": tools, "internal/httpguard": tools, "test/wait": tools,
	"internal/settings": tools, "internal/settings/cli": edge,
	"internal/kube":        tools, // how to connect, nothing of meshes
	"internal/kube/leader": edge, "internal/kube/forward": edge,
	"internal/logline": tools, "internal/spelling": tools, "internal/finding": tools, "internal/check": pure, "internal/check/gather": edge,

	"internal/agent/supervise": pure, "internal/agent/bootstrap": pure, "internal/agent/spec": pure, "internal/agent/identity": pure,
	"internal/agent/capture/plan": pure, "internal/agent/capture/xtables": pure,
	"internal/agent/vm": pure, "internal/agent/machine": edge,
	"internal/agent/host": edge, "internal/agent/launch": edge, "internal/agent/reload": edge, "internal/agent/startup": edge,
	"internal/agent/envoy": edge, "internal/agent/upstream": edge, "internal/agent/app": edge, "internal/agent/secret": edge,
	"internal/agent/sds": edge, "internal/agent/trust": edge, "internal/agent/xdsproxy": edge, "internal/agent/lastgood": edge, "internal/agent/dynamic": edge, "internal/agent/dns": edge,
	"internal/agent/logging": tools, "internal/agent/doctor": pure, "internal/agent/doctor/gather": wiring,
	"internal/agent/status": edge, "internal/agent/probe": edge, "internal/agent/health": edge, "internal/agent/wasm": edge, "internal/agent/sts": edge, "internal/agent/cloud": edge, "internal/agent/capture": edge,
	"internal/agent/capture/nft": edge, "internal/agent/capture/iptables": edge, "internal/agent/capture/netns": edge, "internal/agent/capture/plan/plantest": edge,
	"internal/agent": wiring,

	"internal/discovery/cel":           tools, // knows expressions, nothing of meshes
	"internal/discovery/marshal":       tools, // knows messages, nothing of meshes
	"internal/discovery/jwks":          tools, // knows URLs and key sets, nothing of meshes
	"internal/discovery/jwks/fetch":    edge,
	"internal/discovery/source/decode": pure, "internal/discovery/source/scope": pure, "internal/discovery/saved": pure, "internal/discovery/config": pure, "internal/discovery/ca/policy": pure,
	"internal/discovery/credentials": pure, "internal/discovery/credentials/store": edge, "internal/discovery/credentials/cluster": edge, "internal/discovery/credentials/accessreview": edge, "internal/discovery/admit": pure, "internal/discovery/analyze": pure, "internal/discovery/allocate": pure, "internal/discovery/delegate": pure,
	"internal/discovery/model": pure, "internal/discovery/compile": pure,
	"internal/discovery/compile/cluster": pure, "internal/discovery/compile/listener": pure,
	"internal/discovery/simulate": pure, "internal/discovery/explain": pure, "internal/discovery/compile/authz": pure, "internal/discovery/compile/jwt": pure, "internal/discovery/compile/patch": pure,
	"internal/discovery/compile/route": pure, "internal/discovery/compile/proxyless": pure,
	"internal/discovery/ca/rotation": pure,
	"internal/discovery/source/dir":  edge, "internal/discovery/source/kube": edge, "internal/discovery/source/multi": edge,
	"internal/discovery/inject":            pure,
	"internal/discovery/source/sourcetest": edge, "internal/discovery/xds": edge, "internal/discovery/ca": edge, "internal/discovery/webhook": edge,
	"internal/discovery/authn": edge, "internal/discovery/authn/reviewtest": edge,
	"internal/discovery/authn/tokenreview": edge, "internal/discovery/authn/usedtokens": edge, "internal/discovery/ca/rootsecret": edge, "internal/discovery/rootconfigmap": edge, "internal/discovery/managed": edge,
	"internal/discovery/ui": edge, "internal/discovery/traffic": edge, "internal/discovery/register": pure, "internal/discovery/registrar": edge,
	"internal/discovery/objectstatus": pure, "internal/discovery/statuswriter": edge,
	"internal/discovery/deploy": pure, "internal/discovery/deployer": edge,
	"internal/discovery": wiring,

	"internal/lab/netmesh": edge, "test/load": edge, "test/golden": edge, "test/require": edge, "test/envoytest": edge, "test/policytest": edge, "test/token": tools, "test/clitest": edge, "test/agenttest": lab, "test/kube": lab, "test/kube/node": lab, "test/kube/node/podstate": pure, "test/kube/node/podnet": pure, "test/kube/clusterup": lab,
	"internal/lab/podplan": pure, "internal/lab/sampleapp": edge,
	"internal/lab/pty": edge, "test/tty": tools,
	"internal/lab/meshup": lab, "internal/lab/up": lab, "internal/demo": lab,
	"test/e2e": command, "test/grpcapp": command, "test/hotrestart": command, "test/bench": command, "test/bench/agent": command, "test/xdsload": command, "test/capture": command, "test/fakeenvoy": command,
	"test/environment": command, "test/ui": command, "test/webhooks": command, "test/filesecret": command, "test/charts": command, "test/prometheus": command, "test/packages": command, "test/charts/helm": command, "test/charts/helmcli": command, "test/charts/kubectl": command, "test/kube/install": command, "test/kube/multi": command, "test/kube/demo": command, "test/kube/mixed": command, "test/skew": command, "test/images": command, "test/kube/server": command, "test/kube/identity": command, "test/cluster": command, "test/kube/source": command, "test/kube/status": command, "test/kube/conformance": command, "test/kube/conformance/suite": command, "test/kube/conformance/suite/echo-advanced": command, "test/kube/conformance/suite/dns": command, "test/kube/faults": command,
	"cmd/pilot-agent": command, "cmd/pilot-discovery": command, "cmd/pilotctl": command, "samples/app": command, "hack/release": command, "hack/cast": command,
	"proxy": wiring,
}

// allowedImports lists the imports within one layer that are allowed. A name ending in /... stands for all
// packages below it.
var allowedImports = map[string][]string{
	"internal/discovery/source/scope":      {"internal/discovery/source/decode"}, // which kinds are Istio's
	"internal/lab/podplan":                 {"internal/discovery/source/decode"}, // which fields Kubernetes' kinds have
	"internal/agent/identity":              {"internal/agent/spec"},              // every part of the agent reads the Spec
	"internal/agent/bootstrap":             {"internal/agent/spec"},
	"internal/agent/launch":                {"internal/agent/envoy"},    // it makes an envoy.Launch
	"internal/agent/xdsproxy":              {"internal/agent/lastgood"}, // what passes through it is kept and served
	"internal/agent/startup":               {"internal/agent/envoy"},    // folders are Envoy's user's
	"internal/agent/host":                  {"internal/agent/envoy"},    // which capabilities it may hand on
	"internal/pki":                         {"internal/mesh"},
	"internal/agent/capture":               {"internal/agent/capture/..."},                                      // it chooses between iptables and nft
	"internal/agent/capture/xtables":       {"internal/agent/capture/plan"},                                     // it translates plans
	"internal/discovery/saved":             {"internal/discovery/source/decode", "internal/discovery/allocate"}, // which message an Istio kind carries; addresses are saved, too
	"internal/discovery/admit":             {"internal/discovery/source/decode", "internal/discovery/config"},   // their rules are its own
	"internal/discovery/register":          {"internal/discovery/config"},                                       // an entry that would be refused is not made
	"internal/discovery/authn/reviewtest":  {"internal/discovery/authn"},                                        // it tests implementations of its interface
	"internal/discovery/ca/rootsecret":     {"internal/discovery/ca"},                                           // it implements its Store
	"internal/discovery/compile":           {"internal/discovery/model", "internal/discovery/compile/..."},
	"internal/discovery/explain":           {"internal/discovery/simulate", "internal/discovery/model"},                                                                   // it puts verdicts into words; which policies are dry runs
	"internal/discovery/analyze":           {"internal/discovery/delegate"},                                                                                               // what it leaves out of delegates
	"internal/discovery/model":             {"internal/discovery/allocate", "internal/discovery/delegate", "internal/discovery/credentials", "internal/discovery/deploy"}, // merges routes of delegates; it stores what was allocated; which Secrets Gateways name, and which Service is made for them
	"internal/discovery/config":            {"internal/discovery/credentials", "internal/discovery/deploy", "internal/discovery/compile/patch"},                           // which Secrets can be used; what is made for a Gateway; what is wrong with a patch
	"internal/discovery/compile/cluster":   {"internal/discovery/credentials"},                                                                                            // how proxies ask for Secrets
	"internal/discovery/compile/route":     {"internal/discovery/compile/cluster"},                                                                                        // routes name clusters
	"internal/discovery/compile/patch":     {"internal/discovery/compile/cluster"},                                                                                        // it selects clusters by what their names say
	"internal/discovery/compile/proxyless": {"internal/discovery/compile/cluster"},                                                                                        // so do gRPC's routes
	"internal/discovery/compile/authz":     {"internal/discovery/compile/jwt"},                                                                                            // its rules read what that filter leaves
	"internal/discovery/compile/listener":  {"internal/discovery/compile/cluster", "internal/discovery/compile/authz", "internal/discovery/credentials"},                  // so do filter chains, which have filters of authorization
	"internal/yamltree":                    {"internal/spelling"},                                                                                                         // what a field may have been meant to be
	"internal/httpguard":                   {"internal/printable"},                                                                                                        // the Host of a client in an error
	"test/require":                         {"internal/lab/netmesh"},                                                                                                      // whether this machine can make Pods
	"test/envoytest":                       {"test/require"},
	"internal/demo":                        {"internal/lab/meshup"},
	"internal/lab/up":                      {"internal/lab/meshup"},
	"test/kube/clusterup":                  {"internal/lab/meshup", "test/kube/..."}, // it puts them together
	"internal/discovery/authn/tokenreview": {"internal/discovery/authn"},             // it implements its Reviewer
	"internal/discovery/authn/usedtokens":  {"internal/discovery/authn"},             // it implements its Used
	"internal/check/gather":                {"internal/discovery/rootconfigmap"},     // which namespaces get the roots
}

// pureFiles are patterns of the files that decide but are in the package of an edge. The rules for pure
// code hold for these files.
var pureFiles = []string{
	"internal/agent/reload/change.go", "internal/agent/secret/due*.go", "internal/agent/app/ended*.go", "internal/agent/dns/conf.go", "internal/agent/dns/table.go", "internal/agent/dns/message.go", "internal/agent/status/ready*.go",
	"internal/discovery/barrier.go", "internal/discovery/changes.go", "internal/discovery/stall.go", "cmd/pilotctl/waiting.go", "cmd/pilotctl/join.go", "internal/discovery/xds/sub*.go", "internal/discovery/xds/view.go", "internal/discovery/xds/references.go", "internal/discovery/idle.go", "internal/discovery/xds/rate.go",
	"internal/agent/reload/change.go", "internal/agent/secret/due*.go", "internal/agent/app/ended*.go", "internal/agent/dns/conf.go", "internal/agent/dns/message.go", "internal/agent/status/ready*.go", "internal/agent/status/exposition.go", "internal/agent/status/accept.go",
	"internal/discovery/changes.go", "internal/discovery/stall.go", "cmd/pilotctl/waiting.go", "internal/discovery/xds/sub*.go", "internal/discovery/xds/view.go", "internal/discovery/xds/references.go", "internal/discovery/idle.go", "internal/discovery/xds/rate.go",
	"internal/discovery/changes.go", "internal/discovery/touched.go", "internal/discovery/stall.go", "cmd/pilotctl/waiting.go", "internal/discovery/xds/sub*.go", "internal/discovery/xds/view.go", "internal/discovery/xds/references.go", "internal/discovery/idle.go", "internal/discovery/xds/rate.go",
	"internal/discovery/traffic/answer.go", "internal/discovery/ui/traffic.go", "internal/discovery/jwks/*.go", "internal/join/*.go", "internal/discovery/authn/ledger.go", "internal/discovery/authn/rule.go", "internal/discovery/authn/jwks.go", "internal/discovery/authn/jwt.go", "internal/discovery/authn/xfcc.go", "internal/discovery/authn/rate.go", "internal/discovery/authn/tokenreview/cache.go", "internal/discovery/ca/rootsecret/contents.go", "internal/discovery/rootconfigmap/decide.go",
	"internal/demo/text.go", "internal/demo/table.go", "internal/demo/painter.go",
	"internal/discovery/source/dir/merger*.go", "internal/filewatch/debounce*.go", "internal/filewatch/shrunk*.go", "internal/filewatch/follow_set*.go", "internal/settings/*.go",
	"internal/discovery/source/kube/merger*.go", "internal/discovery/source/multi/merger*.go", "internal/discovery/source/multi/plan*.go",
	"internal/discovery/source/dir/merger*.go", "internal/filewatch/debounce*.go", "internal/filewatch/shrunk*.go", "internal/filewatch/follow_set*.go", "internal/settings/*.go", "internal/discovery/webhook/plan.go", "internal/discovery/webhook/pace.go",
	"internal/discovery/ui/rows.go", "internal/discovery/ui/access.go",
}

// impureImports are what pure code must not import, each with all packages below it.
var impureImports = []string{
	"os", "net", "context", "sync", "log", "syscall", "math/rand", "google.golang.org/grpc", "k8s.io/client-go",
	"golang.org/x/sys", "io/ioutil", "github.com/fsnotify/fsnotify",
}

// libraryUsers lists the packages, each with all packages below it, that may import a library. Tests may
// import any. A package of the layer wiring stands for itself only.
var libraryUsers = map[string][]string{
	"k8s.io": {"internal/kube", "internal/discovery/source", "internal/discovery/admit", "internal/discovery/ca/rootsecret", "internal/discovery/authn/tokenreview", "internal/discovery/authn/usedtokens", "internal/discovery/credentials/accessreview", "test/kube", "test/charts", "internal/discovery/inject", "internal/discovery/webhook", "internal/discovery/rootconfigmap", "internal/discovery/managed", "internal/discovery", "cmd/pilotctl", "internal/check/gather", "internal/discovery/statuswriter", "internal/discovery/deploy", "internal/discovery/deployer", "internal/discovery/registrar", "internal/discovery/config"},
	"github.com/envoyproxy/go-control-plane": {
		"internal/discovery/compile", "internal/discovery/simulate", "internal/discovery/explain", "internal/discovery/xds",
		"internal/agent/bootstrap", "test",
	},
	"github.com/spf13/cobra":              {"cmd", "internal/settings/cli", "test/clitest"},
	"gomodules.xyz/jsonpatch":             {"internal/discovery/inject"},
	"github.com/google/nftables":          {"internal/agent/capture/nft", "test/kube/node"},
	"github.com/vishvananda":              {"internal/agent/capture/netns", "internal/lab/netmesh"},
	"github.com/fsnotify/fsnotify":        {"internal/filewatch"},
	"github.com/prometheus/client_golang": {"internal/discovery", "internal/discovery/xds", "internal/discovery/webhook"},
	"github.com/google/go-cmp":            {"test/golden"},
	"google.golang.org/grpc/test/bufconn": nil, // tests only
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

// imports lists the import paths of the file.
func (s source) imports() []string {
	var out []string
	for _, i := range s.AST.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		out = append(out, p)
	}
	return out
}

// within reports whether a path is root or below it.
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

// matches reports whether dir is what a row of a table names: a package, or name/... for all below it.
func matches(dir, row string) bool {
	parent, all := strings.CutSuffix(row, "/...")
	return dir == row || all && within(dir, parent)
}

// importAllowed reports whether allowedImports has an import.
func importAllowed(from, to string) bool {
	return slices.ContainsFunc(allowedImports[from], func(row string) bool { return matches(to, row) })
}

// libraryAllowed reports whether libraryUsers lets a package import a library.
func libraryAllowed(dir, lib string) bool {
	return slices.ContainsFunc(libraryUsers[lib], func(user string) bool {
		return dir == user || layers[user] != wiring && within(dir, user)
	})
}

func TestImportsPointDown(t *testing.T) {
	for _, s := range sources(t) {
		if s.Dir == "." {
			continue
		}
		from, placed := layers[s.Dir]
		if !placed {
			t.Errorf("%s: package %s is not in the table layers of architecture_test.go: add it", s.Path, s.Dir)
			continue
		}
		for _, i := range s.imports() {
			to, ours := strings.CutPrefix(i, module+"/")
			if !ours || to == s.Dir || s.Test && strings.HasPrefix(to, "test/") {
				continue
			}
			if layers[to] >= from && !importAllowed(s.Dir, to) && !s.Test {
				t.Errorf("%s imports %s, which is not in a lower layer", s.Path, to)
			}
			if within(s.Dir, "internal/agent") && within(to, "internal/discovery") || within(s.Dir, "internal/discovery") && within(to, "internal/agent") {
				t.Errorf("%s imports %s: the agent and the control plane must not import each other", s.Path, to)
			}
			if s.Dir == "cmd/pilot-agent" && within(to, "internal/discovery") || s.Dir == "cmd/pilot-discovery" && within(to, "internal/agent") {
				t.Errorf("%s imports %s, which belongs to the other program", s.Path, to)
			}
		}
	}
}

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

func TestPureCodeHasNoSideEffects(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}
	for _, s := range sources(t) {
		if !isPure(s) {
			continue
		}
		for _, i := range s.imports() {
			for _, bad := range impureImports {
				if within(i, bad) && i != "net/netip" && i != "net/url" {
					t.Errorf("%s imports %s: pure code has no side effects", s.Path, i)
				}
			}
		}
		for _, c := range calls(s, "time") {
			if slices.Contains(clock, c.name) {
				t.Errorf("%s: time.%s: pure code gets the time as an argument", c.pos, c.name)
			}
		}
	}
}

// httpServers are the files of programs that make an http.Server of their own; all others make theirs with
// httpguard.Server, which bounds it.
var httpServers = map[string]string{
	"internal/httpguard/httpguard.go": "makes them for all others",
	"internal/demo/keep.go":           "forwards to the pages of Envoys for the one person who runs the demo",
	"internal/lab/sampleapp/serve.go": "an application, whose servers speak HTTP/2, too",
}

func TestHTTPServersAreBounded(t *testing.T) {
	found := map[string]bool{}
	for _, s := range sources(t) {
		if s.Test || strings.HasPrefix(s.Dir, "test/") || !strings.Contains(s.Text, "http.Server{") && !strings.Contains(s.Text, "http.ListenAndServe") && !strings.Contains(s.Text, "http.Serve(") {
			continue
		}
		found[s.Path] = true
		if httpServers[s.Path] == "" {
			t.Errorf("%s makes an HTTP server without bounds: use httpguard.Server", s.Path)
		}
	}
	for path := range httpServers {
		if !found[path] {
			t.Errorf("the table httpServers names %s, which makes none", path)
		}
	}
}

// wholeReads are the files, or folders, of programs that read files without a bound; all others use
// filewatch.ReadFile or statefile: a path that somebody else chooses may be that of a device or a pipe.
var wholeReads = map[string]string{
	"internal/filewatch/": "implements the bound", "internal/statefile/": "implements the bound",
	"internal/cgroup/": "files of the kernel", "internal/agent/app/app.go": "files of the kernel", "internal/agent/capture/": "files of the kernel",
	"internal/agent/envoy/": "files of the kernel", "internal/agent/machine/": "files of the kernel", "internal/agent/status/metrics.go": "a file of the kernel", "internal/agent/doctor/gather/listen.go": "files of the kernel", "cmd/pilot-agent/doctor.go": "files of the kernel", "internal/unmap/": "a file of the kernel", "internal/claim/folder.go": "a file of the kernel",
	"internal/discovery/ca/": "files of the state folder", "internal/discovery/discovery.go": "a file of the state folder",
	"cmd/pilotctl/": "files that its user names", "internal/demo/": "files that its user names", "internal/lab/": "files of its own", "samples/": "an application", "hack/": "files of the repository",
}

func TestFilesAreReadWithBounds(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test || strings.HasPrefix(s.Dir, "test/") || !strings.Contains(s.Text, "os.ReadFile") && !strings.Contains(s.Text, "os.Open(") && !strings.Contains(s.Text, "LoadX509KeyPair(") {
			continue
		}
		allowed := false
		for prefix := range wholeReads {
			allowed = allowed || strings.HasPrefix(s.Path, prefix)
		}
		if !allowed {
			t.Errorf("%s reads files without a bound: use filewatch.ReadFile, filewatch.OpenRegular or statefile", s.Path)
		}
	}
}

func TestLibrariesAreImportedWhereAllowed(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test {
			continue
		}
		for _, i := range s.imports() {
			for lib, users := range libraryUsers {
				if within(i, lib) && !libraryAllowed(s.Dir, lib) {
					t.Errorf("%s imports %s: only %v may", s.Path, i, users)
				}
			}
		}
	}
}

// TestTablesNameWhatExists fails for each row of the tables above that names a package that does not exist, a pattern
// that matches no file, or an import that no file has.
func TestTablesNameWhatExists(t *testing.T) {
	all := sources(t)
	file := func(match func(source) bool) bool { return slices.ContainsFunc(all, match) }
	imported := func(from func(source) bool, to func(string) bool) bool {
		return file(func(s source) bool { return from(s) && slices.ContainsFunc(s.imports(), to) })
	}
	for dir := range layers {
		if !file(func(s source) bool { return s.Dir == dir }) {
			t.Errorf("layers: there is no package %s", dir)
		}
	}
	for from, rows := range allowedImports {
		for _, row := range rows {
			to := func(i string) bool {
				dir, ours := strings.CutPrefix(i, module+"/")
				return ours && matches(dir, row) && layers[dir] >= layers[from]
			}
			if !imported(func(s source) bool { return s.Dir == from && !s.Test }, to) {
				t.Errorf("allowedImports: nothing in %s imports %s", from, row)
			}
		}
	}
	for _, pattern := range pureFiles {
		if !file(func(s source) bool { ok, _ := path.Match(pattern, s.Path); return ok && !s.Test }) {
			t.Errorf("pureFiles: no file matches %s", pattern)
		}
	}
	for lib, users := range libraryUsers {
		for _, user := range users {
			from := func(s source) bool {
				return !s.Test && (s.Dir == user || layers[user] != wiring && within(s.Dir, user))
			}
			if !imported(from, func(i string) bool { return within(i, lib) }) {
				t.Errorf("libraryUsers: nothing in %s imports %s", user, lib)
			}
		}
	}
	for key := range sizeExceptions {
		if !file(func(s source) bool {
			return s.Path == key || slices.ContainsFunc(s.functions(), func(f string) bool { return s.Dir+"."+f == key })
		}) {
			t.Errorf("sizeExceptions: there is no file or function %s", key)
		}
	}
}

// functions lists the names of the functions and methods of a file.
func (s source) functions() []string {
	var out []string
	for _, d := range s.AST.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			out = append(out, f.Name.Name)
		}
	}
	return out
}
