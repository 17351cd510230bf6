package cel

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// conversion is the function that makes strings, which stock Envoy has not. Where its result is all that is asked for, none is needed.
const conversion = "string"

// attributes are what Envoy has at the beginning of a path, and the names of types.
var attributes = []string{
	"request", "response", "source", "destination", "connection", "upstream", "metadata", "filter_state", "upstream_filter_state", "xds",
	"bool", "bytes", "double", "int", "uint", "string", "list", "map", "null_type", "type",
}

// Invalid is the error of an expression that no control plane can use, as opposed to one that stock Envoy cannot evaluate.
type Invalid struct{ err error }

// Error returns what is wrong.
func (e *Invalid) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *Invalid) Unwrap() error { return e.err }

// Format returns a format of access logs of at most limit bytes for each part of the value, which has the value of an expression as a
// text. Conversions to strings and concatenations are done by the format where the result has them, also in both results of a
// condition. An error is an *Invalid, or says what stock Envoy cannot evaluate.
func Format(text string, limit int) (string, error) {
	parsed, err := parse(text)
	if err != nil {
		return "", &Invalid{err}
	}
	f := formatter{limit: limit, info: parsed.SourceInfo()}
	if err := f.add(parsed.Expr()); err != nil {
		return "", err
	}
	return f.out.String(), nil
}

type formatter struct {
	limit int
	info  *ast.SourceInfo
	out   strings.Builder
}

// add adds the value of an expression to the format.
func (f *formatter) add(e ast.Expr) error {
	if text, ok := literal(e); ok {
		for _, c := range text {
			if c < ' ' || c == 0x7f {
				return fmt.Errorf("has a control character in %q", text)
			}
		}
		f.out.WriteString(strings.ReplaceAll(text, "%", "%%"))
		return nil
	}
	if e.Kind() == ast.CallKind {
		switch call := e.AsCall(); {
		case converts(call):
			return f.add(call.Args()[0])
		case call.FunctionName() == operators.Add && (isText(call.Args()[0]) || isText(call.Args()[1])):
			if err := f.add(call.Args()[0]); err != nil {
				return err
			}
			return f.add(call.Args()[1])
		}
	}
	value, err := f.value(e)
	if err != nil {
		return err
	}
	fmt.Fprintf(&f.out, "%%CEL(%s):%d%%", value, f.limit)
	return nil
}

// value returns an expression whose value, as a text, is that of another one.
func (f *formatter) value(e ast.Expr) (string, error) {
	if e.Kind() == ast.CallKind {
		call := e.AsCall()
		switch args := call.Args(); {
		case converts(call):
			return f.value(args[0])
		case call.FunctionName() == operators.Conditional:
			condition, err := f.term(args[0])
			if err != nil {
				return "", err
			}
			yes, err := f.value(args[1])
			if err != nil {
				return "", err
			}
			no, err := f.value(args[2])
			if err != nil {
				return "", err
			}
			return "(" + condition + ") ? (" + yes + ") : (" + no + ")", nil
		case call.FunctionName() == operators.Add && (isText(args[0]) || isText(args[1])):
			return "", fmt.Errorf("joins strings in a condition, which Envoy does not")
		}
	}
	return f.term(e)
}

// term returns an expression as it is, if Envoy can evaluate it, in one line and without what would end a command of a format.
func (f *formatter) term(e ast.Expr) (string, error) {
	if err := checkTerm(e); err != nil {
		return "", err
	}
	if err := checkNames(e); err != nil {
		return "", err
	}
	text, err := parser.Unparse(e, f.info)
	if err != nil {
		return "", &Invalid{fmt.Errorf("write expression: %w", err)}
	}
	var out strings.Builder
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted && i+1 < len(text):
			out.WriteString(text[i : i+2])
			i++
		case c == '"':
			quoted = !quoted
			out.WriteByte(c)
		case c == '%' && quoted:
			out.WriteString(`\x25`)
		case c == '\n':
			out.WriteByte(' ')
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), nil
}

// checkNames reports a path that begins with what Envoy does not have.
func checkNames(e ast.Expr) (err error) {
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.IdentKind || err != nil {
			return
		}
		name := e.AsIdent()
		for _, known := range attributes {
			if name == known {
				return
			}
		}
		err = fmt.Errorf("names %q, which Envoy does not have: want one of %s", name, strings.Join(attributes[:10], ", "))
		if name == "node" {
			err = fmt.Errorf("names %q, which Envoy has as xds.node", name)
		}
	}))
	return err
}

// literal returns the text of a constant, unless it is one of bytes.
func literal(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().ConvertToType(types.StringType).(types.String)
	_, isBytes := e.AsLiteral().(types.Bytes)
	return string(text), ok && !isBytes
}

func converts(call ast.CallExpr) bool {
	return call.FunctionName() == conversion && !call.IsMemberFunction() && len(call.Args()) == 1
}

// isText reports whether the value of an expression is certainly a string.
func isText(e ast.Expr) bool {
	switch e.Kind() {
	case ast.LiteralKind:
		_, ok := e.AsLiteral().(types.String)
		return ok
	case ast.CallKind:
		call := e.AsCall()
		return converts(call) || call.FunctionName() == operators.Add && (isText(call.Args()[0]) || isText(call.Args()[1]))
	}
	return false
}
