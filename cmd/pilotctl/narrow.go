package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/check"
	"github.com/pilothouse/pilothouse/internal/demo"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// columns is the width of the terminal that the result goes to, 0 if it goes elsewhere or is not to be fitted to it.
func (f *flags) columns(c *cobra.Command) int {
	if f.wide {
		return 0
	}
	size := demo.Terminal(c.OutOrStdout(), f.env["TERM"])
	if size == nil {
		return 0
	}
	columns, _ := size()
	return columns
}

// printFitting writes the first of several forms of a result that is not wider than columns, or else the last one; the first one
// if columns is 0.
func printFitting(w io.Writer, columns int, forms ...func(io.Writer) error) error {
	for i, form := range forms {
		var b bytes.Buffer
		if err := form(&b); err != nil {
			return err
		}
		if columns == 0 || i == len(forms)-1 || widest(b.String()) <= columns {
			_, err := w.Write(b.Bytes())
			return err
		}
	}
	return nil
}

// widest is the length of the longest line, in characters.
func widest(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return most
}

// narrowProxies writes the table of proxies with short times and accounts, and one column for all resource types.
func narrowProxies(w io.Writer, columns int, all []proxy, several bool, now time.Time) error {
	header := []string{"PROXY", "SYNC", "GENERATION", "BEHIND", "REFUSED", "EPOCH", "ENVOY", "ACCOUNT"}
	if several {
		header = slices.Insert(header, 1, "REPLICA")
	}
	var rows [][]string
	for _, p := range all {
		behind, refused := "", ""
		if p.Behind != nil {
			behind = shortTime(p.Behind.Since, now)
		}
		if p.LastRefusal != nil {
			refused = p.LastRefusal.Type + " " + shortTime(p.LastRefusal.At, now)
		}
		row := []string{p.name(), p.summary(), p.progress(), behind, refused, p.Epoch.String(), p.Version, shortIdentity(p.Identity)}
		if several {
			row = slices.Insert(row, 1, p.Replica)
		}
		rows = append(rows, row)
	}
	return printTable(w, columns, header, rows)
}

// summary is "synced", or the types that are not.
func (p proxy) summary() string {
	var out []string
	for _, typ := range proxyTypes {
		if state, ok := p.Types[typ]; ok && (state.Nack != "" || state.Stuck != "" || !state.Synced) {
			_, word, more := strings.Cut(state.String(), " ")
			if !more {
				word = state.String()
			}
			if !state.Asked {
				word = "not asked"
			}
			out = append(out, typ+" "+word)
		}
	}
	if len(out) == 0 {
		return "synced"
	}
	return strings.Join(out, ", ")
}

// shortTime is a time of the last day as its time of day in UTC, one within a day as its date and time to the minute, any other as its date.
func shortTime(text string, now time.Time) string {
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return text
	case at.After(now) && at.Sub(now) <= 24*time.Hour:
		return at.UTC().Format("2006-01-02 15:04")
	case !at.After(now) && now.Sub(at) < 24*time.Hour:
		return at.UTC().Format(time.TimeOnly)
	}
	return at.UTC().Format(time.DateOnly)
}

// shortIdentity is an identity as namespace/account.
func shortIdentity(id string) string {
	_, rest, ok := strings.Cut(id, "/ns/")
	ns, account, ok2 := strings.Cut(rest, "/sa/")
	if !ok || !ok2 {
		return id
	}
	return ns + "/" + account
}

// checkLines writes checks below each other, broken between words.
func checkLines(w io.Writer, rows []check.Row, columns int) error {
	var b strings.Builder
	for _, r := range rows {
		b.WriteString(r.Result.Mark() + " " + wrap(printable.Escape(r.Name+": "+r.Found), columns-2, "  ") + "\n")
		if r.Remedy != "" {
			b.WriteString("  → " + wrap(printable.Escape(r.Remedy), columns-4, "    ") + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks a text between words so that no line has more characters than columns unless a word has; what follows the first
// line is indented.
func wrap(text string, columns int, indent string) string {
	var b strings.Builder
	used := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case used+1+n > columns:
			b.WriteString("\n" + indent)
			used = 0
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += n
	}
	return b.String()
}

// hang wraps each line of a text that has more characters than columns. Where a line has a name and, behind two or more blanks, a
// text, that stays beside the name.
func hang(text string, columns int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if utf8.RuneCountInString(line) <= columns {
			continue
		}
		begin, indent := len(line)-len(strings.TrimLeft(line, " ")), "  "
		if gap := strings.Index(line[begin:], "  "); gap >= 0 {
			begin += gap
			begin += len(line[begin:]) - len(strings.TrimLeft(line[begin:], " "))
			indent = strings.Repeat(" ", utf8.RuneCountInString(line[:begin]))
		} else if begin > 0 {
			indent = line[:begin] + indent
		}
		lines[i] = line[:begin] + wrap(line[begin:], columns-max(len(indent), begin), indent)
	}
	return strings.Join(lines, "\n")
}

// wrapLines wraps each line of a text that has more characters than columns; the others stay as they are.
func wrapLines(text string, columns int, indent string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if utf8.RuneCountInString(line) > columns {
			begins := line[:len(line)-len(strings.TrimLeft(line, " "))]
			lines[i] = begins + wrap(line, columns-len(begins), begins+indent)
		}
	}
	return strings.Join(lines, "\n")
}
