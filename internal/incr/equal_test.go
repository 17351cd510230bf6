package incr

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

type holder struct {
	Name  string
	Spec  *structpb.Struct
	Map   map[string]*structpb.Struct
	List  []any
	Array [2]int
	own   *structpb.Struct
}

// message returns a new message that has been encoded, which changes its caches, or has not.
func message(t *testing.T, value float64, encoded bool) *structpb.Struct {
	t.Helper()
	m := &structpb.Struct{Fields: map[string]*structpb.Value{"v": structpb.NewNumberValue(value)}}
	if encoded {
		if _, err := proto.Marshal(m); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestValuesAreComparedByContent(t *testing.T) {
	same := comparer[*holder]()
	shared := message(t, 1, false)
	base := func(encoded bool) *holder {
		return &holder{
			Name: "a", Spec: message(t, 1, encoded), Map: map[string]*structpb.Struct{"k": message(t, 2, encoded)},
			List: []any{1, message(t, 3, encoded), nil}, Array: [2]int{1, 2}, own: shared,
		}
	}
	if !same(base(true), base(false)) {
		t.Error("messages that differ in whether they have been encoded are not equal")
	}
	for what, change := range map[string]func(*holder){
		"a field":                        func(h *holder) { h.Name = "b" },
		"a message":                      func(h *holder) { h.Spec = message(t, 9, false) },
		"a missing message":              func(h *holder) { h.Spec = nil },
		"a message in a map":             func(h *holder) { h.Map["k"] = message(t, 9, false) },
		"another key":                    func(h *holder) { h.Map = map[string]*structpb.Struct{"l": h.Map["k"]} },
		"no map":                         func(h *holder) { h.Map = nil },
		"a message in an interface":      func(h *holder) { h.List[1] = message(t, 9, false) },
		"another type in an interface":   func(h *holder) { h.List[0] = "1" },
		"a value in a nil interface":     func(h *holder) { h.List[2] = 1 },
		"a shorter list":                 func(h *holder) { h.List = h.List[:2] },
		"an array":                       func(h *holder) { h.Array[1] = 9 },
		"a message in an unexported one": func(h *holder) { h.own = message(t, 1, false) },
	} {
		h := base(false)
		if change(h); same(base(false), h) {
			t.Errorf("values that differ in %s are equal", what)
		}
	}
	if same(nil, base(false)) || !same(nil, nil) {
		t.Error("nil is equal to a value, or not to itself")
	}
}

func TestEqualRowsChangeNothing(t *testing.T) {
	g := New()
	rows := NewTable[*structpb.Struct](g, "rows")
	rule := Derive(g, 1, "encode", func(r *Reader, key string) int {
		m, _ := Get(r, rows, key)
		return proto.Size(m)
	})
	rows.Put("a", message(t, 1, true))
	rule.Want("a")
	rows.Put("a", message(t, 1, false))
	if moved, runs := g.Run(), g.Stats()["encode"].Runs; len(moved) > 0 || runs != 1 {
		t.Errorf("an equal row moved %v, the rule ran %d times, want once", moved, runs)
	}
}

// caseless is compared by its own method.
type caseless string

func (c caseless) Equal(o caseless) bool { return strings.EqualFold(string(c), string(o)) }

func TestAMethodSaysWhatIsEqual(t *testing.T) {
	same := comparer[caseless]()
	if !same("a", "A") || same("a", "b") {
		t.Error("values are not compared by their method Equal")
	}
}
