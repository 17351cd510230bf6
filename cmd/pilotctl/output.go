package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// printValue writes v as JSON or YAML.
func printValue(w io.Writer, form string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	return printJSON(w, form, text)
}

// printJSON writes JSON as it came, indented, or as YAML; no field is lost. What could command a
// terminal is escaped.
func printJSON(w io.Writer, form string, text []byte) error {
	var out bytes.Buffer
	if form == "yaml" {
		y, err := yaml.JSONToYAML([]byte(printable.EscapeJSON(string(text)))) // it refuses control characters
		if err != nil {
			return fmt.Errorf("turn the result into YAML: %w", err)
		}
		// Only text that reverses the direction of writing is changed: YAML escapes the rest.
		_, err = io.WriteString(w, printable.EscapeOutput(string(y)))
		return err
	}
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return fmt.Errorf("indent the result: %w", err)
	}
	_, err := fmt.Fprintln(w, printable.EscapeJSON(out.String()))
	return err
}

// printTable writes rows below a header, in columns, fitted to a terminal of so many columns unless that is 0. An empty
// value becomes "-", and characters that are not printable are escaped.
func printTable(w io.Writer, columns int, header []string, rows [][]string) error {
	return printFitting(w, columns,
		func(w io.Writer) error { return wholeTable(w, header, rows) },
		func(w io.Writer) error {
			copies := make([][]string, len(rows))
			for i, row := range rows {
				copies[i] = slices.Clone(row)
			}
			_, err := io.WriteString(w, strings.Join(fitted(columns, slices.Clone(header), copies, time.Now()), "\n")+"\n")
			return err
		})
}

// wholeTable writes rows below a header, in columns, as wide as they are.
func wholeTable(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = cell(text)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}
