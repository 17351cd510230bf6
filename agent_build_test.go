package pilothouse_test

import (
	"go/ast"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// This file is about what pilot-agent is built from.

// agentModules are the modules that pilot-agent is built from. It runs in every Pod, so a new module costs
// memory in every Pod, and has to be trusted there.
var agentModules = []string{
	"cel.dev/expr", "github.com/cncf/xds/go",
	"github.com/envoyproxy/go-control-plane/envoy", "github.com/envoyproxy/protoc-gen-validate",
	"github.com/fsnotify/fsnotify", "github.com/golang/protobuf", "github.com/google/nftables", "github.com/mdlayher/netlink", "github.com/mdlayher/socket",
	"github.com/spf13/cobra", "github.com/spf13/pflag",
	"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "go.yaml.in/yaml/v2",
	"golang.org/x/net", "golang.org/x/sync", "golang.org/x/sys", "golang.org/x/text", "google.golang.org/genproto/googleapis/api",
	"google.golang.org/genproto/googleapis/rpc", "google.golang.org/grpc", "google.golang.org/protobuf", "istio.io/api",
	"sigs.k8s.io/yaml", module,
}

func TestAgentModules(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}} {{.ImportPath}}", "./cmd/pilot-agent")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages of pilot-agent: %v", err)
	}
	reported, used := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		mod, pkg, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		used[mod] = true
		if mod != "" && !slices.Contains(agentModules, mod) && !reported[mod] {
			reported[mod] = true
			t.Errorf("pilot-agent is built from %s (through %s), which agentModules does not list", mod, pkg)
		}
		if strings.HasPrefix(pkg, module+"/internal/discovery") {
			t.Errorf("pilot-agent is built from %s", pkg)
		}
	}
	for _, mod := range agentModules {
		if !used[mod] {
			t.Errorf("agentModules lists %s, which pilot-agent is not built from: remove it", mod)
		}
	}
}

// Package text/template calls methods by name, so that the linker keeps the methods of all types where it is linked: an agent of
// 30 MB instead of 20, of which 5 are resident. The command library imports it, and links it for its templates only.
func TestAgentLinksNoTemplates(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", "-f", "{{.ImportPath}} {{.Imports}}", "./cmd/pilot-agent")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages of pilot-agent: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimRight(line, "]\n"), " [")
		if slices.Contains(strings.Fields(imports), "text/template") && pkg != "github.com/spf13/cobra" && pkg != "html/template" {
			t.Errorf("pilot-agent is built from %s, which imports text/template", pkg)
		}
	}
	for _, s := range sources(t) {
		ast.Inspect(s.AST, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"SetVersionTemplate", "SetUsageTemplate", "SetHelpTemplate"}, sel.Sel.Name) {
				t.Errorf("%s: %s links text/template: print the text", fileset.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}
