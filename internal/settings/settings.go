// Package settings declares every flag and environment variable of the three programs, with its default, in one table per command.
//
// Help texts, man pages and docs/settings.md are written from the tables, and [Values] reads
// what was given by them. The tables: log.go and agent.go (pilot-agent), iptables.go (pilot-agent
// istio-iptables), discovery.go, discovery_istio.go and pilotctl.go.
//
// A flag on the command line has priority, even if its value is empty; then the first of its variables
// that is set and not empty; then the default. Tables are constant data; each program links its own only.
package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the form of a setting's value.
type Kind int

// The kinds. There is no zero kind, so that a row without one is found.
const (
	// Text is any text.
	Text Kind = iota + 1
	// Bool is true or false, in each spelling that strconv.ParseBool takes.
	Bool
	// Int is a decimal number, from Min to Max.
	Int
	// Port is a port number, 1–65535.
	Port
	// Duration is a Go duration that is not negative, or above zero with Positive.
	Duration
	// Ratio is a number from 0 to 1, such as 0.5.
	Ratio
	// Float is a number from Min to Max, such as 1.5.
	Float
	// List is a list with commas in between. Its flag may be given several times.
	List
	// Enum is one of Values.
	Enum
	// Lines is a list of texts that may have commas: each time that its flag is given it gets one more.
	Lines
)

// Setting is one row: a flag, with or without environment variables, or environment variables alone.
type Setting struct {
	// Flag and Short are the names of the flag, without dashes; empty if there are only variables.
	Flag, Short string
	// Env are the environment variables; the first that is set and not empty counts. A name
	// that ends in * stands for all variables that begin so; see [Values.Prefixed].
	Env  []string
	Kind Kind
	// Default is what counts if nothing is given, in the notation of the flag. Number is the default
	// of an Int, a Port or (in nanoseconds) a Duration that other packages have as a constant; it
	// is used if Default is empty.
	// Both empty: empty text, false, 0, or, for an enum, its empty value.
	Default string
	Number  int64
	// Otherwise says in words where the default comes from, if it is not a constant; see [Values.TextOr].
	Otherwise string
	// Values are those of an Enum. An empty one means that the setting may be empty.
	Values []string
	// AnyCase takes the values of an Enum in any case.
	AnyCase bool
	// Min and Max bound an Int or a Float; Max 0 means no bound.
	Min, Max int64
	// Positive rejects a Duration of 0.
	Positive bool
	// Unit is what the value is, for the documentation: port, file, list of CIDRs.
	Unit string
	// Help is what the setting does, in one line; the flag's argument is between backquotes.
	Help string
	// Used is the package or file that acts on the value.
	Used string
	// NoEffect says why a setting that is accepted does nothing; empty for all others.
	NoEffect string
	// Required rejects an empty value: the flag must be set if there is no default.
	Required bool
	// PrintedAs is the name in the configuration that istio-iptables prints; empty if it is not printed.
	PrintedAs string
	// Once says that the setting is only for the command itself: --watchCapture has no use for it.
	Once bool
}

// Table is the settings of one command, in the order of its help.
type Table []Setting

// Values are the values of the Enum with the given name; nil if there is none.
func (t Table) Values(name string) []string {
	for i := range t {
		if t[i].Name() == name {
			return t[i].Values
		}
	}
	return nil
}

// Name is the name by which code reads the setting: its flag, or its first variable if it has none.
func (s *Setting) Name() string {
	if s.Flag != "" {
		return s.Flag
	}
	return s.Env[0]
}

// DefaultText is the default in the notation of the flag: false and 0 are spelled out.
func (s *Setting) DefaultText() string {
	switch {
	case s.Default != "" || s.Otherwise != "":
		return s.Default
	case s.Kind == Bool:
		return "false"
	case s.Kind == Port && s.Number == 0, s.Kind == Int && s.Number < s.Min: // no default
		return ""
	case s.Kind == Int, s.Kind == Port:
		return strconv.FormatInt(s.Number, 10)
	case s.Kind == Duration:
		return shortDuration(time.Duration(s.Number))
	case s.Kind == Ratio, s.Kind == Float:
		return "0"
	}
	return ""
}

// Usage is Help with what else a person must know: the values, the variables, the default in words.
func (s *Setting) Usage() string {
	usage := s.Help
	if values := s.choices(); values != "" {
		usage += ": " + values
	}
	if s.Required && s.Default == "" {
		usage += " (required)"
	}
	if s.Otherwise != "" {
		usage += " (default " + s.Otherwise + ")"
	}
	if s.NoEffect != "" {
		usage += " (no effect: " + s.NoEffect + ")"
	}
	if s.Flag != "" && len(s.Env) > 0 {
		usage += " [$" + strings.Join(s.Env, ", $") + "]"
	}
	return usage
}

// choices are the values of an enum in words, without the empty one.
func (s *Setting) choices() string {
	return join(slices.DeleteFunc(slices.Clone(s.Values), func(v string) bool { return v == "" }))
}

// Canonical returns a value in its usual spelling, such as true for 1. The error says what is invalid
// and what is wanted, but not where it was given.
func (s *Setting) Canonical(text string) (string, error) {
	v, err := s.parse(text)
	return v.text, err
}

// value is a parsed value; which field counts follows from the kind.
type value struct {
	text     string
	bool     bool
	number   int64
	duration time.Duration
	float    float64
}

// parse reads a value in the notation of the flag.
func (s *Setting) parse(text string) (value, error) {
	v := value{text: text}
	var err error
	switch s.Kind {
	case Text, List, Lines:
	case Bool:
		if v.bool, err = strconv.ParseBool(text); err != nil {
			return v, fmt.Errorf("invalid value %q: want true or false", text)
		}
		v.text = strconv.FormatBool(v.bool)
	case Int:
		v.number, err = strconv.ParseInt(text, 10, 64)
		if err != nil || v.number < s.Min || s.Max > 0 && v.number > s.Max {
			return v, fmt.Errorf("invalid number %q: want %s", text, s.bounds())
		}
		v.text = strconv.FormatInt(v.number, 10)
	case Port:
		v.number, err = strconv.ParseInt(text, 10, 32)
		if err != nil || v.number < 1 || v.number > 65535 {
			return v, fmt.Errorf("invalid port %q: want 1–65535", text)
		}
		v.text = strconv.FormatInt(v.number, 10)
	case Duration:
		v.duration, err = time.ParseDuration(text)
		switch {
		case s.Positive && (err != nil || v.duration <= 0):
			return v, fmt.Errorf("invalid duration %q: want a duration above 0, such as 5s or 24h", text)
		case err != nil || v.duration < 0:
			return v, fmt.Errorf("invalid duration %q: want a duration such as 5s or 24h", text)
		}
	case Ratio:
		// NaN is not within these bounds either.
		if v.float, err = strconv.ParseFloat(text, 64); err != nil || !(v.float >= 0 && v.float <= 1) {
			return v, fmt.Errorf("invalid number %q: want a number from 0 to 1", text)
		}
	case Float:
		if v.float, err = strconv.ParseFloat(text, 64); err != nil || !(v.float >= float64(s.Min) && (s.Max == 0 || v.float <= float64(s.Max))) {
			return v, fmt.Errorf("invalid number %q: want %s", text, s.bounds())
		}
	case Enum:
		for _, known := range s.Values {
			if text == known || s.AnyCase && strings.EqualFold(text, known) {
				v.text = known
				return v, nil
			}
		}
		return v, fmt.Errorf("invalid value %q: want %s", text, s.choices())
	default:
		panic(fmt.Sprintf("setting %s: unknown kind %d", s.Name(), s.Kind))
	}
	return v, nil
}

// bounds says which numbers an Int or a Float takes.
func (s *Setting) bounds() string {
	if s.Max > 0 {
		return fmt.Sprintf("%d–%d", s.Min, s.Max)
	}
	return fmt.Sprintf("%d or more", s.Min)
}

// join lists words: "a, b or c".
func join(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// shortDuration writes a duration as a person does: 12h, not 12h0m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}
