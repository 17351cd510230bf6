package objectstatus

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Addresses are written if they differ, and those that are there stay if none are allocated.
func TestMergeAddresses(t *testing.T) {
	want := Status{Generation: 1, Conditions: []Condition{{Type: Reconciled, Status: "True", Reason: "UpToDate"}}}
	stored, _ := Merge(nil, want, time.Now())
	if _, has := stored["addresses"]; has {
		t.Errorf("%v", stored)
	}
	want.Addresses = []object.HostAddress{{Host: "a.example.com", Address: netip.MustParseAddr("240.240.1.2")}, {Host: "a.example.com", Address: netip.MustParseAddr("2001:2::1")}}
	stored, change := Merge(stored, want, time.Now())
	text, err := json.Marshal(stored["addresses"])
	if err != nil || change != VersionChange || string(text) != `[{"host":"a.example.com","value":"240.240.1.2"},{"host":"a.example.com","value":"2001:2::1"}]` {
		t.Errorf("%v: %s", change, text)
	}
	var read map[string]any // as it comes from the API server
	if text, err = json.Marshal(stored); err != nil || json.Unmarshal(text, &read) != nil {
		t.Fatal(err)
	}
	if _, change := Merge(read, want, time.Now()); change != Unchanged {
		t.Errorf("what is stored: %v", change)
	}
	want.Addresses[1].Address = netip.MustParseAddr("2001:2::2")
	if _, change := Merge(read, want, time.Now()); change != VersionChange {
		t.Errorf("another address: %v", change)
	}
	want.Addresses = nil
	if out, change := Merge(read, want, time.Now()); change != Unchanged || len(out["addresses"].([]any)) != 2 {
		t.Errorf("without any: %v, %v", change, out)
	}
}
