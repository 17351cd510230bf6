package pilothouse_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// contractNames are names that the two halves, Envoy and Istio's programs find each other's parts
// by. Package mesh has a constant for each.
var contractNames = []string{
	"sds-grpc", "xds-grpc", "ROOTCA", "file-cert:", "file-root:",
	"BlackHoleCluster", "PassthroughCluster", "virtualOutbound", "virtualInbound",
}

func TestContractNamesAreDeclaredOnce(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test || !within(s.Dir, "internal") && !within(s.Dir, "cmd") || s.Dir == "internal/mesh" {
			continue
		}
		ast.Inspect(s.AST, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			for _, name := range contractNames {
				if strings.Contains(lit.Value, name) {
					t.Errorf("%s: %s: use the constant of internal/mesh/names.go", fileset.Position(lit.Pos()), lit.Value)
				}
			}
			return true
		})
	}
}

// One function encodes messages, so that equal messages have equal bytes and no error is dropped.
func TestOnlyOnePackageOfTheControlPlaneEncodes(t *testing.T) {
	encoders := map[string][]string{"proto": {"Marshal", "MarshalOptions"}, "anypb": {"New", "MarshalFrom"}}
	for _, s := range sources(t) {
		if s.Test || !within(s.Dir, "internal/discovery") || s.Dir == "internal/discovery/marshal" {
			continue
		}
		for pkg, names := range encoders {
			for _, c := range calls(s, pkg) {
				for _, name := range names {
					if c.name == name {
						t.Errorf("%s: %s.%s: use internal/discovery/marshal", c.pos, pkg, name)
					}
				}
			}
		}
	}
}
