// Package yamltree parses YAML and JSON into trees with line numbers, and decodes trees into structs and protobuf messages.
//
// A mistake is returned as a Fault with line, field path and remedy; all mistakes of a
// document are found, up to 20, not only the first. Limits on bytes, documents, depth and
// the expansion of aliases bound the memory that any input can cost. The package keeps no
// state and a Tree is not modified after it is returned, so all of it is safe for
// concurrent use.
package yamltree

import "fmt"

// Limits on the input.
const (
	// MaxBytes limits a text, in bytes.
	MaxBytes = 16 << 20
	// MaxDocuments limits the documents of one text.
	MaxDocuments = 10_000
	// MaxDepth limits the nesting of values, with aliases expanded.
	MaxDepth = 200
	// maxCost limits a document with its aliases expanded: the bytes of its texts plus four for
	// each value.
	maxCost = 64 << 20
	// maxFaults limits the faults that are reported for one document.
	maxFaults = 20
)

// Kind is the type of a value.
type Kind uint8

// The kinds of value. Timestamps and values with a custom tag are Strings.
const (
	Null Kind = iota
	Bool
	Number
	String
	Sequence
	Mapping
)

var kindNames = [...]string{"null", "a boolean", "a number", "a string", "a list", "a mapping"}

// String returns the kind as in messages ("a list"). It panics for values that are not constants of
// this package.
func (k Kind) String() string { return kindNames[k] }

// Tree is one value. Line counts from 1 in the whole text.
type Tree struct {
	Kind Kind
	Line int
	// Text is the value of a String, a Number in JSON's notation, or "true" or "false".
	Text    string
	Entries []Entry // of a Mapping, in the order of the text
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

// Get returns the value of key. It returns nil if the tree is nil, is not a mapping, or lacks key.
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

// Str returns the text of a String, and "" for other values and nil.
func (t *Tree) Str() string {
	if t == nil || t.Kind != String {
		return ""
	}
	return t.Text
}

// IsNull reports whether the tree is nil or a null.
func (t *Tree) IsNull() bool { return t == nil || t.Kind == Null }

// Fault is one mistake in a text. Line counts from 1, and is 0 if unknown; Path is a field path
// such as "spec.http[0].timeout", or empty.
type Fault struct {
	Line int
	Path string
	Text string
	// Unknown is set for a field that the message does not have.
	Unknown bool
}

// Error returns "line 3: spec.http[0]: …".
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

// Document is one document of a text: its tree, or the Fault that prevented parsing. An empty
// document has neither.
type Document struct {
	Line  int // of the first value, or of the first line if there is none
	Root  *Tree
	Fault *Fault
	// Text is what was not parsed because of the Fault: the document, and the rest of the text if
	// that was not parsed either. It must not be modified.
	Text []byte
}

// JoinPath appends a key to a field path: as ".key" if it is an identifier, else as "[key]".
func JoinPath(path, key string) string {
	if !isIdentifier(key) {
		return path + "[" + key + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func isIdentifier(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
