package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// block is a fenced block of a page.
type block struct{ kind, text, before string }

// fenced matches a fenced block, with the line before it.
var fenced = regexp.MustCompile("(?m)^(.*)\n\n?```([a-z]+)\n((?s:.*?))```$")

func blocks(t *testing.T, page string) []block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		out = append(out, block{before: m[1], kind: m[2], text: m[3]})
	}
	return out
}

// TestTheQuickstart does what docs/quickstart.md says: it writes the files, runs the commands, and looks for what is
// printed. A command that begins with "!" is to fail.
func TestTheQuickstart(t *testing.T) {
	dir, err := os.MkdirTemp("", "pilothouse-quickstart-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &session{}
	// The command line of the page, with this test's programs.
	shell := "sudo() { \"$@\"; }\nset -e\n"
	ran := 0
	page := blocks(t, "docs/quickstart.md")
	for i, b := range page {
		switch b.kind {
		case "yaml":
			name := strings.Trim(b.before, "`:")
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "sh":
			ran++
			if strings.HasPrefix(b.text, "sudo pilotctl up mesh") {
				s = upIn(t, filepath.Join(dir, "mesh"))
				continue
			}
			want := ""
			if i+1 < len(page) && page[i+1].kind == "text" {
				want = strings.TrimSpace(page[i+1].text)
			}
			script := shell + strings.ReplaceAll(b.text, "pilotctl ", pilotctlPath()+" --discovery "+s.discovery()+" ")
			var out []byte
			wait.Until(t, fmt.Sprintf("%q prints %q", b.text, want), func() bool {
				cmd := exec.Command("bash", "-c", script)
				cmd.Dir = dir
				var err error
				out, err = cmd.CombinedOutput()
				if err != nil {
					t.Logf("%v: %s", err, out)
				}
				return err == nil && strings.Contains(string(out), want)
			})
		}
	}
	if ran < 8 {
		t.Errorf("%d blocks of commands were found in the page", ran)
	}
}
