package settings

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/settings.md anew")

const pageHead = `# Settings

Every flag and environment variable of pilot-agent, pilot-discovery and pilotctl. This page is written
from the tables in [internal/settings](../internal/settings) by ` + "`make docs`" + `, as are ` + "`--help`" + ` and the manual pages.

- A flag that is given counts, even if its value is empty: ` + "`-x \"\"`" + ` silences the variables of ` + "`-x`" + `, and
  text and lists are empty then. Where no empty value makes sense, that is an error.
- Else the first of its variables that is set and not empty counts, in the order of this page; a variable
  that is set and empty counts as not set.
- Else the default counts. Defaults in italics are worked out. Without one, text is empty and a switch is false.
- A duration is written as in 300ms, 5s, 1h30m; a switch as true or false; lists have commas in between.
- ` + "`pilot-agent proxy`" + ` also finds its variables in ` + "`proxyMetadata`" + `, beneath the environment.
- A value that cannot be used ends the program with an error that names the flag or variable.
- What has *no effect* is accepted because Istio has it; the reason is given. A value other than the default is
  named in a warning at the start.
`

// docs/settings.md lists the settings as they are.
func TestPageIsCurrent(t *testing.T) {
	const path = "../../docs/settings.md"
	want := page()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s differs (-want +have); make docs writes it:\n%s", path, diff)
	}
}

// page is docs/settings.md.
func page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	for _, c := range Commands() {
		fmt.Fprintf(&b, "\n## %s\n", c.Path)
		for _, s := range c.Shared {
			fmt.Fprintf(&b, "\nTakes the flags of %s.\n", owner(s))
		}
		for _, t := range c.Tables {
			b.WriteString(markdownTable(t))
		}
	}
	return b.String()
}

// owner links to the first command that has a table.
func owner(t Table) string {
	for _, c := range Commands() {
		for _, own := range c.Tables {
			if &own[0] == &t[0] {
				return fmt.Sprintf("[%s](#%s)", c.Path, strings.ReplaceAll(c.Path, " ", "-"))
			}
		}
	}
	panic("no command has the table of " + t[0].Name())
}

func markdownTable(t Table) string {
	printed := false
	for i := range t {
		printed = printed || t[i].PrintedAs != ""
	}
	columns := []string{"flag", "variables", "default", "unit", "what it does", "used in"}
	if printed {
		columns = append(columns, "printed as")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for i := range t {
		s := &t[i]
		var flags []string
		if s.Flag != "" {
			flags = append(flags, "--"+s.Flag)
		}
		if s.Short != "" {
			flags = append(flags, "-"+s.Short)
		}
		cells := []string{code(flags...), code(s.Env...), pageDefault(s), s.Unit, pageHelp(s), s.Used}
		if printed {
			cells = append(cells, code(s.PrintedAs))
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

func pageDefault(s *Setting) string {
	switch {
	case s.Required && s.Default == "":
		return "required"
	case s.Otherwise != "":
		return "*" + cell(s.Otherwise) + "*"
	case s.Kind == Bool && s.Default == "":
		return ""
	}
	return code(s.DefaultText())
}

func pageHelp(s *Setting) string {
	help := cell(strings.ReplaceAll(s.Help, "`", ""))
	if values := s.choices(); values != "" {
		help += ": " + values
	}
	if s.NoEffect != "" {
		help += "; *no effect*: " + cell(s.NoEffect)
	}
	return help
}

func code(names ...string) string {
	var out []string
	for _, n := range names {
		if n != "" {
			out = append(out, "`"+n+"`")
		}
	}
	return strings.Join(out, " ")
}

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`).Replace(text)
}
