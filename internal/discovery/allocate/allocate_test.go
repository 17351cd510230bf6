package allocate

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func wants(n int) (out []Want) {
	for i := range n {
		out = append(out, Want{Key: fmt.Sprintf("ServiceEntry/ns/se/h%d.example", i)})
	}
	return out
}

// The result depends neither on the order nor on the machine, all addresses differ, and nothing gets the addresses that are taken.
func TestAllocateIsAFunctionOfTheSet(t *testing.T) {
	list := wants(5000) // enough that several hash to one address
	first := Allocate(list, nil, nil)
	taken := map[netip.Addr]bool{first[list[7].Key].V4: true}
	slices.Reverse(list)
	if again := Allocate(list, nil, nil); !reflect.DeepEqual(first, again) {
		t.Error("another order gives other addresses")
	}
	used := map[netip.Addr]bool{}
	for _, p := range first {
		if !IPv4.Contains(p.V4) || !IPv6.Contains(p.V6) || used[p.V4] || used[p.V6] {
			t.Fatalf("%v", p)
		}
		used[p.V4], used[p.V6] = true, true
	}
	if got := Allocate(wants(5000), nil, taken)[wants(8)[7].Key]; taken[got.V4] || !got.V4.IsValid() {
		t.Errorf("%v was taken", got)
	}
	if got := first[wants(1)[0].Key]; got.V4.String() != "240.240.251.60" || got.V6.String() != "2001:2::7d61:8a97:d3c5:53bf" {
		t.Errorf("%v: the address of a host is another one than in earlier releases", got)
	}
}

// What was allocated stays when others come, and what a status has counts most; of two, the older object keeps it.
func TestAllocateKeepsWhatWasAllocated(t *testing.T) {
	before := Allocate(wants(3000), nil, nil)
	after := Allocate(wants(6000), before, nil)
	for k, p := range before {
		if after[k] != p {
			t.Fatalf("%s had %v and has %v", k, p, after[k])
		}
	}
	list := wants(3)
	x := netip.MustParseAddr("240.240.1.2")
	list[0].Fixed.V4, list[0].Age = x, 9
	list[1].Fixed.V4, list[1].Age = x, 5
	got := Allocate(list, map[string]Pair{list[2].Key: {V4: x}}, nil)
	if got[list[1].Key].V4 != x || got[list[0].Key].V4 == x || got[list[2].Key].V4 == x || !got[list[2].Key].V4.IsValid() {
		t.Errorf("%v", got)
	}
	list[1].Fixed.V4 = netip.MustParseAddr("10.0.0.1") // not of the range
	if got := Allocate(list, nil, nil)[list[1].Key]; !IPv4.Contains(got.V4) {
		t.Errorf("%v", got)
	}
}

func TestAllocateUntilTheRangeIsFull(t *testing.T) {
	got := Allocate(wants(1<<16-2+3), nil, nil)
	none := 0
	for _, p := range got {
		if !p.V4.IsValid() {
			none++
		}
	}
	if none != 3 {
		t.Errorf("%d hosts have no address, want 3", none)
	}
}
