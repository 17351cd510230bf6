package objectstatus_test

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/object"
)

func TestReportsAreReadAsTheyWereWritten(t *testing.T) {
	r := &objectstatus.Reports{Revision: "canary", Objects: map[object.Key]objectstatus.Report{
		key("a"): {InForce: 5, Refusals: []objectstatus.Finding{refused}, Counts: objectstatus.Counts{Proxies: 3, Applied: 2, Refused: 1}},
		key("b"): {InForce: 1},
	}}
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if again, err := r.Encode(); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("the same reports are encoded in two ways: %v", err)
		}
	}
	got, err := objectstatus.DecodeReports(text)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v; want %+v", got, err, r)
	}
}

// Ten thousand objects fit.
func TestReportsAreBounded(t *testing.T) {
	r := &objectstatus.Reports{Objects: map[object.Key]objectstatus.Report{}}
	for i := range 10_000 {
		r.Objects[object.Key{Kind: object.VirtualService, Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i)}] = objectstatus.Report{
			InForce: int64(i % 7), Counts: objectstatus.Counts{Proxies: i % 300, Applied: i % 300},
		}
	}
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes for 10,000 objects", len(text))
	random := rand.NewChaCha8([32]byte{})
	for i := range 400 { // texts that cannot be compressed
		text := make([]byte, 400)
		if _, err := random.Read(text); err != nil {
			t.Fatal(err)
		}
		r.Objects[key(fmt.Sprint(i))] = objectstatus.Report{Refusals: []objectstatus.Finding{{Code: objectstatus.CodeRefused, Text: hex.EncodeToString(text)}}}
	}
	if _, err := r.Encode(); err == nil || !strings.Contains(err.Error(), "10400 objects") {
		t.Errorf("10,400 objects: %v", err)
	}
}

func TestReportsOfOthersAreRefusedIfTheyAreInvalid(t *testing.T) {
	zip := func(text []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if _, err := z.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for name, text := range map[string][]byte{
		"nothing": nil, "not compressed": []byte("{}"), "not JSON": zip([]byte("x")), "cut off": zip([]byte("{}"))[:10], "a bomb": zip(make([]byte, 9<<20)),
	} {
		if _, err := objectstatus.DecodeReports(text); err == nil || !strings.Contains(err.Error(), "report of a replica") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDifferences(t *testing.T) {
	one := &objectstatus.Reports{Objects: map[object.Key]objectstatus.Report{key("a"): {InForce: 1}, key("b"): {InForce: 1}, key("c"): {InForce: 1}}}
	two := &objectstatus.Reports{Objects: maps.Clone(one.Objects)}
	two.Objects[key("a")] = objectstatus.Report{InForce: 2}
	delete(two.Objects, key("b"))
	two.Objects[key("d")] = objectstatus.Report{}
	names := func(keys []object.Key) (out []string) {
		for _, k := range keys {
			out = append(out, k.Name)
		}
		slices.Sort(out)
		return out
	}
	if got := names(objectstatus.Differences(one, two)); !slices.Equal(got, []string{"a", "b", "d"}) {
		t.Errorf("%v", got)
	}
	if got := names(objectstatus.Differences(nil, one)); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%v", got)
	}
	if got := objectstatus.Differences(one, one); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
