package settings

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notTaken are Istio's names that a row names and says not to be taken. An unknown flag is accepted with a warning.
var notTaken = map[string][]string{
	"1.1.7":  {"--networksConfig", "--kubeconfig", "--registries", "--clusterRegistriesNamespace", "--clusterID", "--clusterAliases", "--cniNamespace"},
	"1.1.9":  {"--caCertFile", "--tlsCertFile", "--tlsKeyFile", "--tls-cipher-suites"},
	"1.1.11": {"--log_target", "--log_caller", "--log_stacktrace_level"},
	"E40":    {"INBOUND_INTERCEPTION_MODE", "INBOUND_TPROXY_MARK"}, // names in the printed configuration
}

// Every flag and variable that docs/compatibility says is taken has a row in a table.
func TestAcceptedSettingsHaveARow(t *testing.T) {
	for program, pages := range map[string][]string{
		"pilot-agent":     {"agent/cli.md", "agent/environment.md", "agent/capture.md", "agent/lifecycle.md", "agent/identity.md", "agent/dns.md"},
		"pilot-discovery": {"control-plane/flags-and-environment.md", "control-plane/ca.md", "control-plane/xds-server.md"},
	} {
		known, prefixes := names(program)
		for _, page := range pages {
			text, err := os.ReadFile("../../docs/compatibility/" + page)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				id, feature, status := contractRow(line)
				if !strings.HasPrefix(status, "full") && !strings.HasPrefix(status, "part") && !strings.HasPrefix(status, "different") {
					continue
				}
				for _, name := range settingNames(feature) {
					isPrefixed := slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
					if !known[name] && !isPrefixed && !slices.Contains(notTaken[id], name) {
						t.Errorf("%s: row %s says %q of %s, and no table of %s has it", page, id, status, name, program)
					}
				}
			}
		}
	}
}

// A variable of Istio that has no row would be ignored without a word, whatever the status of its row is.
func TestEveryVariableOfIstioHasARow(t *testing.T) {
	for program, page := range map[string]string{
		"pilot-agent": "agent/environment.md", "pilot-discovery": "control-plane/flags-and-environment.md",
	} {
		known, prefixes := names(program)
		text, err := os.ReadFile("../../docs/compatibility/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			id, feature, status := contractRow(line)
			if status == "" {
				continue
			}
			if strings.Contains(feature, "…") {
				t.Errorf("%s: row %s abbreviates a name: %s", page, id, feature)
			}
			for _, name := range settingNames(feature) {
				isPrefixed := slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
				if !strings.HasPrefix(name, "--") && !known[name] && !isPrefixed && !slices.Contains(notTaken[id], name) {
					t.Errorf("%s: row %s names %s, and no table of %s has it", page, id, name, program)
				}
			}
		}
	}
}

// contractRow takes a row apart; the status is empty for other lines.
func contractRow(line string) (id, feature, status string) {
	cells := strings.Split(strings.ReplaceAll(line, `\|`, ""), "|")
	if len(cells) != 8 {
		return "", "", ""
	}
	return strings.TrimSpace(cells[1]), cells[2], strings.TrimSpace(cells[5])
}

var settingName = regexp.MustCompile("`(--[A-Za-z][A-Za-z0-9_-]+|[A-Z][A-Z0-9]*_[A-Z0-9_]+\\*?)[` =]")

// settingNames are the flags and variables that a text names.
func settingNames(text string) []string {
	var out []string
	for _, m := range settingName.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// names are the flags and variables of a program, and the prefixes of variables.
func names(program string) (known map[string]bool, prefixes []string) {
	known = map[string]bool{}
	for _, c := range Commands() {
		if !strings.HasPrefix(c.Path, program) {
			continue
		}
		for _, table := range append(slices.Clone(c.Tables), c.Shared...) {
			for i := range table {
				known["--"+table[i].Flag] = true
				for _, name := range table[i].Env {
					known[name] = true
					if prefix, ok := strings.CutSuffix(name, "*"); ok {
						prefixes = append(prefixes, prefix)
					}
				}
			}
		}
	}
	return known, prefixes
}
