// Package finding has what a check finds: a result, what was found, and what to do about it.
//
// A check is a pure function from facts to a [Finding]. A fact that could not be found out is a [Known] with an error,
// and never becomes a success. Nothing here asks anybody or reads a clock.
package finding

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Result is what a check has found.
type Result int

// The results, from the best.
const (
	OK Result = iota
	// Warning is something that works and deserves attention.
	Warning
	// Unknown is something that could not be found out.
	Unknown
	Failed
)

var results = map[Result][2]string{OK: {"ok", "✓"}, Warning: {"warning", "!"}, Unknown: {"unknown", "?"}, Failed: {"failed", "✗"}}

// String is the result in a word.
func (r Result) String() string { return results[r][0] }

// Mark is the result as one character.
func (r Result) Mark() string { return results[r][1] }

// MarshalJSON implements json.Marshaler.
func (r Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// Finding is what a check has found. Remedy is what to do about it, and empty if that is nothing.
type Finding struct {
	Result Result `json:"result"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

// Row is a check with its finding. Name is what is checked, Why why it matters.
type Row struct {
	Name string `json:"name"`
	Why  string `json:"why"`
	Finding
}

// Pass is a success.
func Pass(format string, args ...any) Finding { return Finding{OK, fmt.Sprintf(format, args...), ""} }

// Warn is a warning.
func Warn(remedy, format string, args ...any) Finding {
	return Finding{Warning, fmt.Sprintf(format, args...), remedy}
}

// Fail is a failure.
func Fail(remedy, format string, args ...any) Finding {
	return Finding{Failed, fmt.Sprintf(format, args...), remedy}
}

// NotKnown is the finding about a fact that is not known; why says why.
func NotKnown(remedy, why string) Finding { return Finding{Unknown, "not known: " + why, remedy} }

// Passed reports whether all rows are successes or warnings.
func Passed(rows []Row) bool {
	return !slices.ContainsFunc(rows, func(r Row) bool { return r.Result >= Unknown })
}

// Worst is the first of the worst findings, with how many others are as bad.
func Worst(all []Finding) Finding {
	var out Finding
	same := 0
	for i, f := range all {
		switch {
		case i == 0 || f.Result > out.Result:
			out, same = f, 0
		case f.Result == out.Result:
			same++
		}
	}
	if out.Result != OK && same > 0 {
		out.Found += fmt.Sprintf(" (and %d more)", same)
	}
	return out
}

// Known is a fact, or why it is not known. Its zero value is a fact that nobody has asked for.
type Known[T any] struct {
	Value T
	// Err says why the fact is not known.
	Err   string
	Asked bool
}

// Of is a fact, or the error of the attempt to find it out.
func Of[T any](value T, err error) Known[T] {
	if err != nil {
		return Known[T]{Err: err.Error(), Asked: true}
	}
	return Known[T]{Value: value, Asked: true}
}

// Why is why the fact is not known; ok is false if it is known.
func (k Known[T]) Why() (why string, ok bool) {
	switch {
	case k.Err != "":
		return k.Err, true
	case !k.Asked:
		return "nobody has asked", true
	}
	return "", false
}

// Clock is a time that somebody else has said, in whole seconds, in an answer between two times of this machine.
type Clock struct {
	Sent, Received, Date time.Time
	Err                  string
}

const (
	// MostSkew is the difference of clocks that certificates allow for.
	MostSkew = 2 * time.Minute
	// tolerated is the difference of clocks that needs no attention.
	tolerated = 10 * time.Second
)

// Difference is by how much the other clock is ahead at least, 0 if it may be right.
func (c Clock) Difference() time.Duration {
	switch {
	case c.Date.After(c.Received):
		return c.Date.Sub(c.Received)
	case c.Date.Add(time.Second).Before(c.Sent):
		return c.Date.Add(time.Second).Sub(c.Sent)
	}
	return 0
}

// Decide is the finding about a clock whose time is known.
func (c Clock) Decide() Finding {
	d := c.Difference()
	text := fmt.Sprintf("%s ahead of this machine", d.Abs().Round(time.Second))
	if d < 0 {
		text = fmt.Sprintf("%s behind this machine", d.Abs().Round(time.Second))
	}
	const remedy = "have both set their clocks by NTP"
	switch {
	case d.Abs() >= MostSkew:
		return Fail(remedy, "%s: certificates allow for %s", text, MostSkew)
	case d.Abs() >= tolerated:
		return Warn(remedy, "%s", text)
	}
	return Pass("no difference from this machine's")
}
