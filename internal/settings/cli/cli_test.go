package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
)

var table = settings.Table{
	{Flag: "name", Short: "n", Env: []string{"NAME"}, Kind: settings.Text, Default: "a", Help: "`text` to print"},
	{Flag: "many", Kind: settings.List, Default: "x", Help: "`list` of texts"},
	{Flag: "none", Kind: settings.List, Help: "`list` of texts"},
	{Flag: "switch", Kind: settings.Bool, Help: "turn it on"},
	{Flag: "wait", Kind: settings.Duration, Help: "how long"},
	{Flag: "form", Kind: settings.Enum, Default: "one", Values: []string{"one", "two"}, Help: "`form` of it"},
	{Env: []string{"GONE"}, Kind: settings.Int, NoEffect: "there is none", Help: "how much"},
	{Env: []string{"ONLY"}, Kind: settings.Int, Default: "4", Help: "how many"},
}

var errWrapped = errors.New("wrapped")

// execute runs a program of two commands and returns the values that the second one reads.
func execute(t *testing.T, env map[string]string, args ...string) (v *settings.Values, out string, err error) {
	t.Helper()
	root := &cobra.Command{Use: "program", SilenceErrors: true, SilenceUsage: true}
	Setup(root, func(_ *cobra.Command, err error) error { return errors.Join(errWrapped, err) })
	AddToAll(root, settings.Table{{Flag: "output", Short: "o", Kind: settings.Text, Help: "`form`"}})
	c := &cobra.Command{Use: "command", Short: "Do it", Run: func(c *cobra.Command, _ []string) { v = Read(c.Flags(), env, table) }}
	Add(c, table)
	root.AddCommand(c, Collateral(root))
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(args)
	err = root.Execute()
	return v, b.String(), err
}

func TestFlagsAreRead(t *testing.T) {
	env := map[string]string{"NAME": "env", "ONLY": "7"}
	v, _, err := execute(t, env, "command", "--many", "b,c", "--many=d", "--switch")
	if err != nil {
		t.Fatal(err)
	}
	if got := v.List("many"); !slices.Equal(got, []string{"b", "c", "d"}) {
		t.Errorf("list %q", got)
	}
	if v.Text("name") != "env" || !v.Bool("switch") || v.Int("ONLY") != 7 || v.List("none") != nil || v.Enum("form") != "one" {
		t.Errorf("%q %v %d", v.Text("name"), v.Bool("switch"), v.Int("ONLY"))
	}
	if v, _, _ = execute(t, env, "command", "-n", ""); v.Text("name") != "" {
		t.Errorf("an empty flag does not silence the environment: %q", v.Text("name"))
	}
	if v, _, _ = execute(t, env, "command", "--many="); v.List("many") != nil {
		t.Errorf("an empty list is %q", v.List("many"))
	}
}

func TestErrorsNameTheFlag(t *testing.T) {
	for args, want := range map[string]string{
		"--form=three": `flag --form: invalid value "three": want one or two`,
		"--form=":      `flag --form: invalid value "": want one or two`,
		"--wait=soon":  `flag --wait: invalid duration "soon"`,
		"--unknown":    "unknown flag: --unknown",
		"--swich":      "unknown flag: --swich; did you mean --switch?",
		"--Wait=1s":    "unknown flag: --Wait; did you mean --wait?",
		"--out=json":   "unknown flag: --out",
		"-q":           "unknown shorthand flag: 'q' in -q",
	} {
		if _, _, err := execute(t, nil, "command", args); !errors.Is(err, errWrapped) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

func TestHelpHasVariablesAfterFlags(t *testing.T) {
	_, out, err := execute(t, nil, "command", "--help")
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, want := range []string{
		"Usage:", `-n, --name text       text to print [$NAME] (default "a")`, "--switch          turn it on\n", "--wait duration   how long\n",
		`--form form       form of it: one or two (default "one")`, "Global Flags:", "Environment:\n  ONLY\n        how many (default 4)\n\nEnvironment without effect:\n  GONE\n        how much (no effect: there is none)\n",
	} {
		i := strings.Index(out, want)
		if i < last {
			t.Fatalf("no %q in its place in\n%s", want, out)
		}
		last = i
	}
}

func TestCollateralHasVariables(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if _, out, err := execute(t, nil, "collateral", "--all", "--output_dir", dir); err != nil {
		t.Fatal(err, out)
	}
	for file, want := range map[string]string{
		"program-command.1": ".SH ENVIRONMENT\n.TP\n.B ONLY\nhow many (default 4)\n.SH ENVIRONMENT WITHOUT EFFECT\n.TP\n.B GONE\nhow much (no effect: there is none)\n", "program_command.md": "## Environment\n\n- `ONLY`: how many (default 4)\n\n## Environment without effect\n\n- `GONE`: how much (no effect: there is none)\n",
		"program.bash": "complete", "_program": "#compdef", "program.fish": "complete -c", "program.1": `program\-command`,
	} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: no %q in\n%s%v", file, want, text, err)
		}
	}
	if _, _, err := execute(t, nil, "collateral"); err == nil || !strings.Contains(err.Error(), "want --all") {
		t.Errorf("nothing asked for: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	got := Environment([]string{"A=1", "B=x=y", "A=2", "C="})
	if got["A"] != "1" || got["B"] != "x=y" || len(got) != 3 {
		t.Errorf("got %v", got)
	}
}

// Manual pages are ASCII, since groff by itself takes no UTF-8.
func TestManualPagesAreASCII(t *testing.T) {
	for text, want := range map[string]string{"scope:level,…": `scope:level,\[u2026]`, "1–65535": `1\[u2013]65535`, `a\b`: `a\eb`, ".x-y": `\&.x\-y`} {
		if got := roff(text); got != want {
			t.Errorf("%q is written as %q, want %q", text, got, want)
		}
	}
}
