// Package yamltree reads YAML and JSON into trees whose every value knows its line, and trees into structs and protobuf messages.
//
// A mistake comes back as a Fault that names line, field path and remedy, and all of a
// document's unknown fields are found, not only the first. Input is bounded (bytes,
// documents, depth, what aliases expand to), so that no text, however made, costs more
// than memory in proportion to its limits. Functions only: nothing keeps state, any
// goroutine may call anything, and a Tree is never changed once it is returned.
package yamltree

import "fmt"

// Bounds on what is read.
const (
	// MaxBytes is the longest text that is taken.
	MaxBytes = 16 << 20
	// MaxDocuments is how many documents one text may hold.
	MaxDocuments = 10_000
	// MaxDepth is how deep values may nest, aliases included.
	MaxDepth = 200
	// maxCost bounds a document with its aliases written out: bytes of its texts plus
	// four for each value.
	maxCost = 64 << 20
	// maxFaults is how many faults of one document are reported.
	maxFaults = 20
)

// Kind says what a value is.
type Kind uint8

// The kinds of value. A timestamp, or a text with a tag of its own, is a String.
const (
	Null Kind = iota
	Bool
	Number
	String
	Sequence
	Mapping
)

var kindNames = [...]string{"null", "a boolean", "a number", "a string", "a list", "a mapping"}

// String names the kind as error texts do.
func (k Kind) String() string { return kindNames[k] }

// Tree is one value. Line is 1-based in the whole text.
type Tree struct {
	Kind Kind
	Line int
	// Text is a String's text, a Number in JSON's notation, or "true" or "false".
	Text    string
	Entries []Entry // of a Mapping, in the order they are written
	Items   []*Tree // of a Sequence

	cost   int64
	height int
}

// Entry is one key of a mapping.
type Entry struct {
	Key   string
	Line  int
	Value *Tree
}

// Get is the value of key; nil where the tree is nil, no mapping, or has no such key.
func (t *Tree) Get(key string) *Tree {
	if t == nil {
		return nil
	}
	for i := range t.Entries {
		if t.Entries[i].Key == key {
			return t.Entries[i].Value
		}
	}
	return nil
}

// Str is the text of a String, else "".
func (t *Tree) Str() string {
	if t == nil || t.Kind != String {
		return ""
	}
	return t.Text
}

// IsNull says whether nothing is there: a nil tree or a null.
func (t *Tree) IsNull() bool { return t == nil || t.Kind == Null }

// Fault is one mistake in a text. Line is 1-based, 0 where unknown; Path is a field path
// such as "spec.http[0].timeout", or empty.
type Fault struct {
	Line int
	Path string
	Text string
	// Unknown is set where the only mistake is a field that nobody knows.
	Unknown bool
}

// Error is "line 3: spec.http[0]: …".
func (f *Fault) Error() string {
	s := ""
	if f.Line > 0 {
		s = fmt.Sprintf("line %d: ", f.Line)
	}
	if f.Path != "" {
		s += f.Path + ": "
	}
	return s + f.Text
}

// Document is one document of a text: its tree (nil where it is empty), or why there is none.
type Document struct {
	Line  int // of its first value, or of its first line where it has none
	Root  *Tree
	Fault *Fault
	// Text is what was not read because of the Fault: the document, and the rest of the
	// text where that was not read either. Do not change it.
	Text []byte
}

// JoinPath adds a key to a field path: ".key" where it is a plain word, else "[key]".
func JoinPath(path, key string) string {
	if !plainWord(key) {
		return path + "[" + key + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func plainWord(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
