package yamltree

import (
	"bytes"
	"fmt"
	"strings"
)

// Parse parses all documents of a YAML text, or a sequence of JSON values if json is set. A YAML
// document that does not parse is returned with its Fault; the others are parsed nevertheless. In
// JSON, nothing after a mistake can be parsed.
func Parse(text []byte, json bool) []Document {
	if len(text) > MaxBytes {
		return []Document{{Line: 1, Text: text, Fault: &Fault{Text: fmt.Sprintf("%d bytes, want at most %d; split the file", len(text), MaxBytes)}}}
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if json {
		return parseJSON(text)
	}
	var docs []Document
	chunks := split(text)
	for i, c := range chunks {
		if len(docs) == MaxDocuments {
			f := &Fault{Line: c.line, Text: fmt.Sprintf("more than %d documents: the rest is not read; split the file", MaxDocuments)}
			return append(docs, Document{Line: c.line, Fault: f, Text: joined(chunks[i:])})
		}
		docs = append(docs, parseYAML(c))
	}
	return docs
}

func joined(chunks []chunk) []byte {
	var out []byte
	for _, c := range chunks {
		out = append(out, c.text...)
	}
	return out
}

// chunk is the text of one document; line is that of its first line in the whole text.
type chunk struct {
	text []byte
	line int
}

// split splits a YAML stream at its document markers. YAML forbids "---" and "..." at the start of
// a line within a document, so this needs no parser, and a document that does not parse does not
// affect the next one. A marker is replaced by blanks, so that what follows it keeps its column.
func split(text []byte) []chunk {
	var out []chunk
	start, line, first := 0, 1, 1
	flush := func(end int) {
		c := text[start:end]
		if blank(c) {
			return
		}
		if bytes.HasPrefix(c, []byte("---")) {
			c = append([]byte("   "), c[3:]...)
		}
		out = append(out, chunk{text: c, line: first})
	}
	for at := 0; at < len(text); line++ {
		end := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		switch marker(text[at:end]) {
		case "---":
			flush(at)
			start, first = at, line
		case "...":
			flush(at)
			start, first = end, line+1
		}
		at = end
	}
	flush(len(text))
	return out
}

// marker returns the document marker that a line starts with, or "".
func marker(line []byte) string {
	for _, m := range []string{"---", "..."} {
		if rest, ok := bytes.CutPrefix(line, []byte(m)); ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0) {
			return m
		}
	}
	return ""
}

// blank reports whether a chunk has only space, comments, directives and its marker.
func blank(c []byte) bool {
	for first := true; len(c) > 0; first = false {
		line, rest, _ := bytes.Cut(c, []byte("\n"))
		if first && marker(line) != "" {
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
		c = rest
	}
	return true
}
