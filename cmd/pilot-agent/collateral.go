package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newCollateral writes the documentation and shell completion that the command tree
// itself implies. [agent C8, C9]
func newCollateral(root *cobra.Command) *cobra.Command {
	var (
		dir  string
		all  bool
		want = map[string]*bool{}
	)
	kinds := []struct {
		name, help string
		write      func(dir string) error
	}{
		{"markdown", "Markdown pages", func(dir string) error { return doc.GenMarkdownTree(root, dir) }},
		{"man", "manual pages", func(dir string) error {
			return doc.GenManTree(root, &doc.GenManHeader{Title: "PILOT-AGENT", Section: "1", Source: "Pilothouse"}, dir)
		}},
		{"bash", "completion for bash", func(dir string) error {
			return root.GenBashCompletionFileV2(filepath.Join(dir, "pilot-agent.bash"), true)
		}},
		{"zsh", "completion for zsh", func(dir string) error { return root.GenZshCompletionFile(filepath.Join(dir, "_pilot-agent")) }},
		{"fish", "completion for fish", func(dir string) error {
			return root.GenFishCompletionFile(filepath.Join(dir, "pilot-agent.fish"), true)
		}},
	}
	c := &cobra.Command{
		Use:    "collateral",
		Short:  "Write documentation and shell completion",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("write collateral: %w", err)
			}
			root.DisableAutoGenTag = true
			any := false
			for _, k := range kinds {
				if !all && !*want[k.name] {
					continue
				}
				any = true
				if err := k.write(dir); err != nil {
					return fmt.Errorf("write %s: %w", k.help, err)
				}
			}
			if !any {
				return errors.New("collateral: say what to write, for instance --all")
			}
			return nil
		},
	}
	c.Flags().StringVarP(&dir, "output_dir", "o", ".", "`directory` to write to")
	c.Flags().BoolVar(&all, "all", false, "write everything")
	for _, k := range kinds {
		want[k.name] = c.Flags().Bool(k.name, false, "write "+k.help)
	}
	return c
}
