package settings

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// sample has a row of each kind.
var sample = Table{
	{Flag: "text", Short: "t", Env: []string{"TEXT", "OLD_TEXT"}, Kind: Text, Default: "a"},
	{Flag: "bool", Env: []string{"BOOL"}, Kind: Bool},
	{Flag: "int", Env: []string{"INT"}, Kind: Int, Number: 3, Min: 1, Max: 9},
	{Flag: "port", Env: []string{"PORT"}, Kind: Port},
	{Flag: "duration", Env: []string{"DURATION"}, Kind: Duration, Number: int64(12 * time.Hour)},
	{Flag: "positive", Env: []string{"POSITIVE"}, Kind: Duration, Default: "5s", Positive: true},
	{Flag: "ratio", Env: []string{"RATIO"}, Kind: Ratio, Default: "0.5"},
	{Flag: "float", Env: []string{"FLOAT"}, Kind: Float, Max: 8},
	{Flag: "list", Env: []string{"LIST"}, Kind: List, Default: "x"},
	{Flag: "enum", Env: []string{"ENUM"}, Kind: Enum, Default: "one", Values: []string{"one", "two"}},
	{Flag: "maybe", Env: []string{"MAYBE"}, Kind: Enum, Values: []string{"", "YES"}, AnyCase: true},
	{Flag: "must", Kind: Text, Required: true, Help: "a `name`"},
	{Flag: "computed", Env: []string{"COMPUTED"}, Kind: Duration, Otherwise: "twice the other"},
	{Flag: "gone", Env: []string{"GONE"}, Kind: Text, Default: "usual", NoEffect: "there is no such part"},
	{Env: []string{"HEADER_*"}, Kind: Text},
}

func TestFlagThenVariableThenDefault(t *testing.T) {
	for _, tt := range []struct {
		name       string
		flags, env map[string]string
		want       string
	}{
		{"nothing", nil, nil, "a"},
		{"variable", nil, map[string]string{"TEXT": "v"}, "v"},
		{"second variable", nil, map[string]string{"OLD_TEXT": "o"}, "o"},
		{"first variable first", nil, map[string]string{"OLD_TEXT": "o", "TEXT": "v"}, "v"},
		{"an empty variable is not set", nil, map[string]string{"TEXT": "", "OLD_TEXT": "o"}, "o"},
		{"flag", map[string]string{"text": "f"}, map[string]string{"TEXT": "v"}, "f"},
		{"an empty flag counts", map[string]string{"text": ""}, map[string]string{"TEXT": "v"}, ""},
	} {
		v := Read(tt.flags, tt.env, sample)
		if got := v.Text("text"); got != tt.want || v.Err() != nil {
			t.Errorf("%s: %q (%v), want %q", tt.name, got, v.Err(), tt.want)
		}
	}
}

// A flag that is given as empty silences its variables for every setting of every table: the value
// is empty, or an error names the flag.
func TestEmptyFlagOverridesItsVariables(t *testing.T) {
	for _, c := range Commands() {
		for _, table := range c.Tables {
			for i := range table {
				s := &table[i]
				if s.Flag == "" || len(s.Env) == 0 {
					continue
				}
				env := map[string]string{}
				for _, name := range s.Env {
					env[name] = "7s" // whatever it is, it must not be looked at
				}
				v := Read(map[string]string{s.Flag: ""}, env, table)
				got := v.Printed(s.Name())
				if err := v.Err(); got == "7s" || err != nil && !strings.HasPrefix(err.Error(), "flag --"+s.Flag+": ") {
					t.Errorf("%s --%s: %q, %v", c.Path, s.Flag, got, err)
				}
			}
		}
	}
}

func TestGetters(t *testing.T) {
	v := Read(map[string]string{"must": "m"}, map[string]string{
		"BOOL": "T", "INT": "4", "PORT": "80", "DURATION": "3m", "RATIO": "0.25", "FLOAT": "1.5", "LIST": " b, ,c", "ENUM": "two", "MAYBE": "yes",
		"HEADER_A": "1", "HEADER_B": "", "HEADER_": "x",
	}, sample)
	if !v.Bool("bool") || v.Int("int") != 4 || v.Port("port") != "80" || v.Duration("duration") != 3*time.Minute || v.Float("ratio") != 0.25 || v.Float("float") != 1.5 {
		t.Error("a value is wrong")
	}
	if got := v.List("list"); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("list %q", got)
	}
	if v.Enum("enum") != "two" || v.Enum("maybe") != "YES" || v.Text("must") != "m" {
		t.Error("an enum is wrong")
	}
	if got := v.Prefixed("HEADER_*"); len(got) != 2 || got["A"] != "1" {
		t.Errorf("prefixed %v", got)
	}
	if got := v.DurationOr("computed", time.Hour); got != time.Hour {
		t.Errorf("computed %s", got)
	}
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if got := v.Unread(); !slices.Equal(got, []string{"text", "positive"}) {
		t.Errorf("unread %q", got)
	}
	if got := v.Printed("bool"); got != "true" {
		t.Errorf("printed %q", got)
	}
}

func TestDefaults(t *testing.T) {
	v := Read(map[string]string{"must": "m"}, nil, sample)
	if v.Bool("bool") || v.Int("int") != 3 || v.Int("port") != 0 || v.Duration("duration") != 12*time.Hour || v.Duration("positive") != 5*time.Second || v.Enum("maybe") != "" {
		t.Error("a default is wrong")
	}
	if got := v.Printed("duration"); got != "12h" {
		t.Errorf("printed %q, want 12h", got)
	}
	if err := v.Err(); err != nil {
		t.Error(err)
	}
}

func TestErrorsNameTheSourceAndWhatItWants(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"bool", "so", `invalid value "so": want true or false`},
		{"int", "0", `invalid number "0": want 1–9`},
		{"int", "10", `invalid number "10": want 1–9`},
		{"port", "70000", `invalid port "70000": want 1–65535`},
		{"port", "0", `invalid port "0": want 1–65535`},
		{"duration", "-1s", `invalid duration "-1s": want a duration such as 5s or 24h`},
		{"positive", "0s", `invalid duration "0s": want a duration above 0, such as 5s or 24h`},
		{"ratio", "NaN", `invalid number "NaN": want a number from 0 to 1`},
		{"ratio", "1.1", `invalid number "1.1": want a number from 0 to 1`},
		{"float", "9", `invalid number "9": want 0–8`},
		{"enum", "three", `invalid value "three": want one or two`},
		{"enum", "ONE", `invalid value "ONE": want one or two`},
	} {
		for source, v := range map[string]*Values{
			"flag --" + tt.name:                       Read(map[string]string{tt.name: tt.value}, nil, sample),
			"environment " + strings.ToUpper(tt.name): Read(nil, map[string]string{strings.ToUpper(tt.name): tt.value}, sample),
		} {
			s := v.find(tt.name)
			v.get(tt.name, s.Kind)
			v.Bool("bool") // a later value does not hide the error
			if err := v.Err(); err == nil || err.Error() != source+": "+tt.want {
				t.Errorf("%v, want %s: %s", err, source, tt.want)
			}
		}
	}
	v := Read(nil, nil, sample)
	v.Text("must")
	if err := v.Err(); err == nil || err.Error() != "flag --must: required: a name" {
		t.Errorf("required: %v", err)
	}
	v = Read(map[string]string{"some": ""}, nil, Table{{Flag: "some", Kind: Text, Default: "a", Required: true, Help: "a `name`"}})
	v.Text("some")
	if err := v.Err(); err == nil || err.Error() != "flag --some: required: a name" {
		t.Errorf("empty: %v", err)
	}
	v = Read(nil, map[string]string{"TEXT": "x"}, sample)
	v.Fail("text", "invalid host %q: want a name", "x")
	if err := v.Err(); err == nil || err.Error() != `environment TEXT: invalid host "x": want a name` {
		t.Errorf("reader's own: %v", err)
	}
}

func TestProgrammingErrorsPanic(t *testing.T) {
	for name, read := range map[string]func(*Values){
		"an unknown name":                 func(v *Values) { v.Text("nothing") },
		"another kind":                    func(v *Values) { v.Bool("text") },
		"a fallback where there is a row": func(v *Values) { v.TextOr("text", "") },
		"no prefix":                       func(v *Values) { v.Prefixed("text") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			read(Read(nil, nil, sample))
		}()
	}
}

func TestSettingsWithoutEffectAreReported(t *testing.T) {
	for _, tt := range []struct {
		flags, env map[string]string
		want       string
	}{
		{nil, nil, ""},
		{nil, map[string]string{"GONE": "usual"}, ""},
		{nil, map[string]string{"GONE": "x"}, "environment GONE has no effect: there is no such part"},
		{map[string]string{"gone": "x"}, nil, "flag --gone has no effect: there is no such part"},
	} {
		if got := strings.Join(Read(tt.flags, tt.env, sample).WithoutEffect(), "; "); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestUnknownVariablesAreListed(t *testing.T) {
	env := map[string]string{
		"GONE": "x", "GO": "x", "GONE_B": "x", "GONE_A": "x", "GONE_EMPTY": "", "OTHER": "x",
		"GONE_SERVICE_HOST": "x", "GONE_SERVICE_PORT": "x", "GONE_SERVICE_PORT_HTTP_WEB": "x",
		"GONE_PORT": "x", "GONE_PORT_80_TCP": "x", "GONE_PORT_80_TCP_ADDR": "x", "GONE_PORT_80_UDP_PROTO": "x",
	}
	if got, want := Read(nil, env, sample).Unknown("GONE"), []string{"GONE_A", "GONE_B"}; !slices.Equal(got, want) {
		t.Errorf("unknown %q, want %q", got, want)
	}
}

// Another spelling of the default is the default.
func TestTheDefaultInAnotherSpellingIsNotTold(t *testing.T) {
	table := Table{{Env: []string{"SWITCH"}, Kind: Bool, Default: "true", NoEffect: "it is always on"}}
	for text, want := range map[string]int{"1": 0, "TRUE": 0, "true": 0, "false": 1, "0": 1, "perhaps": 1} {
		if got := Read(nil, map[string]string{"SWITCH": text}, table).WithoutEffect(); len(got) != want {
			t.Errorf("%s: %q, want %d lines", text, got, want)
		}
	}
}

func TestVariablesBeneathTheEnvironment(t *testing.T) {
	v := Read(nil, map[string]string{"TEXT": "", "HEADER_A": "env"}, sample).
		WithEnvBeneath(map[string]string{"TEXT": "below", "INT": "5", "HEADER_A": "below", "HEADER_B": "below"})
	if got := v.Text("text"); got != "a" {
		t.Errorf("text %q: the environment has the variable, if empty", got)
	}
	if got := v.Prefixed("HEADER_*"); v.Int("int") != 5 || got["A"] != "env" || got["B"] != "below" {
		t.Errorf("int %d, headers %v", v.Int("int"), got)
	}
}
