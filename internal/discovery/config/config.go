// Package config decides which objects are good enough to configure proxies, and keeps the last good ones.
//
// Validate holds every rule for the content of objects; Store applies it to all that
// sources read. A Verdict names object, field and remedy. An error keeps an object out; a
// warning lets it in and names what has no effect, or not the expected one.
// Rules follow Istio's public ones; where those refuse what does no harm, this package
// warns. Functions, and one Store for one goroutine.
package config

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Verdict is one finding about one object. An Error keeps it out, a Warning does not.
type Verdict = object.Problem

// Rejected reports whether the verdicts of an object keep it out.
func Rejected(verdicts []Verdict) bool {
	for _, v := range verdicts {
		if v.Severity == object.Error {
			return true
		}
	}
	return false
}

// maxVerdicts bounds what is said about one object.
const maxVerdicts = 50

// Validate checks one object, whose Spec must be of its Kind's type. Verdicts come in
// the order of the object's fields, those on what is not applied last; at most 50.
func Validate(o object.Object) []Verdict {
	c := &check{key: o.Key, origin: o.Origin}
	rules := kinds[o.Kind]
	if rules == nil {
		panic("config: unknown kind of object: " + o.Key.String())
	}
	rules(c, o)
	if m, ok := o.Spec.(proto.Message); ok {
		c.notApplied("spec", m.ProtoReflect())
	}
	return c.out
}

// check collects the verdicts of one object.
type check struct {
	key    object.Key
	origin object.Origin
	policy object.Policy // what an error keeps from being enforced
	out    []Verdict
}

func (c *check) report(s object.Severity, field, format string, args ...any) {
	v := Verdict{Severity: s, Origin: c.origin, Key: c.key, Field: field, Text: fmt.Sprintf(format, args...)}
	if s == object.Error {
		v.Policy = c.policy
	}
	switch {
	case len(c.out) < maxVerdicts:
		c.out = append(c.out, v)
	case s == object.Error && !Rejected(c.out): // a full list must not hide that the object is refused
		c.out[maxVerdicts-1] = v
	}
}

func (c *check) fail(field, format string, args ...any) {
	c.report(object.Error, field, format, args...)
}

func (c *check) warn(field, format string, args ...any) {
	c.report(object.Warning, field, format, args...)
}

// item names element i of a list.
func item(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// entry names a key of a map.
func entry(path, key string) string { return path + "[" + key + "]" }
