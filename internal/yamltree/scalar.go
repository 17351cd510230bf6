package yamltree

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// scalar checks a value against protobuf's JSON mapping for the kind. Numbers may be strings.
func (c *checker) scalar(t *Tree, path string, k protoreflect.Kind) {
	switch k {
	case protoreflect.StringKind:
		if t.Kind == Number || t.Kind == Bool {
			c.add(t.Line, path, "want a string, not %s; put it in quotes: %q", t.Kind, t.Text)
		} else if t.Kind != String {
			c.add(t.Line, path, "want a string, not %s", t.Kind)
		}
	case protoreflect.BytesKind:
		if t.Kind != String || !isBase64(t.Text) {
			c.add(t.Line, path, "want a base64 string")
		}
	case protoreflect.BoolKind:
		if t.Kind != Bool && t.Text != "true" && t.Text != "false" {
			c.add(t.Line, path, "want true or false, not %s", t.show())
		} else if t.Kind == String {
			c.add(t.Line, path, "want true or false; remove the quotes")
		}
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		if _, err := strconv.ParseFloat(t.Text, 64); err != nil || t.Kind != Number && t.Kind != String {
			c.add(t.Line, path, "want a number, not %s", t.show())
		}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		c.whole(t, path, math.MinInt32, math.MaxInt32)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		c.whole(t, path, 0, math.MaxUint32)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		c.whole(t, path, math.MinInt64, math.MaxInt64)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		c.whole(t, path, 0, math.MaxUint64)
	default:
		panic("yamltree: unexpected kind " + k.String())
	}
}

func (c *checker) whole(t *Tree, path string, least int64, most uint64) {
	if t.Kind != Number && t.Kind != String {
		c.add(t.Line, path, "want a whole number, not %s", t.Kind)
		return
	}
	if n, err := strconv.ParseInt(t.Text, 10, 64); err == nil && n >= least && (n < 0 || uint64(n) <= most) {
		return
	}
	if n, err := strconv.ParseUint(t.Text, 10, 64); err == nil && n <= most {
		return
	}
	c.add(t.Line, path, "want a whole number from %d to %d, not %s", least, most, t.show())
}

func isBase64(s string) bool {
	s = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(s), "=")
	_, err := base64.RawStdEncoding.DecodeString(s)
	return err == nil
}

// wellKnown checks the messages of google.protobuf that have a JSON mapping of their own. Those
// that are not listed are checked by protojson alone.
func (c *checker) wellKnown(t *Tree, path string, md protoreflect.MessageDescriptor) *Tree {
	switch md.Name() {
	case "Duration":
		return c.duration(t, path)
	case "Timestamp":
		if _, err := time.Parse(time.RFC3339Nano, t.Text); err != nil || t.Kind != String {
			c.add(t.Line, path, "want a time such as \"2026-01-31T12:00:00Z\", not %s", t.show())
		}
	case "Struct":
		if t.Kind != Mapping {
			c.add(t.Line, path, "want a mapping, not %s", t.Kind)
		}
	case "ListValue":
		if t.Kind != Sequence {
			c.add(t.Line, path, "want a list, not %s", t.Kind)
		}
	case "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue":
		return c.singular(t, path, md.Fields().ByName("value"))
	}
	return t
}

// duration accepts protobuf's notation ("90s") and Go's ("1m30s"), and returns the former.
func (c *checker) duration(t *Tree, path string) *Tree {
	if t.Kind == String {
		if protojson.Unmarshal(t.JSON(), &durationpb.Duration{}) == nil {
			return t
		}
		if d, err := time.ParseDuration(t.Text); err == nil {
			b, _ := protojson.Marshal(durationpb.New(d)) // cannot fail for a time.Duration
			seconds, _ := strconv.Unquote(string(b))
			return &Tree{Kind: String, Line: t.Line, Text: seconds, cost: t.cost}
		}
	}
	c.add(t.Line, path, "want a duration such as \"5s\" or \"250ms\", not %s", t.show())
	return t
}
