package main

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestCollectionsAreMoreFrequentWhileMemoryGrows(t *testing.T) {
	const mb = 1 << 20
	p := &pace{percent: steadyGC}
	for i, s := range []struct {
		live uint64
		want int
	}{
		{10 * mb, steadyGC}, {30 * mb, steadyGC}, // too little to save any of
		{65 * mb, 40},
		{65 * mb, 40}, // one without growth means little
		{104 * mb, 25},
		{104 * mb, 25}, {105 * mb, 25}, {103 * mb, steadyGC},
		{104 * mb, steadyGC}, // by less than what counts
		{200 * mb, leastGC},
		{30 * mb, leastGC}, {30 * mb, leastGC}, {30 * mb, steadyGC}, {20 * mb, steadyGC},
		{25 * mb, steadyGC}, {150 * mb, leastGC},
	} {
		if got := p.next(s.live); got != s.want {
			t.Errorf("collection %d, %d MB in use: GOGC %d, want %d", i, s.live/mb, got, s.want)
		}
	}
}

func TestSoftLimitIsBelowTheControlGroup(t *testing.T) {
	for group, want := range map[int64]int64{0: 0, 1000: 900, 2 << 30: 2 << 30 / 10 * 9} {
		if got := softLimit(group); got != want {
			t.Errorf("limit %d: %d, want %d", group, got, want)
		}
	}
}

func TestEveryCollectionIsFollowed(t *testing.T) {
	var calls atomic.Int32
	afterCollections(func() { calls.Add(1) })
	for want := range int32(3) {
		wait.Until(t, "the call after a collection", func() bool {
			runtime.GC()
			return calls.Load() > want
		})
	}
	if liveHeap() == 0 {
		t.Error("nothing in use")
	}
}

func TestPagesAreUnmappedMoreOftenWhileMoreIsInUse(t *testing.T) {
	const mb = 1 << 20
	now := time.Unix(1, 0)
	var u unmapping
	for i, step := range []struct {
		after time.Duration
		live  uint64
		want  bool
	}{
		{0, 50 * mb, true}, {unmapGrowing - 1, 60 * mb, false}, {1, 60 * mb, true}, // growing
		{time.Second, 60 * mb, false}, {unmapSteady - time.Second - 1, 61 * mb, false}, {1, 61 * mb, true}, // steady
		{time.Second, 50 * mb, false}, {time.Second, 70 * mb, true},
	} {
		now = now.Add(step.after)
		if got := u.due(now, step.live); got != step.want {
			t.Errorf("collection %d: %v, want %v", i, got, step.want)
		}
	}
}
