// Package cli makes the flags, the help and the manual pages of a command from its tables of settings.
//
// A command calls [Add] with its tables and, when it runs, [Read]. Nothing else registers flags.
package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/spelling"
)

// groups are the headings under which a command's variables without a flag, and its files, are documented. Each
// is also the annotation of the command that lists them, one a line: the name, a tab, what it does.
var groups = []string{effective, withoutEffect, files}

const effective, withoutEffect, files = "Environment", "Environment without effect", "Files"

// Setup has a program's commands print their variables with their help, and name the flag in errors
// of the command line as [settings.Values] does; wrap, which may be nil, makes the final error.
func Setup(root *cobra.Command, wrap func(c *cobra.Command, err error) error) {
	plain := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		if err := plain(c); err != nil {
			return err
		}
		var b strings.Builder
		eachVariable(c, func(group string) { fmt.Fprintf(&b, "\n%s:\n", group) }, func(name, usage string) {
			fmt.Fprintf(&b, "  %s\n        %s\n", name, usage)
		})
		_, err := fmt.Fprint(c.OutOrStderr(), b.String())
		return err
	})
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		err = flagError(err, c.Flags())
		if wrap != nil {
			err = wrap(c, err)
		}
		return err
	})
}

// Version gives a program the flag --version, which prints text, as its command "version" does. Call it after root has its RunE.
//
// The command library's own flag has a short form, too, and prints the text alone only by a template: that links package
// text/template, which calls methods by name, so that the linker must keep the methods of all types: 10 MB of each program.
func Version(root *cobra.Command, text string) {
	print := root.Flags().Bool("version", false, "print the version")
	run := root.RunE
	root.RunE = func(c *cobra.Command, args []string) error {
		if *print {
			_, err := fmt.Fprintln(c.OutOrStdout(), text)
			return err
		}
		return run(c, args)
	}
}

// Suggest is an error of an argument check of a command that has others below it: it says which of them a
// person may have meant.
func Suggest(c *cobra.Command, args []string, err error) error {
	if err == nil || !c.HasSubCommands() || len(args) == 0 {
		return err
	}
	if c.SuggestionsMinimumDistance == 0 {
		c.SuggestionsMinimumDistance = 2
	}
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
	}
	return err
}

// UnknownFlags says which flags among the arguments of a command that takes any have no effect, and which may have been meant.
func UnknownFlags(args []string, f *pflag.FlagSet) (out []string) {
	for _, a := range args {
		if a == "--" {
			break
		}
		name, ok := strings.CutPrefix(a, "--")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, "=")
		if f.Lookup(name) != nil || name == "help" {
			continue
		}
		text := "unknown flag --" + printable.Clip(name, maxFlag) + " has no effect"
		if near := nearFlag(name, f); near != "" {
			text += "; did you mean --" + near + "?"
		}
		out = append(out, text)
	}
	return out
}

// nearFlag is the flag that is most similar to a name, empty if none is similar.
func nearFlag(name string, f *pflag.FlagSet) (near string) {
	if len(name) > maxFlag {
		return ""
	}
	least := max(2, len(name)/8) + 1
	f.VisitAll(func(other *pflag.Flag) {
		if d := spelling.Distance(strings.ToLower(name), strings.ToLower(other.Name)); d < least && !other.Hidden {
			near, least = other.Name, d
		}
	})
	return near
}

// maxFlag bounds what is shown and compared of an unknown flag, in bytes.
const maxFlag = 100

// flagError gives an invalid value of a flag the form of other errors of settings, and names the flag that an unknown one may be.
func flagError(err error, f *pflag.FlagSet) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		if near := nearFlag(unknown.GetSpecifiedName(), f); near != "" {
			return fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		return fmt.Errorf("flag --%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
	}
	return err
}

// Add gives a command the settings of tables.
func Add(c *cobra.Command, tables ...settings.Table) {
	add(c, c.Flags(), tables)
}

// AddToAll gives a command and all below it the settings of a table.
func AddToAll(c *cobra.Command, table settings.Table) {
	add(c, c.PersistentFlags(), []settings.Table{table})
}

func add(c *cobra.Command, f *pflag.FlagSet, tables []settings.Table) {
	for _, t := range tables {
		Flags(f, t)
		for i := range t {
			if s := &t[i]; s.Flag == "" {
				annotate(c, s)
			}
		}
	}
}

// Files adds the files that a command reads to its help and its manual page. Call it after Add.
func Files(c *cobra.Command, list []settings.File) {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%s\t%s\n", f.Path, f.Help)
	}
	c.Annotations[files] = b.String()
}

// annotate adds the variables of a setting without a flag to those of its group.
func annotate(c *cobra.Command, s *settings.Setting) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	group := effective
	if s.NoEffect != "" {
		group = withoutEffect
	}
	for _, name := range s.Env {
		c.Annotations[group] += name + "\t" + withDefault(s.Usage(), s.DefaultText()) + "\n"
	}
}

// eachVariable goes through the variables without a flag of a command, by groups; those that are empty
// are left out.
func eachVariable(c *cobra.Command, begin func(group string), visit func(name, usage string)) {
	for _, group := range groups {
		if c.Annotations[group] == "" {
			continue
		}
		begin(group)
		for line := range strings.Lines(c.Annotations[group]) {
			name, usage, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			visit(name, usage)
		}
	}
}

// withDefault adds a default that a person must be told.
func withDefault(usage, def string) string {
	switch def {
	case "", "false", "0", "0s":
		return usage
	}
	return usage + " (default " + def + ")"
}

// Flags adds the flags of a table to f.
func Flags(f *pflag.FlagSet, t settings.Table) {
	f.SortFlags = false
	for i := range t {
		s := &t[i]
		if s.Flag == "" {
			continue
		}
		flag := f.VarPF(&flagValue{setting: s, text: s.DefaultText()}, s.Flag, s.Short, s.Usage())
		if s.Kind == settings.Bool {
			flag.NoOptDefVal = "true"
		}
		if flag.DefValue = s.DefaultText(); flag.DefValue == "0s" {
			flag.DefValue = "0" // which the help leaves out
		}
	}
}

// Read returns the values of tables whose flags were parsed by f.
func Read(f *pflag.FlagSet, env map[string]string, tables ...settings.Table) *settings.Values {
	return settings.Read(Given(f), env, tables...)
}

// Given are the flags that the command line gave, by name and in their usual spelling.
func Given(f *pflag.FlagSet) map[string]string {
	given := map[string]string{}
	f.Visit(func(flag *pflag.Flag) {
		if v, ok := flag.Value.(*flagValue); ok {
			given[flag.Name] = v.text
		}
	})
	return given
}

// flagValue is the value of a flag of a table.
type flagValue struct {
	setting *settings.Setting
	text    string
	given   bool
}

// Set implements pflag.Value. A list grows with each flag that is given.
func (v *flagValue) Set(text string) error {
	text, err := v.setting.Canonical(text)
	if err != nil {
		return err
	}
	switch {
	case v.setting.Kind == settings.List && v.given:
		text = v.text + "," + text
	case v.setting.Kind == settings.Lines && v.given:
		text = v.text + "\n" + text
	}
	v.text, v.given = text, true
	return nil
}

// Type implements pflag.Value; it names the value in the help if no backquotes do.
func (v *flagValue) Type() string {
	switch v.setting.Kind {
	case settings.Bool:
		return "bool"
	case settings.Int, settings.Port:
		return "int"
	case settings.Duration:
		return "duration"
	case settings.Ratio, settings.Float:
		return "float"
	case settings.List, settings.Lines:
		return "strings"
	}
	return "string"
}

// String implements pflag.Value; the start log prints it.
func (v *flagValue) String() string {
	if v.setting != nil && (v.setting.Kind == settings.List || v.setting.Kind == settings.Lines) {
		return "[" + v.text + "]"
	}
	return v.text
}

// Environment makes a map of name=value strings as os.Environ returns them. The first of equal names
// counts, as in C.
func Environment(list []string) map[string]string {
	env := make(map[string]string, len(list))
	for _, e := range list {
		name, value, _ := strings.Cut(e, "=")
		if _, dup := env[name]; !dup {
			env[name] = value
		}
	}
	return env
}
