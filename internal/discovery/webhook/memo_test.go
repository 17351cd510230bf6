package webhook_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
)

func TestMemoKeepsWhatIsAskedForAndForgetsTheRest(t *testing.T) {
	m := &webhook.Memo{}
	if v := m.Get("a"); v != nil {
		t.Errorf("an empty memo has %v", v)
	}
	m.Put("a", 1)
	m.Put("b", 2)
	for i := range 1000 {
		m.Put(fmt.Sprint("key", i), i)
		if v := m.Get("a"); v != 1 {
			t.Fatalf("after %d values: %v, want what was asked for all the time", i, v)
		}
	}
	if v := m.Get("b"); v != nil {
		t.Errorf("%v was not forgotten, which nobody has asked for", v)
	}
	m.Put("a", 3)
	if v := m.Get("a"); v != 3 {
		t.Errorf("%v, want the value that was put last", v)
	}
}

func TestMemoIsBoundedByTheBytesOfItsKeys(t *testing.T) {
	m := &webhook.Memo{}
	huge := strings.Repeat("x", 1<<20)
	m.Put(huge, 1)
	if v := m.Get(huge); v != nil {
		t.Error("a key of 1 MiB is kept")
	}
	var keys []string
	for i := range 30 {
		keys = append(keys, fmt.Sprint(i, strings.Repeat("x", 200<<10)))
		m.Put(keys[i], i)
	}
	kept := 0
	for _, k := range keys {
		if m.Get(k) != nil {
			kept++
		}
	}
	if kept == 0 || kept > 11 {
		t.Errorf("%d keys of 200 KiB are kept, want some, and at most 2 MiB", kept)
	}
}
