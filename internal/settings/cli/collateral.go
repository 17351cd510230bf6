package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// The command library's own writers of documentation bring parsers of Markdown and YAML along,
// 0.3 MB and 0.3 ms in every Pod; the pages below need a few lines.

// Collateral makes the command that writes the documentation and shell completion of a program: what
// the command tree and the tables of settings imply. [agent C8, C9]
func Collateral(root *cobra.Command) *cobra.Command {
	table := slices.Clone(settings.Collateral)
	if root.PersistentFlags().ShorthandLookup(table[0].Short) != nil {
		table[0].Short = "" // another flag of the program has it
	}
	c := &cobra.Command{
		Use:    "collateral",
		Short:  "Write documentation and shell completion",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := Read(c.Flags(), nil, table)
			kinds, dir := chosen(v), v.Text("output_dir")
			if err := v.Err(); err != nil {
				return err
			}
			return write(root, dir, kinds)
		},
	}
	Add(c, table)
	return c
}

// collateral is one kind of what Collateral writes; its name is its flag.
type collateral struct {
	name, help string
	write      func(root *cobra.Command, dir string) error
}

var collaterals = []collateral{
	{"markdown", "Markdown pages", func(root *cobra.Command, dir string) error { return writePages(root, dir, "_", ".md", markdown) }},
	{"man", "manual pages", func(root *cobra.Command, dir string) error { return writePages(root, dir, "-", ".1", man) }},
	{"bash", "completion for bash", func(root *cobra.Command, dir string) error {
		return root.GenBashCompletionFileV2(filepath.Join(dir, root.Name()+".bash"), true)
	}},
	{"zsh", "completion for zsh", func(root *cobra.Command, dir string) error {
		return root.GenZshCompletionFile(filepath.Join(dir, "_"+root.Name()))
	}},
	{"fish", "completion for fish", func(root *cobra.Command, dir string) error {
		return root.GenFishCompletionFile(filepath.Join(dir, root.Name()+".fish"), true)
	}},
}

// chosen are the kinds that the flags ask for.
func chosen(v *settings.Values) []collateral {
	all := v.Bool("all")
	return slices.DeleteFunc(slices.Clone(collaterals), func(k collateral) bool { return !v.Bool(k.name) && !all })
}

func write(root *cobra.Command, dir string, kinds []collateral) error {
	if len(kinds) == 0 {
		return errors.New("collateral: nothing to write: want --all, or one of the other flags")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write collateral: %w", err)
	}
	for _, k := range kinds {
		if err := k.write(root, dir); err != nil {
			return fmt.Errorf("write %s: %w", k.help, err)
		}
	}
	return nil
}

// writePages writes a page for each command that a person is meant to find.
func writePages(c *cobra.Command, dir, join, suffix string, page func(io.Writer, *cobra.Command) error) error {
	c.InitDefaultHelpFlag()
	f, err := os.Create(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", join)+suffix))
	if err != nil {
		return err
	}
	if err := errors.Join(page(f, c), f.Close()); err != nil {
		return err
	}
	for _, sub := range documented(c) {
		if err := writePages(sub, dir, join, suffix, page); err != nil {
			return err
		}
	}
	return nil
}

func documented(c *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			out = append(out, sub)
		}
	}
	return out
}

// description is the long text, or the short one where there is none.
func description(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short + "."
}

// flagLine is a flag as a person types it, with the name of its value.
func flagLine(f *pflag.Flag) (name, usage string) {
	value, usage := pflag.UnquoteUsage(f)
	name = "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if value != "" {
		name += " " + value
	}
	return name, withDefault(usage, f.DefValue)
}

// eachFlag goes through a command's own flags and those that it has from above.
func eachFlag(c *cobra.Command, visit func(name, usage string)) {
	for _, set := range []*pflag.FlagSet{c.NonInheritedFlags(), c.InheritedFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				visit(flagLine(f))
			}
		})
	}
}

func markdown(w io.Writer, c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n    %s\n", c.CommandPath(), description(c), c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n%s\n", indent(c.Example))
	}
	b.WriteString("\n## Options\n\n")
	eachFlag(c, func(name, usage string) { fmt.Fprintf(&b, "- `%s`: %s\n", name, usage) })
	eachVariable(c, func(group string) { fmt.Fprintf(&b, "\n## %s\n\n", group) }, func(name, usage string) {
		fmt.Fprintf(&b, "- `%s`: %s\n", name, usage)
	})
	for i, sub := range documented(c) {
		if i == 0 {
			b.WriteString("\n## Commands\n\n")
		}
		fmt.Fprintf(&b, "- [%s](%s.md): %s\n", sub.CommandPath(), strings.ReplaceAll(sub.CommandPath(), " ", "_"), sub.Short)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// man writes roff with the macros of man(7).
func man(w io.Writer, c *cobra.Command) error {
	var b strings.Builder
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" Pilothouse\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n%s\n", roff(c.UseLine()), roff(description(c)))
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	b.WriteString(".SH OPTIONS\n")
	eachFlag(c, func(name, usage string) { fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(name), roff(usage)) })
	eachVariable(c, func(group string) { fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(group)) }, func(name, usage string) {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
	})
	for i, sub := range documented(c) {
		if i == 0 {
			b.WriteString(".SH SEE ALSO\n")
		}
		fmt.Fprintf(&b, ".BR %s (1)\n", roff(strings.ReplaceAll(sub.CommandPath(), " ", "-")))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// roff escapes text: backslashes, hyphens that are to be copied, dots and quotes at the start of a
// line, which would make it a request, and what is not ASCII, which groff takes as an escape only.
func roff(s string) string {
	s = escapeUnicode(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s))
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		switch {
		case strings.HasPrefix(l, "."), strings.HasPrefix(l, "'"):
			lines[i] = `\&` + l
		case strings.TrimSpace(l) == "":
			lines[i] = ".PP"
		}
	}
	return strings.Join(lines, "\n")
}

func escapeUnicode(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}
