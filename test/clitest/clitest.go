// Package clitest checks a program's commands against the tables of its settings.
package clitest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/settings"
)

// Commands checks that each command of a program has the flags of its tables (settings.Commands) and no
// others, and that its help tells of each flag and variable what its row says.
func Commands(t *testing.T, root *cobra.Command) {
	t.Helper()
	want := map[string]settings.Command{}
	for _, c := range settings.Commands() {
		if strings.Fields(c.Path)[0] == root.Name() {
			want[c.Path] = c
		}
	}
	Visit(root, func(c *cobra.Command) {
		entry := want[c.CommandPath()]
		delete(want, c.CommandPath())
		command(t, c, entry)
	})
	for path := range want {
		t.Errorf("%s is in settings.Commands, and there is no such command", path)
	}
}

// Visit calls f with a command and all below it.
func Visit(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		Visit(sub, f)
	}
}

func command(t *testing.T, c *cobra.Command, entry settings.Command) {
	t.Helper()
	var help bytes.Buffer
	c.SetOut(&help)
	if err := c.Help(); err != nil {
		t.Error(err)
	}
	flags := map[string]bool{"help": true, "version": true}
	for _, table := range append(append([]settings.Table(nil), entry.Tables...), entry.Shared...) {
		for i := range table {
			s := &table[i]
			flags[s.Flag] = true
			if s.Flag != "" && c.Flags().Lookup(s.Flag) == nil && c.InheritedFlags().Lookup(s.Flag) == nil {
				t.Errorf("%s has no flag --%s, which its table has", c.CommandPath(), s.Flag)
			}
			for _, text := range append([]string{strings.ReplaceAll(s.Help, "`", ""), s.DefaultText(), s.NoEffect}, s.Env...) {
				if text != "false" && !strings.Contains(help.String(), text) {
					t.Errorf("%s --help does not say %q of %s", c.CommandPath(), text, s.Name())
				}
			}
		}
	}
	if flag := extra(c, flags); flag != "" && len(entry.Tables)+len(entry.Shared) > 0 {
		t.Errorf("%s has the flag --%s, which no table has", c.CommandPath(), flag)
	}
}

// extra is a flag of c itself that its help has and that is not in known; empty if there is none.
func extra(c *cobra.Command, known map[string]bool) string {
	found := ""
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !known[f.Name] && !f.Hidden {
			found = f.Name
		}
	})
	return found
}

// AllRead checks that each setting of a table is read by the function that reads them. Values are
// those without any flag or variable.
func AllRead(t *testing.T, name string, table settings.Table, read func(*settings.Values)) {
	t.Helper()
	v := settings.Read(nil, nil, table)
	read(v)
	for _, unread := range v.Unread() {
		t.Errorf("%s: nothing reads %s", name, unread)
	}
}
