package clitest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Examples checks that the help of each command that people are shown has an example of it, and that the program's command
// lines in all examples are valid: the commands, flags, values of flags and numbers of arguments. The library's own commands have none.
// Unknown are the flags among arguments that a command that takes any does not know.
func Examples(t *testing.T, newRoot func() *cobra.Command, unknown func(args []string, f *pflag.FlagSet) []string) {
	t.Helper()
	Visit(newRoot(), func(c *cobra.Command) {
		if name := firstBelow(c); c.Hidden || name == "completion" || name == "help" {
			return
		}
		var own bool
		for _, line := range strings.Split(c.Example, "\n") {
			if !strings.HasPrefix(line, "  ") && c.Example != "" {
				t.Errorf("%s: example %q is not indented by two blanks", c.CommandPath(), line)
			}
			lines, err := commandLines(line, c.Root().Name())
			if err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
			for _, args := range lines {
				called, err := parse(newRoot(), args, unknown)
				if err != nil {
					t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
				}
				own = own || called == c.CommandPath() || c.HasSubCommands() && strings.HasPrefix(called, c.CommandPath()+" ")
			}
		}
		if !own {
			t.Errorf("the help of %s has no example of it", c.CommandPath())
		}
	})
}

// firstBelow is the first word behind the program's name.
func firstBelow(c *cobra.Command) string {
	words := strings.Fields(c.CommandPath())
	if len(words) < 2 {
		return ""
	}
	return words[1]
}

// parse finds the command of arguments, and returns its path and what is wrong with them.
func parse(root *cobra.Command, args []string, unknown func(args []string, f *pflag.FlagSet) []string) (string, error) {
	c, rest, err := root.Find(args)
	if err != nil {
		return "", err
	}
	if err := c.ParseFlags(rest); err != nil {
		return "", err
	}
	if bad := unknown(rest, c.Flags()); len(bad) > 0 && c.FParseErrWhitelist.UnknownFlags {
		return "", errors.New(bad[0])
	}
	if err := c.ValidateRequiredFlags(); err != nil {
		return "", err
	}
	return c.CommandPath(), c.ValidateArgs(c.Flags().Args())
}

// commandLines are the arguments of a program in a line for a shell. Of quotes, pipes, lists, redirections, variables before a
// command and sudo it knows as much as examples need.
func commandLines(line, program string) (out [][]string, err error) {
	var words []string
	end := func() {
		for i, w := range words {
			if w != program {
				continue
			}
			args := words[i+1:]
			for j, a := range args {
				if a == ">" || a == "<" {
					args = args[:j]
					break
				}
			}
			out = append(out, args)
			break
		}
		words = nil
	}
	word, in, quote := "", false, rune(0)
	space := func() {
		if in {
			words = append(words, word)
		}
		word, in = "", false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ':
			space()
		case r == '|' || r == ';' || r == '&':
			space()
			end()
		case r == '…':
			return out, fmt.Errorf("%q cannot be pasted", r)
		default:
			word, in = word+string(r), true
		}
	}
	if quote != 0 {
		return out, fmt.Errorf("no closing %q", quote)
	}
	space()
	end()
	return out, nil
}
