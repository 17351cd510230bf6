// Package printable makes text that others chose safe to show: in errors, logs and on terminals.
//
// A terminal executes escape codes, and a line break or a mark that reverses the direction of
// writing makes a line look like another one. So characters that are not printable are shown by
// their escapes, and text has a bound. All functions are pure and safe for concurrent use.
package printable

import (
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Is reports whether all characters of s are printable: letters, marks, numbers, punctuation,
// symbols and the space.
func Is(s string) bool {
	for _, r := range s {
		if !printable(r) {
			return false
		}
	}
	return true
}

func printable(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }

// Escape shows each character of s that is not printable by its escape in Go, such as \x1b or \n.
// Quotes and backslashes stay as they are.
func Escape(s string) string { return escape(s, "") }

// EscapeLines is Escape for text of several lines: line breaks stay, and each line but the first
// is indented, so that it cannot be taken for one of its surroundings.
func EscapeLines(s, indent string) string {
	return strings.ReplaceAll(escape(strings.TrimRight(s, "\n"), "\n"), "\n", "\n"+indent)
}

// EscapeOutput is Escape for a document in which line breaks and tabs are the writer's own.
func EscapeOutput(s string) string { return escape(s, "\n\t") }

func escape(s, keep string) string {
	if Is(s) {
		return s
	}
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if printable(r) || strings.ContainsRune(keep, r) {
			out.WriteString(s[:n])
		} else {
			quoted := strconv.Quote(s[:n])
			out.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return out.String()
}

// EscapeJSON shows the characters of an encoded JSON document that are not printable, other than
// the white space between its values, by escapes of JSON: it means the same.
func EscapeJSON(text string) string {
	if Is(text) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		switch {
		case printable(r) || strings.ContainsRune("\n\r\t", r):
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// Clip returns s if it has at most most bytes, else its beginning, whole characters only, and how
// long it is.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}

// Quote is Clip of s, quoted and with escapes as in Go.
func Quote(s string, most int) string {
	if len(s) <= most {
		return strconv.Quote(s)
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(s[:most]), len(s))
}

// MaxLogged bounds one value in a line of the log, in bytes.
const MaxLogged = 8 << 10

// Attr bounds and escapes a value of a line of the log, whatever wrote it. It is a
// slog.HandlerOptions.ReplaceAttr.
func Attr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = logged(a.Value, a.Value.String())
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = logged(a.Value, v.Error())
		case fmt.Stringer:
			a.Value = logged(a.Value, v.String())
		}
	}
	return a
}

// logged is v unless its text has to be changed. Line breaks are left to the handler, which
// escapes them.
func logged(v slog.Value, text string) slog.Value {
	if safe := escape(Clip(text, MaxLogged), "\n\t"); safe != text {
		return slog.StringValue(safe)
	}
	return v
}

// localAddress is the address of this end of a connection, in the errors of package net.
var localAddress = regexp.MustCompile(`\b((?:tcp|udp)[46]? )\S+->`)

// Reason is the text of an error without the local addresses of connections, whose ports differ each time: so that what fails
// again and again for one reason has one text.
func Reason(err error) string { return localAddress.ReplaceAllString(err.Error(), "$1") }
