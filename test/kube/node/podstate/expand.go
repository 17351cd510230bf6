package podstate

import "strings"

// Expand replaces each $(NAME) in text by its value; a name that is not defined stays as it is, and $$ stands for $.
func Expand(text string, value func(name string) (string, bool)) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "("):
			name, rest, closed := strings.Cut(after[1:], ")")
			if !closed {
				b.WriteString("$(")
				text = after[1:]
				continue
			}
			if v, ok := value(name); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			text = rest
		default:
			b.WriteByte('$')
			text = after
		}
	}
}
