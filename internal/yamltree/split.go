package yamltree

import (
	"bytes"
	"fmt"
)

// Parse parses all documents of a YAML text, or a sequence of JSON values if json is set. A YAML
// document that does not parse is returned with its Fault; the others are parsed nevertheless. In
// JSON, nothing after a mistake can be parsed.
func Parse(text []byte, json bool) []Document {
	var docs []Document
	for _, c := range Split(text, json) {
		docs = append(docs, c.Parse()...)
	}
	return docs
}

// Chunk is a part of a text that is parsed on its own: a YAML document with its marker, or a whole JSON
// text. What it means does not depend on the rest of the text, since neither anchors nor mistakes affect
// other documents: chunks with equal Text have equal documents, whose lines differ by the difference of
// Line.
type Chunk struct {
	Text []byte
	Line int // of the first line, in the whole text

	json  bool
	item  bool   // one element of the list "items" of a mapping, with its hyphen in YAML
	fault string // why it is not parsed
}

// Parse parses the documents of the chunk: one of YAML, any number of JSON.
func (c Chunk) Parse() []Document {
	switch {
	case c.fault != "":
		return []Document{{Line: max(c.Line, 1), Text: c.blanked(), Fault: &Fault{Line: c.Line, Text: c.fault}}}
	case c.item:
		return []Document{c.parseItem()}
	case c.json:
		return parseJSON(c.Text)
	}
	return []Document{parseYAML(Chunk{Text: c.blanked(), Line: c.Line})}
}

// blanked returns the text with blanks in place of the marker, so that what follows it keeps its column. A tab
// may follow a marker, but not blanks at the start of a line.
func (c Chunk) blanked() []byte {
	if !bytes.HasPrefix(c.Text, []byte("---")) || bytes.HasPrefix(bytes.TrimLeft(c.Text[3:], " "), []byte("\t")) {
		return c.Text
	}
	if l := (lines{text: c.Text}); !l.next() || marker(l.line) == "" {
		return c.Text
	}
	return append([]byte("   "), c.Text[3:]...)
}

// Split splits a text into chunks, which refer to it. What Parse returns is what they return, one after
// the other.
func Split(text []byte, json bool) []Chunk {
	if len(text) > MaxBytes {
		return []Chunk{{Text: text, fault: fmt.Sprintf("%d bytes, want at most %d; split the file", len(text), MaxBytes)}}
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if json {
		return []Chunk{{Text: text, Line: 1, json: true}}
	}
	chunks := splitYAML(text)
	if len(chunks) > MaxDocuments {
		rest := chunks[MaxDocuments]
		rest.Text, rest.fault = joined(chunks[MaxDocuments:]), fmt.Sprintf("more than %d documents: the rest is not read; split the file", MaxDocuments)
		chunks = append(chunks[:MaxDocuments], rest)
	}
	return chunks
}

func joined(chunks []Chunk) []byte {
	var out []byte
	for _, c := range chunks {
		out = append(out, c.blanked()...)
	}
	return out
}

// splitYAML splits a YAML stream at its document markers, and leaves out documents that are empty. YAML
// forbids "---" and "..." at the start of a line within a document, so this needs no parser, and a
// document that does not parse does not affect the next one.
func splitYAML(text []byte) []Chunk {
	var out []Chunk
	l := newLines(text)
	start, line, first := 0, 1, 1
	flush := func(end int) {
		c := text[start:end:end]
		if !blank(&lines{text: c, plain: l.plain}) {
			out = append(out, Chunk{Text: c, Line: first})
		}
	}
	for ; l.next(); line++ {
		switch marker(l.line) {
		case "---":
			flush(l.at)
			start, first = l.at, line
		case "...":
			flush(l.at)
			start, first = l.at+len("..."), line
		}
	}
	flush(len(text))
	return out
}

// lines iterates over the lines of a text, with YAML's line breaks.
type lines struct {
	text    []byte
	line    []byte // the current line, without its break
	at, end int    // its start, and that of the next
	// plain is set if all lines end with a line feed, after at most one carriage return.
	plain bool
}

func newLines(text []byte) *lines {
	l := &lines{text: text, plain: bytes.Count(text, []byte("\r")) == bytes.Count(text, []byte("\r\n"))}
	for _, br := range []string{"\u0085", "\u2028", "\u2029"} {
		l.plain = l.plain && !bytes.Contains(text, []byte(br))
	}
	return l
}

// next goes to the next line, the first at the first call. It returns false after the last.
func (l *lines) next() bool {
	if l.at = l.end; l.at == len(l.text) {
		return false
	}
	rest := l.text[l.at:]
	stop, width := bytes.IndexByte(rest, '\n'), 1
	switch {
	case !l.plain:
		for stop, width = 0, 0; stop < len(rest); stop++ {
			if width = lineBreak(rest[stop:]); width > 0 {
				break
			}
		}
	case stop < 0:
		stop, width = len(rest), 0
	case stop > 0 && rest[stop-1] == '\r':
		stop, width = stop-1, 2
	}
	l.line, l.end = rest[:stop], l.at+stop+width
	return true
}

// lineBreak returns the length of the line break that a text starts with, 0 if there is none.
func lineBreak(s []byte) int {
	switch s[0] {
	case '\n':
		return 1
	case '\r':
		if len(s) > 1 && s[1] == '\n' {
			return 2
		}
		return 1
	case 0xc2:
		if bytes.HasPrefix(s, []byte("\u0085")) {
			return 2
		}
	case 0xe2:
		if bytes.HasPrefix(s, []byte("\u2028")) || bytes.HasPrefix(s, []byte("\u2029")) {
			return 3
		}
	}
	return 0
}

// marker returns the document marker that a line without its break starts with, or "".
func marker(line []byte) string {
	if len(line) < 3 || len(line) > 3 && line[3] != ' ' && line[3] != '\t' {
		return ""
	}
	switch string(line[:3]) {
	case "---":
		return "---"
	case "...":
		return "..."
	}
	return ""
}

// blank reports whether a chunk has only space, comments, its marker, and, without one, directives.
func blank(l *lines) bool {
	marked := false
	for first := true; l.next(); first = false {
		line := l.line
		if first && marker(line) != "" {
			line, marked = line[3:], true
		}
		text := bytes.TrimLeft(line, " \t")
		if directive := !marked && len(line) > 0 && line[0] == '%'; len(text) > 0 && text[0] != '#' && !directive {
			return false
		}
	}
	return true
}
