package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/test/clitest"
)

func TestCommandsHaveTheFlagsOfTheirTables(t *testing.T) {
	clitest.Commands(t, newRoot(nil))
}

func TestEverySettingIsRead(t *testing.T) {
	clitest.AllRead(t, "pilotctl", settings.Pilotctl, func(v *settings.Values) { new(flags).set(v) })
	clitest.AllRead(t, "of a cluster", settings.PilotctlCluster, func(v *settings.Values) { readPlace(v, "", "") })
	clitest.AllRead(t, "of a name", settings.PilotctlNamespace, func(v *settings.Values) { readNamespace(v) })
	clitest.AllRead(t, "demo", settings.PilotctlDemo, func(v *settings.Values) { readDemo(v, "tree") })
	clitest.AllRead(t, "up", settings.PilotctlUp, func(v *settings.Values) { readUp(v, "tree") })
	clitest.AllRead(t, "exec", settings.PilotctlExec, func(v *settings.Values) { readExec(v) })
	clitest.AllRead(t, "logs", settings.PilotctlLogs, func(v *settings.Values) { readLogs(v) })
	clitest.AllRead(t, "proxies", settings.PilotctlProxies, func(v *settings.Values) { readProxies(v) })
	clitest.AllRead(t, "objects", settings.PilotctlObjects, func(v *settings.Values) { readObjects(v) })
	clitest.AllRead(t, "wait", settings.PilotctlWait, func(v *settings.Values) { readWait(v) })
	clitest.AllRead(t, "check", settings.PilotctlCheck, func(v *settings.Values) { readCheck(v) })
	clitest.AllRead(t, "inject", settings.PilotctlInject, func(v *settings.Values) { readInject(v) })
	clitest.AllRead(t, "validate", settings.PilotctlValidate, func(v *settings.Values) { readValidate(v) })
	clitest.AllRead(t, "vm join-token", settings.PilotctlVMJoinToken, func(v *settings.Values) { readJoinToken(v, nil) })
	clitest.AllRead(t, "token create", settings.PilotctlTokenCreate, func(v *settings.Values) { readToken(v) })
}

// Each command that has a result prints it in both forms, as a script shows, or refuses to.
func TestEveryCommandHasOrRefusesForms(t *testing.T) {
	var scripts strings.Builder
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		scripts.Write(text)
	}
	n := 0
	clitest.Visit(newRoot(nil), func(c *cobra.Command) {
		if c.HasSubCommands() || c.DisableFlagParsing { // help is printed; the sample application has flags of its own
			return
		}
		n++
		words := strings.Fields(c.CommandPath())[1:]
		for _, form := range []string{"json", "yaml", "wide"} {
			if c.Annotations[onlyText] == "" && form == "wide" {
				continue
			}
			if c.Annotations[onlyText] == "" {
				tested := regexp.MustCompile(`(?m)^!? ?exec pilotctl (--discovery \S+ )?` + strings.Join(words, " ") + `( .*)? -o ` + form)
				if !tested.MatchString(scripts.String()) {
					t.Errorf("no script runs %s with -o %s", c.CommandPath(), form)
				}
				continue
			}
			var out, errs strings.Builder
			code := run(t.Context(), slices.Concat(words, []string{"-o", form}, strings.Fields(c.Use)[1:]), nil, &out, &errs)
			if want := "flag --output: " + c.CommandPath() + " prints "; code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), want) {
				t.Errorf("%s -o %s: code %d, %q, %q; want code 2 and %q", c.CommandPath(), form, code, out.String(), errs.String(), want)
			}
		}
	})
	if n < 15 {
		t.Errorf("%d commands", n)
	}
}

func TestOutputsAreCompleted(t *testing.T) {
	root := newRoot(nil)
	complete, ok := root.GetFlagCompletionFunc("output")
	if !ok {
		t.Fatal("--output has no completion")
	}
	if got, _ := complete(&cobra.Command{}, nil, ""); len(got) != 4 {
		t.Errorf("%q", got)
	}
}
