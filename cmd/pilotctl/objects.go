package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// remark is one thing to say about one object, as /debug/objectz tells it.
type remark struct {
	Object   string `json:"object"`
	Origin   string `json:"origin"`
	Severity string `json:"severity"`
	Field    string `json:"field"`
	Text     string `json:"text"`
}

func newObjects(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "objects",
		Short: "List the objects that are refused, or kept but not used, and why",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			var all []remark
			text, err := fetchInto(c.Context(), f.discovery, "debug/objectz", nil, &all)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(c.OutOrStdout(), f.output, text)
			}
			if len(all) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "every object is in use as it is written")
				return err
			}
			var rows [][]string
			for _, r := range all {
				rows = append(rows, []string{r.Severity, r.Object, r.Field, r.Origin, r.Text})
			}
			return printTable(c.OutOrStdout(), []string{"SEVERITY", "OBJECT", "FIELD", "WHERE", "WHAT"}, rows)
		},
	}
}
