// Package cel checks expressions of the Common Expression Language, and translates them for stock Envoy.
//
// It knows what Envoy 1.40 evaluates, and translates what Istio's own Envoy does to formats of access logs. [control-plane 1.11.2, 1.11.3]
package cel

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// MaxLength is the longest expression that is accepted, in bytes.
const MaxLength = 8192

// maxNesting bounds how deep an expression is nested.
const maxNesting = 64

// celOperators are the operators that Envoy evaluates.
var celOperators = []string{
	operators.Conditional, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Equals, operators.NotEquals, operators.Less,
	operators.LessEquals, operators.Greater, operators.GreaterEquals, operators.Add, operators.Subtract, operators.Multiply, operators.Divide,
	operators.Modulo, operators.Negate, operators.Index, operators.In,
}

// celFunction says how a function may be called.
type celFunction struct {
	// args is the number of arguments, with the receiver.
	args int
	// method and plain are set if it may be called with a receiver, as in a.f(b), and without, as in f(a, b).
	method, plain bool
}

// celFunctions are the functions that Envoy has in a filter of access logs; it refuses a listener with another. Envoy is built without
// the conversion to strings and without functions that make new strings. [control-plane 1.11.3]
var celFunctions = func() map[string]celFunction {
	out := map[string]celFunction{
		"size": {1, true, true}, "contains": {2, true, true}, "startsWith": {2, true, true}, "endsWith": {2, true, true}, "matches": {2, true, true},
		"bool": {1, false, true}, "bytes": {1, false, true}, "double": {1, false, true}, "int": {1, false, true}, "uint": {1, false, true},
		"duration": {1, false, true}, "timestamp": {1, false, true}, "type": {1, false, true}, "dyn": {1, false, true},
	}
	for _, name := range []string{"FullYear", "Month", "DayOfYear", "DayOfMonth", "Date", "DayOfWeek", "Hours", "Minutes", "Seconds", "Milliseconds"} {
		out["get"+name] = celFunction{1, true, false}
	}
	return out
}()

var celParser = func() *parser.Parser {
	p, err := parser.NewParser(parser.Macros(parser.HasMacro), parser.MaxRecursionDepth(maxNesting), parser.ErrorRecoveryLimit(1), parser.ErrorReportingLimit(1))
	if err != nil {
		panic("cel: make a parser of expressions: " + err.Error())
	}
	return p
}()

// Check reports what Envoy would refuse a filter of access logs for.
func Check(text string) error {
	parsed, err := parse(text)
	if err != nil {
		return err
	}
	return checkTerm(parsed.Expr())
}

// parse returns an expression; an error says what is wrong with its syntax.
func parse(text string) (*ast.AST, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, errors.New("is empty: want an expression such as response.code >= 400")
	case len(text) > MaxLength:
		return nil, fmt.Errorf("has %d bytes: want at most %d", len(text), MaxLength)
	}
	parsed, errs := celParser.Parse(common.NewTextSource(text))
	if list := errs.GetErrors(); len(list) > 0 {
		return nil, fmt.Errorf("invalid expression: character %d: %s", list[0].Location.Column()+1, strings.Join(strings.Fields(list[0].Message), " "))
	}
	return parsed, nil
}

// checkTerm checks a part of an expression.
func checkTerm(e ast.Expr) error {
	var parts []ast.Expr
	switch e.Kind() {
	case ast.CallKind:
		call := e.AsCall()
		parts = slices.Clone(call.Args())
		if call.IsMemberFunction() {
			parts = append([]ast.Expr{call.Target()}, parts...)
		}
		if err := checkCall(call, parts); err != nil {
			return err
		}
	case ast.SelectKind:
		parts = []ast.Expr{e.AsSelect().Operand()}
	case ast.ListKind:
		parts = e.AsList().Elements()
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			parts = append(parts, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		return fmt.Errorf("makes a message %s, which Envoy does not: compare its fields instead", e.AsStruct().TypeName())
	case ast.ComprehensionKind:
		return errors.New("goes through a list, which Envoy does not")
	case ast.LiteralKind, ast.IdentKind, ast.UnspecifiedExprKind:
	}
	for _, p := range parts {
		if err := checkTerm(p); err != nil {
			return err
		}
	}
	return nil
}

// checkCall checks a call, and that a regular expression that is written in it is one.
func checkCall(call ast.CallExpr, args []ast.Expr) error {
	name := call.FunctionName()
	if slices.Contains(celOperators, name) {
		return nil
	}
	f, known := celFunctions[name]
	if !known || call.IsMemberFunction() && !f.method || !call.IsMemberFunction() && !f.plain {
		return fmt.Errorf("calls %q, which Envoy does not have: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(celFunctions)), ", "))
	}
	if len(args) != f.args {
		return fmt.Errorf("calls %q with %d arguments: want %d, the receiver included", name, len(args), f.args)
	}
	if name == "matches" && args[1].Kind() == ast.LiteralKind {
		text, _ := args[1].AsLiteral().(types.String)
		if _, err := regexp.Compile(string(text)); err != nil {
			return fmt.Errorf("calls \"matches\" with an invalid regular expression: %w", err)
		}
	}
	return nil
}
