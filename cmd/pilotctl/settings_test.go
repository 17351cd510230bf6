package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
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
		if c.DisableFlagParsing { // the sample application has flags of its own
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

// Each command asks the address of --discovery, or refuses it.
func TestEveryCommandAsksOrRefusesAnAddress(t *testing.T) {
	for _, words := range [][]string{
		{"exec", "--discovery", "URL", "web", "--", "true"}, {"--discovery", "URL", "logs", "web"}, {"--discovery=URL"}, {"--version", "--discovery", "URL"},
		{"completion", "bash", "--discovery", "URL"},
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), words, nil, &out, &errs); code != 2 || !strings.Contains(errs.String(), "does not ask pilot-discovery: want it without --discovery") {
			t.Errorf("%q: code %d, %q, %q", words, code, out.String(), errs.String())
		}
	}
	// The address of the environment is for those commands that use it.
	if code := run(t.Context(), []string{"version"}, map[string]string{"PILOTCTL_DISCOVERY": "http://x"}, io.Discard, io.Discard); code != 0 {
		t.Errorf("version with PILOTCTL_DISCOVERY: code %d", code)
	}
	arguments := map[string][]string{
		"config": {"web.shop"}, "explain": {"none", "web.shop"}, "wait": {"vs", "shop/web"}, "exec": {"web", "true"}, "up": {"."}, "validate": {"settings_test.go"},
		"create": {"shop/web", "--stateDir", "/nowhere"}, "join": {"shop/web", "--stateDir", "/nowhere", "--address", "x:1"},
		"join-token": {"shop/web", "--stateDir", "/nowhere", "--address", "x:1"}, "inject": {"-f", "/nowhere"}, "collateral": {"--all", "--output_dir", "/dev/null/x"},
	}
	asking := 0
	clitest.Visit(newRoot(nil), func(c *cobra.Command) {
		if c.DisableFlagParsing {
			return
		}
		var requests atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			http.Error(w, "no", http.StatusInternalServerError)
		}))
		defer s.Close()
		var out, errs strings.Builder
		words := slices.Concat(strings.Fields(c.CommandPath())[1:], []string{"--discovery", s.URL}, arguments[c.Name()])
		code := run(t.Context(), words, nil, &out, &errs)
		want := "flag --discovery: " + c.CommandPath() + " does not ask pilot-discovery: want it without --discovery"
		switch refused := strings.Contains(errs.String(), want) && code == 2 && out.Len() == 0; {
		case requests.Load() > 0:
			asking++
		case !refused:
			t.Errorf("%q: no request, code %d, %q, %q; want code 2 and %q", words, code, out.String(), errs.String(), want)
		}
	})
	if asking < 8 {
		t.Errorf("%d commands ask", asking)
	}
}

// What another flag makes meaningless is refused, not ignored.
func TestFlagsThatHaveNoEffectAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"objects --all --exit-code":                                         "flag --exit-code: want it without --all",
		"validate --annotations=sarif -o wide .":                            "--annotations=sarif and -o wide: want one of them",
		"inject -f /nowhere -i mesh":                                        "flag --istioNamespace: want --kubeconfig, too",
		"inject -f /nowhere --context a":                                    "flag --context: want --kubeconfig, too",
		"token join shop/web --stateDir state --address x:1 --kubeconfig k": "flag --kubeconfig: want it without --stateDir",
		"vm join-token shop/web --stateDir state --address x:1 --context c": "flag --context: want it without --stateDir",
		"logs -c web":                 "flag --container: want a POD",
		"exec web --mesh dir -- true": `"--mesh" after the POD: flags of pilotctl exec are before it`,
		"wait -f /nowhere -n shop --discovery http://127.0.0.1:1":             "flag --namespace: want KIND NAME, not a file",
		"wait vs shop/web -n other --discovery http://127.0.0.1:1":            "shop/web and --namespace other: want one namespace",
		"config web.shop -n other --discovery http://127.0.0.1:1":             "web.shop and --namespace other: want one namespace",
		"proxies --watch -o json --discovery http://127.0.0.1:1":              "flag --watch: want it without -o json",
		"check --pre --discovery http://127.0.0.1:1":                          "flag --pre: want a cluster",
		"objects --revision canary --discovery http://127.0.0.1:1":            "flag --revision: want it without --discovery",
		"explain none web.shop --tcp --path / --discovery http://127.0.0.1:1": "has no method, path",
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), strings.Fields(args), nil, &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: code %d, %q, %q; want code 2 and %q", args, code, out.String(), errs.String(), want)
		}
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

func TestExamples(t *testing.T) {
	clitest.Examples(t, func() *cobra.Command { return newRoot(nil) }, cli.UnknownFlags)
}
