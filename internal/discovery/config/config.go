// Package config validates objects and keeps the last valid version of each.
//
// Validate has all rules for the contents of objects; Store applies them to every object that a
// source reports. A Verdict names the object, the field and the remedy. An object with an error is
// rejected; one with warnings only is accepted, and the warnings name what has no effect or not the
// expected one. The rules follow those that Istio documents; where Istio rejects what is harmless,
// this package warns. Validate, MeshConfig and TrustDomain are pure functions; a Store is not safe
// for concurrent use.
package config

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Verdict is one finding about one object. The object is rejected if it has a verdict of severity
// object.Error.
type Verdict = object.Problem

// Rejected reports whether one of an object's verdicts is an error.
func Rejected(verdicts []Verdict) bool {
	for _, v := range verdicts {
		if v.Severity == object.Error {
			return true
		}
	}
	return false
}

// maxVerdicts is the maximum number of verdicts on one object.
const maxVerdicts = 50

// Validate checks one object. It returns at most 50 verdicts: those on invalid fields in the order of
// the fields, then those on fields that are not applied. A Spec of the wrong type for the kind is an
// error. Validate panics for a kind that is not in object.Kinds.
func Validate(o object.Object) []Verdict { return ValidateUpTo(o, maxVerdicts) }

// ValidateUpTo is Validate with another limit than 50 verdicts, which must be above 0: whoever compares the
// verdicts on two versions of an object must not miss those that a full list leaves out.
func ValidateUpTo(o object.Object, limit int) []Verdict {
	c := &check{key: o.Key, origin: o.Origin, generation: o.Meta.Generation, limit: limit}
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
	// generation is that of the object.
	generation int64
	policy     object.Policy // the policy that is not enforced if there is an error
	limit      int           // of out; 0 is maxVerdicts
	out        []Verdict
}

func (c *check) report(s object.Severity, field, format string, args ...any) {
	v := Verdict{Severity: s, Origin: c.origin, Key: c.key, Generation: c.generation, Field: field, Text: fmt.Sprintf(format, args...)}
	if s == object.Error {
		v.Policy = c.policy
	}
	switch limit := cmp.Or(c.limit, maxVerdicts); {
	case len(c.out) < limit:
		c.out = append(c.out, v)
	case s == object.Error && !Rejected(c.out): // a full list must not hide that the object is rejected
		c.out[limit-1] = v
	}
}

func (c *check) fail(field, format string, args ...any) {
	c.report(object.Error, field, format, args...)
}

func (c *check) warn(field, format string, args ...any) {
	c.report(object.Warning, field, format, args...)
}

// item returns the path of element i of a list.
func item(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// entry returns the path of a key of a map.
func entry(path, key string) string { return path + "[" + key + "]" }
