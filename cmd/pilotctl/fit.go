package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// gap is between the columns of a table.
const gap = 2

// leastWidth is how narrow a column may become, in characters; a shorter header or value needs less. Narrower ones, with values
// over many lines, are hard to read.
const leastWidth = 24

// fitted returns a table that is not wider than columns as far as that can be: values in short forms, without columns that are empty in all
// rows, and with values broken over several lines in the widest columns, where what continues a value is indented by one. If that is
// too wide, each row has its first value on a line, and the others with their names below. header and rows are changed.
func fitted(columns int, header []string, rows [][]string, now time.Time) []string {
	for i := len(header) - 1; i >= 0; i-- {
		if len(rows) > 0 && !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "" }) {
			header = slices.Delete(header, i, i+1)
			for r := range rows {
				rows[r] = slices.Delete(rows[r], i, i+1)
			}
		}
	}
	for r, row := range rows {
		for i := range row {
			rows[r][i] = cell(short(row[i], now))
		}
	}
	widths, ok := narrowed(columns, header, rows)
	if !ok {
		return records(columns, header, rows)
	}
	var out []string
	for _, row := range slices.Concat([][]string{header}, rows) {
		cells, height := make([][]string, len(row)), 0
		for i, text := range row {
			cells[i] = broken(text, widths[i])
			height = max(height, len(cells[i]))
		}
		for y := range height {
			var line strings.Builder
			for i, lines := range cells {
				text := ""
				if y < len(lines) {
					text = lines[y]
				}
				line.WriteString(text + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+gap))
			}
			out = append(out, strings.TrimRight(line.String(), " "))
		}
	}
	return out
}

// cell is a value as a table shows it.
func cell(text string) string {
	if text == "" {
		return "-"
	}
	return printable.Escape(text)
}

// kept stands for a space at which no line is broken; no value has it, since values are escaped.
const kept = "\x00"

// records are rows below each other. A value is broken only if it is longer than a line.
func records(columns int, header []string, rows [][]string) []string {
	var out []string
	title := ""
	for i, row := range rows {
		if i == 0 || row[0] != title {
			title = row[0]
			out = append(out, title)
		}
		var values []string
		for n, text := range row[1:] {
			if text != "-" {
				value := strings.ToLower(header[n+1]) + " " + text
				if utf8.RuneCountInString(value) < columns-4 {
					value = strings.ReplaceAll(value, " ", kept)
				}
				values = append(values, value)
			}
		}
		out = append(out, "  "+strings.ReplaceAll(wrap(strings.Join(values, "; "), columns-4, "    "), kept, " "))
	}
	return out
}

// narrowed are the widths of the columns of a table, of which the widest give way, and whether they fit.
func narrowed(columns int, header []string, rows [][]string) (widths []int, ok bool) {
	widths = make([]int, len(header))
	least := make([]int, len(header))
	total := gap * (len(header) - 1)
	for i, name := range header {
		widths[i] = utf8.RuneCountInString(name)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		least[i] = min(widths[i], max(leastWidth, utf8.RuneCountInString(name)))
		total += widths[i]
	}
	for ; total > columns; total-- {
		widest := -1
		for i := range widths {
			if widths[i] > least[i] && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return widths, false
		}
		widths[widest]--
	}
	return widths, true
}

// broken breaks a value so that no line has more characters than width, at spaces, or else after punctuation, where that is possible.
func broken(text string, width int) []string {
	var out []string
	rest, room := []rune(text), width
	for len(rest) > room {
		at := room
		for at > 0 && rest[at] != ' ' {
			at--
		}
		if at <= room/2 {
			for at = room; at > 0 && !strings.ContainsRune(",./|:;=-", rest[at-1]); {
				at--
			}
		}
		if at <= room/3 { // rather within a word than many short lines
			at = room
		}
		out = append(out, strings.TrimRight(string(rest[:at]), " "))
		rest, room = []rune(strings.TrimLeft(string(rest[at:]), " ")), width-1
	}
	out = append(out, string(rest))
	for i := range out[1:] {
		out[i+1] = " " + out[i+1]
	}
	return out
}

// What a narrow table shortens.
var (
	identityForm = regexp.MustCompile(`\bspiffe://[^/\s]+/ns/([^/\s]+)/sa/([^/\s,]+)`)
	outboundForm = regexp.MustCompile(`\boutbound\|(\d+)\|([^|\s]*)\|([^|\s,]+)`)
	timeForm     = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
)

// short is a value in which identities are namespace/account, clusters HOST:PORT and subset, hosts of the cluster without its domain, and times
// those of the last day or dates.
func short(text string, now time.Time) string {
	text = identityForm.ReplaceAllString(text, "$1/$2")
	text = outboundForm.ReplaceAllStringFunc(text, func(name string) string {
		p := outboundForm.FindStringSubmatch(name)
		return strings.TrimSuffix(p[3]+":"+p[1]+" "+p[2], " ")
	})
	text = strings.ReplaceAll(text, ".svc."+clusterDomain, "")
	return timeForm.ReplaceAllStringFunc(text, func(at string) string { return shortTime(at, now) })
}

// narrowRoutes writes routes below their hosts: what each matches, where it sends requests, and the object that it was written from.
func narrowRoutes(w io.Writer, columns int, rows [][]string) error {
	var b strings.Builder
	above := ""
	for _, row := range rows {
		name, host, match, to, timeout, retries, object := row[0], row[1], row[2], row[3], row[4], row[5], row[6]
		if title := name + "  " + short(host, time.Time{}); title != above {
			b.WriteString(printable.Escape(title) + "\n")
			above = title
		}
		if match == "" && to == "" {
			b.WriteString("  no routes\n")
			continue
		}
		text := match + " → " + short(to, time.Time{})
		if timeout != "" && timeout != "none" {
			text += "; timeout " + timeout
		}
		if retries != "" {
			text += "; retries " + retries
		}
		b.WriteString("  " + wrap(printable.Escape(text), columns-4, "    ") + "\n")
		if object != "" {
			b.WriteString("    " + wrap(printable.Escape(object), columns-6, "      ") + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// problemLine is a problem as a line of text: an editor and a person find its place first.
type problemLine struct{ severity, where, object, field, text, more string }

// printProblemLines prints problems as lines that are broken between words.
func printProblemLines(w io.Writer, columns int, all []problemLine) error {
	for _, p := range all {
		line := p.severity + ":"
		for _, part := range []string{p.where, p.object, p.field} {
			if part != "" {
				line += " " + part + ":"
			}
		}
		line += " " + p.text
		if p.more != "" {
			line += "; " + p.more
		}
		if _, err := fmt.Fprintln(w, wrap(printable.Escape(line), columns-2, "  ")); err != nil {
			return err
		}
	}
	return nil
}
