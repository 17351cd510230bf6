package marshal

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestEqualMessagesHaveEqualBytes(t *testing.T) {
	keys := map[string]any{}
	for _, k := range strings.Fields("a b c d e f g h i j") {
		keys[k] = k
	}
	m, err := structpb.NewStruct(keys)
	if err != nil {
		t.Fatal(err)
	}
	first := Must(m)
	for range 100 {
		if !bytes.Equal(Must(m), first) {
			t.Fatal("two encodings of one message differ")
		}
	}
}

func TestWhatCannotBeEncodedIsNotSwallowed(t *testing.T) {
	bad := wrapperspb.String("\xff")
	if b, err := Append(nil, bad); err == nil || !strings.Contains(err.Error(), "encode google.protobuf.StringValue") {
		t.Errorf("Append: %q, %v; want an error that names the message", b, err)
	}
	for name, f := range map[string]func(){
		"Must": func() { Must(bad) }, "MustAny": func() { MustAny(bad) }, "MustAppend": func() { MustAppend(nil, bad) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "google.protobuf.StringValue") {
					t.Errorf("panic %q, want one that names the message", text)
				}
			}()
			f()
		})
	}
}

func TestAnyHasTheTypeURL(t *testing.T) {
	a := MustAny(wrapperspb.String("x"))
	if a.TypeUrl != "type.googleapis.com/google.protobuf.StringValue" {
		t.Errorf("type URL %q", a.TypeUrl)
	}
	if m, err := a.UnmarshalNew(); err != nil || m.(*wrapperspb.StringValue).Value != "x" {
		t.Errorf("decoded %v, %v", m, err)
	}
}

// An Any that is encoded at once, or around an encoded message, is the encoding of one with that message.
func TestEncodedAny(t *testing.T) {
	for _, n := range []int{1, 127, 128, 20000} {
		m := wrapperspb.String(strings.Repeat("x", n))
		want := Must(MustAny(m))
		if got := MustEncodedAny(m); !bytes.Equal(got, want) {
			t.Errorf("%d characters: %q, want %q", n, got, want)
		}
		if got := EncodedAny((*wrapperspb.StringValue)(nil), Must(m)); !bytes.Equal(got, want) {
			t.Errorf("%d characters, encoded before: %q, want %q", n, got, want)
		}
	}
}

// A message whose beginning is encoded already has the bytes of the whole.
func TestContinuedAny(t *testing.T) {
	whole := &structpb.ListValue{}
	for _, text := range strings.Fields("a b c d") {
		whole.Values = append(whole.Values, structpb.NewStringValue(text))
	}
	for n := range len(whole.Values) + 1 {
		head, rest := &structpb.ListValue{Values: whole.Values[:n]}, &structpb.ListValue{Values: whole.Values[n:]}
		if got, want := MustContinuedAny(Must(head), rest), MustEncodedAny(whole); !bytes.Equal(got, want) {
			t.Errorf("%d of %d values before: %q, want %q", n, len(whole.Values), got, want)
		}
	}
}
