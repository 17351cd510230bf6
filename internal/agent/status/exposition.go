package status

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// maxLine bounds a line of metrics, in bytes.
	maxLine = 256 << 10
	// maxFamilies is how many names of families are remembered. Those beyond are declared as often as their sources do.
	maxFamilies = 1 << 15
)

// exposition joins pages of metrics to one valid page, line by line, so that none of them is in memory as a whole.
//
// A family that several pages have is declared once: later samples follow without HELP, TYPE and UNIT. Comments, empty lines and
// the # EOF of each page are left out. In OpenMetrics, pages in the text format are converted: counters whose names do not end in
// _total have no valid type there, so that theirs is unknown.
type exposition struct {
	out         *bufio.Writer
	openMetrics bool
	// families are the hashes of the families, each with what is declared of it.
	families map[uint64]declared
	seed     maphash.Seed

	// Of the current page.
	page    int
	convert bool // from text to OpenMetrics
	ended   bool // by # EOF
	part    []byte
	// help is a HELP that waits for the type of its family, which decides the family's name in OpenMetrics.
	help, helpOf string
	// istio is set if the page is Envoy's, which has Istio's metrics in a form of its own.
	istio *istioMetrics
}

// declared says which page declared a family, and whether with HELP, TYPE and UNIT.
type declared struct {
	page             int
	help, kind, unit bool
}

// writeError is an error of the client's connection, not of a page.
type writeError struct{ err error }

func (e *writeError) Error() string { return "write metrics: " + e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

func newExposition(out *bufio.Writer, openMetrics bool) *exposition {
	return &exposition{out: out, openMetrics: openMetrics, families: map[uint64]declared{}, seed: maphash.MakeSeed()}
}

// begin begins a page, in the text format or in OpenMetrics. A page in OpenMetrics requires that the whole is.
func (e *exposition) begin(text bool) {
	e.page++
	e.convert, e.ended, e.part, e.help, e.helpOf, e.istio = text && e.openMetrics, false, e.part[:0], "", "", nil
}

// beginEnvoy begins Envoy's page, in the text format.
func (e *exposition) beginEnvoy() {
	e.begin(true)
	e.istio = &istioMetrics{seed: e.seed, seen: map[uint64]struct{}{}, place: map[string]int{}}
}

// Write adds a part of the page. An error is that of an invalid page, or a *writeError.
func (e *exposition) Write(p []byte) (int, error) {
	n := len(p)
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			break
		}
		line := p[:end]
		if len(e.part) > 0 {
			e.part = append(e.part, line...)
			line = e.part
		}
		if err := e.line(line); err != nil {
			return 0, err
		}
		e.part, p = e.part[:0], p[end+1:]
	}
	if len(e.part)+len(p) > maxLine {
		return 0, fmt.Errorf("a line is longer than %d bytes", maxLine)
	}
	e.part = append(e.part, p...)
	return n, nil
}

// end ends a page. The last line of an incomplete page is left out unless it has ended.
func (e *exposition) end(complete bool) error {
	if complete && len(e.part) > 0 {
		if err := e.line(e.part); err != nil {
			return err
		}
	}
	if err := e.endFamily(); err != nil {
		return err
	}
	return e.flushHelp()
}

// endFamily writes the samples that were added while their family was read.
func (e *exposition) endFamily() error {
	if e.istio == nil || len(e.istio.sums) == 0 {
		return nil
	}
	return e.put(string(e.istio.sum()))
}

// finish ends the whole.
func (e *exposition) finish() error {
	if e.openMetrics {
		if err := e.put("# EOF\n"); err != nil {
			return err
		}
	}
	if err := e.out.Flush(); err != nil {
		return &writeError{err}
	}
	return nil
}

func (e *exposition) put(text string) error {
	if _, err := e.out.WriteString(text); err != nil {
		return &writeError{err}
	}
	return nil
}

func (e *exposition) line(line []byte) error {
	line = bytes.Trim(line, " \t\r")
	switch {
	case len(line) == 0 || e.ended:
		return nil
	case len(line) > maxLine:
		return fmt.Errorf("a line is longer than %d bytes", maxLine)
	case line[0] == '#':
		return e.comment(string(line))
	case line[0] != '{' && !isNameStart(line[0]):
		return fmt.Errorf("invalid line %s: want a metric or a comment", printable.Quote(string(line), 100))
	}
	if err := e.flushHelp(); err != nil {
		return err
	}
	if e.istio != nil {
		if line = e.istio.line(line); line == nil {
			return nil
		}
	}
	if _, err := e.out.Write(line); err != nil {
		return &writeError{err}
	}
	return e.put("\n")
}

func isNameStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == ':'
}

// comment handles a line that begins with #: HELP, TYPE, UNIT or EOF, or one without meaning.
func (e *exposition) comment(line string) error {
	if line == "# EOF" {
		e.ended = true
		return nil
	}
	rest, ok := strings.CutPrefix(line, "# ")
	if !ok {
		return nil
	}
	keyword, rest, _ := strings.Cut(rest, " ")
	if keyword != "HELP" && keyword != "TYPE" && keyword != "UNIT" {
		return nil
	}
	name, text := cutName(strings.TrimLeft(rest, " "))
	if name == "" || keyword != "HELP" && text == "" {
		return errors.New("invalid line: " + printable.Quote(line, 100) + ": want the name of a metric, and its type or unit")
	}
	if e.istio != nil {
		if err := e.endFamily(); err != nil {
			return err
		}
		name = e.istio.name(name)
	}
	if !e.convert {
		return e.declare(keyword, name, text)
	}
	switch keyword {
	case "HELP":
		if err := e.flushHelp(); err != nil {
			return err
		}
		e.help, e.helpOf = text, name
		return nil
	case "TYPE":
		family, kind := e.openMetricsType(name, text)
		if e.helpOf == name {
			e.helpOf = family
		}
		if err := e.flushHelp(); err != nil {
			return err
		}
		return e.declare(keyword, family, kind)
	}
	return nil // the text format has no UNIT
}

// cutName cuts the name of a family, which may be quoted, from the rest.
func cutName(s string) (name, rest string) {
	if !strings.HasPrefix(s, `"`) {
		name, rest, _ = strings.Cut(s, " ")
		return name, rest
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i+1], strings.TrimLeft(s[i+1:], " ")
		}
	}
	return "", ""
}

// openMetricsType returns the name and the type in OpenMetrics of a family in the text format.
func (e *exposition) openMetricsType(name, kind string) (family, openMetrics string) {
	switch kind {
	case "gauge", "histogram", "summary":
		return name, kind
	case "counter":
		base, ok := strings.CutSuffix(name, "_total")
		if _, clashes := e.families[e.hash(base)]; ok && base != "" && !clashes {
			return base, kind
		}
	}
	return name, "unknown"
}

// flushHelp writes the HELP that waits for a type.
func (e *exposition) flushHelp() error {
	if e.helpOf == "" {
		return nil
	}
	name := e.helpOf
	e.helpOf = ""
	// OpenMetrics has quotes escaped, and the text format has not.
	return e.declare("HELP", name, strings.ReplaceAll(e.help, `"`, `\"`))
}

func (e *exposition) hash(name string) uint64 { return maphash.String(e.seed, name) }

// declare writes a line about a family, unless another page has declared it, or this one has the line twice.
func (e *exposition) declare(keyword, name, text string) error {
	key := e.hash(strings.Trim(name, `"`))
	d, known := e.families[key]
	if known && d.page != e.page {
		return nil
	}
	d.page = e.page
	mark := &d.help
	switch keyword {
	case "TYPE":
		mark = &d.kind
	case "UNIT":
		mark = &d.unit
	}
	if *mark {
		return nil
	}
	*mark = true
	if known || len(e.families) < maxFamilies {
		e.families[key] = d
	}
	return e.put("# " + keyword + " " + name + " " + text + "\n")
}
