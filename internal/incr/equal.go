package incr

import (
	"bytes"
	"reflect"

	"google.golang.org/protobuf/proto"
)

var messageType = reflect.TypeFor[proto.Message]()

// comparer returns the function that compares values of a type by content: by their method Equal if they have one, byte slices by
// bytes.Equal, protobuf messages by proto.Equal, everything else as reflect.DeepEqual does. A message has caches, which
// encoding it changes, so reflect.DeepEqual would tell equal messages apart, and would race with encoding.
func comparer[V any]() func(a, b V) bool {
	type equaler interface{ Equal(other V) bool }
	t := reflect.TypeFor[V]()
	switch {
	case t.Implements(reflect.TypeFor[equaler]()):
		return func(a, b V) bool { return any(a).(equaler).Equal(b) }
	case t == reflect.TypeFor[[]byte]():
		return func(a, b V) bool { return bytes.Equal(any(a).([]byte), any(b).([]byte)) }
	case holdsMessages(t, map[reflect.Type]bool{}):
		return func(a, b V) bool { return equal(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()) }
	}
	return func(a, b V) bool { return reflect.DeepEqual(a, b) }
}

// holdsMessages reports whether values of a type may have messages in them.
func holdsMessages(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	if t.Implements(messageType) {
		return true
	}
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return holdsMessages(t.Elem(), seen)
	case reflect.Map:
		return holdsMessages(t.Key(), seen) || holdsMessages(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsMessages(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// equal compares two values of one type, which have no cycles.
func equal(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		switch {
		case a.Pointer() == b.Pointer():
			return true
		case a.IsNil() || b.IsNil():
			return false
		case a.Type().Implements(messageType):
			// A message in an unexported field cannot be had as one: another pointer counts as another message.
			return a.CanInterface() && proto.Equal(a.Interface().(proto.Message), b.Interface().(proto.Message))
		}
		return equal(a.Elem(), b.Elem())
	case reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return a.Elem().Type() == b.Elem().Type() && equal(a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if !equal(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		return a.Pointer() == b.Pointer() || equalElements(a, b)
	case reflect.Array:
		return equalElements(a, b)
	case reflect.Map:
		return equalMaps(a, b)
	case reflect.Func:
		return a.IsNil() && b.IsNil()
	}
	return a.Equal(b)
}

func equalElements(a, b reflect.Value) bool {
	for i := range a.Len() {
		if !equal(a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func equalMaps(a, b reflect.Value) bool {
	if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
		return false
	}
	if a.Pointer() == b.Pointer() {
		return true
	}
	for i := a.MapRange(); i.Next(); {
		other := b.MapIndex(i.Key())
		if !other.IsValid() || !equal(i.Value(), other) {
			return false
		}
	}
	return true
}
