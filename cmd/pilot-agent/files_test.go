package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// notListed are paths in the agent's code that are no files which a person may have to give it, by the reason.
var notListed = map[string]string{
	"/etc/istio/ingress-certs/":                         "a constant for users of package proxy",
	"/var/lib/istio/data/envoy.prof":                    "written by Envoy's profiler",
	"/var/lib/istio/envoy/envoy_bootstrap_tmpl.json":    "the template of Istio's images, which is known so that it is not refused",
	"/etc/ssl/ca-bundle.pem":                            "another place of the system's root certificates",
	"/etc/ssl/cert.pem":                                 "another place of the system's root certificates",
	"/etc/pki/tls/certs/ca-bundle.crt":                  "another place of the system's root certificates",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "another place of the system's root certificates",
}

// A file that the agent reads is in the help of pilot-agent proxy.
func TestFilesThatAreReadAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, f := range settings.AgentFiles {
		listed[f.Path] = true
	}
	literal := regexp.MustCompile(`"((?:\./|/)(?:etc|var)/[^" ]*)"`)
	found := map[string]bool{}
	for _, root := range []string{"../../internal/agent", "../../internal/mesh", "../../internal/settings/agent.go", "../../proxy", "."} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "agent/machine") || strings.Contains(path, "agent/vm") || strings.Contains(path, "agent/doctor") {
				return err // what pilot-agent join and doctor look at
			}
			text, err := os.ReadFile(path)
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				found[m[1]] = true
				if !listed[m[1]] && notListed[m[1]] == "" {
					t.Errorf("%s has the path %s, which settings.AgentFiles does not list", path, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for path := range listed {
		if !found[path] {
			t.Errorf("settings.AgentFiles lists %s, which is not in the agent's code", path)
		}
	}
	for path := range notListed {
		if !found[path] {
			t.Errorf("%s is not in the agent's code any more", path)
		}
	}
}

func TestHelpListsFiles(t *testing.T) {
	code, stdout, stderr := agentRun(t, nil, "proxy", "--help")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	_, out, _ := strings.Cut(stdout+stderr, "\nFiles:\n")
	for _, f := range settings.AgentFiles {
		if !strings.Contains(out, "  "+f.Path+"\n        "+f.Help+"\n") {
			t.Errorf("the help does not list %s:\n%s", f.Path, out)
		}
	}
}
