package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Values reads the settings of tables from a command line and an environment. Its getters take a
// setting's name (see [Setting.Name]) and return the default if no value or an invalid one was given.
// [Values.Err] returns the first error. Getters panic for a name that no table has, and for a setting of
// another kind. A Values is not safe for concurrent use.
type Values struct {
	tables  []Table
	flags   map[string]string
	env     map[string]string
	beneath map[string]string
	err     error
	read    map[string]bool
}

// Read makes the values of tables. Flags are those that were given, by name and without dashes, in
// the notation of the flag; both maps may be nil and are not changed.
func Read(flags, env map[string]string, tables ...Table) *Values {
	return &Values{tables: tables, flags: flags, env: env, read: map[string]bool{}}
}

// WithEnvBeneath returns values that read env for variables that the environment does not have at
// all. The result takes over the errors of v and which settings were read.
func (v *Values) WithEnvBeneath(env map[string]string) *Values {
	out := *v
	out.beneath = env
	return &out
}

// Err is the first error: it names the flag or variable, and what it wants.
func (v *Values) Err() error { return v.err }

// Fail records an error that only the reader of a setting can find, as "want …", unless there already is
// one.
func (v *Values) Fail(name, format string, args ...any) {
	_, _, source := v.given(v.find(name))
	if source == "" {
		source = "default of " + name
	}
	v.fail(source, fmt.Errorf(format, args...))
}

// Require records that a flag must be given, and what it wants, unless there already is an error.
func (v *Values) Require(name, want string) {
	v.fail("flag --"+v.find(name).Flag, fmt.Errorf("required: want %s", want))
}

func (v *Values) fail(source string, err error) {
	if v.err == nil {
		v.err = fmt.Errorf("%s: %w", source, err)
	}
}

// Given reports whether a flag or variable gives the setting, and which: "flag --x" or "environment X".
func (v *Values) Given(name string) (source string, ok bool) {
	_, ok, source = v.given(v.find(name))
	return source, ok
}

// Unread lists the names of the settings that no getter has read, but for those without effect.
func (v *Values) Unread() []string {
	var out []string
	for _, t := range v.tables {
		for i := range t {
			if name := t[i].Name(); !v.read[name] && t[i].NoEffect == "" {
				out = append(out, name)
			}
		}
	}
	return out
}

// WithoutEffect lists what was given and does nothing, in sentences. What is given as the default is
// left out: nothing else would happen if it had an effect.
func (v *Values) WithoutEffect() []string {
	var out []string
	for _, t := range v.tables {
		for i := range t {
			s := &t[i]
			if s.NoEffect == "" {
				continue
			}
			text, ok, source := v.given(s)
			if usual, err := s.Canonical(text); err == nil {
				text = usual
			}
			if ok && text != s.DefaultText() {
				out = append(out, source+" has no effect: "+s.NoEffect)
			}
		}
	}
	return out
}

// Unknown lists, sorted, the variables that begin with prefix, are not empty, and are in no table.
// Variables that Kubernetes sets in each Pod for a Service, such as WEB_SERVICE_HOST, are left out.
func (v *Values) Unknown(prefix string) []string {
	known := map[string]bool{}
	for _, t := range v.tables {
		for i := range t {
			for _, name := range t[i].Env {
				known[name] = true
			}
		}
	}
	var out []string
	for name, text := range v.env {
		if strings.HasPrefix(name, prefix) && text != "" && !known[name] && !ofService.MatchString(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// ofService matches the variables that Kubernetes sets for a Service.
var ofService = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`)

// find returns the row of a name.
func (v *Values) find(name string) *Setting {
	for _, t := range v.tables {
		for i := range t {
			if t[i].Name() == name {
				return &t[i]
			}
		}
	}
	panic("settings: unknown setting " + name)
}

// variable returns a variable's value; empty means not set.
func (v *Values) variable(name string) string {
	if value, ok := v.env[name]; ok {
		return value
	}
	return v.beneath[name]
}

// given returns the text that a flag or variable gives.
func (v *Values) given(s *Setting) (text string, ok bool, source string) {
	if s.Flag != "" {
		if text, ok = v.flags[s.Flag]; ok {
			return text, true, "flag --" + s.Flag
		}
	}
	for _, name := range s.Env {
		if text = v.variable(name); text != "" {
			return text, true, "environment " + name
		}
	}
	return "", false, ""
}

// get parses what counts for a setting of one of kinds.
func (v *Values) get(name string, kinds ...Kind) value {
	s := v.find(name)
	if !slices.Contains(kinds, s.Kind) {
		panic(fmt.Sprintf("settings: %s has kind %d, not one of %v", name, s.Kind, kinds))
	}
	v.read[name] = true
	return v.current(s)
}

// current parses what counts for a setting.
func (v *Values) current(s *Setting) value {
	text, ok, source := v.given(s)
	if s.Required && text == "" && (ok || s.Default == "") {
		v.fail("flag --"+s.Flag, fmt.Errorf("required: %s", strings.ReplaceAll(s.Help, "`", "")))
		return value{}
	}
	if ok {
		out, err := s.parse(text)
		if err == nil {
			return out
		}
		v.fail(source, err)
	}
	text = s.DefaultText()
	if text == "" && s.Kind != Enum {
		return value{}
	}
	out, err := s.parse(text)
	if err != nil {
		panic(fmt.Sprintf("settings: default of %s: %v", s.Name(), err))
	}
	return out
}

// Text returns a Text.
func (v *Values) Text(name string) string { return v.get(name, Text).text }

// Enum returns an Enum in the spelling of the table.
func (v *Values) Enum(name string) string { return v.get(name, Enum).text }

// Bool returns a Bool.
func (v *Values) Bool(name string) bool { return v.get(name, Bool).bool }

// Int returns an Int or a Port; 0 for a Port without a default.
func (v *Values) Int(name string) int { return int(v.get(name, Int, Port).number) }

// Port returns a Port as text; empty for one without a default.
func (v *Values) Port(name string) string { return v.get(name, Port).text }

// Duration returns a Duration.
func (v *Values) Duration(name string) time.Duration { return v.get(name, Duration).duration }

// Float returns a Ratio or a Float.
func (v *Values) Float(name string) float64 { return v.get(name, Ratio, Float).float }

// TextOr returns a Text whose default is not a constant (see [Setting.Otherwise]).
func (v *Values) TextOr(name, otherwise string) string {
	if v.otherwise(name) {
		return otherwise
	}
	return v.Text(name)
}

// BoolOr returns a Bool whose default is not a constant.
func (v *Values) BoolOr(name string, otherwise bool) bool {
	if v.otherwise(name) {
		return otherwise
	}
	return v.Bool(name)
}

// DurationOr returns a Duration whose default is not a constant.
func (v *Values) DurationOr(name string, otherwise time.Duration) time.Duration {
	if v.otherwise(name) {
		return otherwise
	}
	return v.Duration(name)
}

// otherwise reports whether the default counts, which must not be a constant.
func (v *Values) otherwise(name string) bool {
	s := v.find(name)
	if s.Otherwise == "" {
		panic("settings: " + name + " has a constant default")
	}
	v.read[name] = true
	_, ok, _ := v.given(s)
	return !ok
}

// List returns the elements of a List, without spaces around them and without empty ones.
func (v *Values) List(name string) []string {
	var out []string
	for part := range strings.SplitSeq(v.get(name, List).text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// Lines returns the elements of Lines, without empty ones.
func (v *Values) Lines(name string) []string {
	var out []string
	for line := range strings.SplitSeq(v.get(name, Lines).text, "\n") {
		if line != "" {
			out = append(out, line)
		}
	}
	return out
}

// Printed returns the value of a setting of any kind in the notation of the flag. That does not count
// as reading it: printing has no effect.
func (v *Values) Printed(name string) string { return v.current(v.find(name)).text }

// Prefixed returns the variables that begin with name, which ends in *, by what follows it: with
// XDS_HEADER_*, XDS_HEADER_A=b is A: b. A variable that is only the prefix does not count; an empty one does.
func (v *Values) Prefixed(name string) map[string]string {
	if !v.find(name).isPrefix() {
		panic(fmt.Sprintf("settings: invalid prefix %q: want a name that ends in *", name))
	}
	v.read[name] = true
	prefix, out := strings.TrimSuffix(name, "*"), map[string]string{}
	for _, env := range []map[string]string{v.beneath, v.env} {
		for variable, value := range env {
			key, ok := strings.CutPrefix(variable, prefix)
			if ok && key != "" {
				out[key] = value
			}
		}
	}
	return out
}

// isPrefix reports whether the row stands for all variables that begin with a name.
func (s *Setting) isPrefix() bool { return s.Flag == "" && strings.HasSuffix(s.Env[0], "*") }
