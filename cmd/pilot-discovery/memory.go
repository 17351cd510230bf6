package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/pilothouse/pilothouse/internal/cgroup"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// GOGC of the garbage collector, in percent. Most of what a control plane has in use stays in use, so that collecting
// twice as often as by default costs little and bounds the peak. While more and more is in use, which is when many
// proxies connect, memory is what runs out, and the collector runs as often as it takes to leave no more than headroom
// to garbage, but for a bound of what that costs. When that is over, a change costs less the less is collected.
const (
	steadyGC = 50
	leastGC  = 20
	headroom = 26 << 20 // bytes
)

// The minimum intervals between two times that the program's pages are unmapped. While proxies connect, a collection leaves
// 15 MB of them, and another 10 MB are in use again half a second later. While what is in use does not grow, the collections
// are those of a steady stream of changes, which costs more processor time if its pages must be mapped again each time.
const (
	unmapGrowing = 250 * time.Millisecond
	unmapSteady  = 10 * time.Second
)

const (
	// grown is by how many percent what is in use has grown since the collection before where it counts as growing.
	grown = 2
	// calm is after how many collections in a row without growth what is in use counts as steady.
	calm = 3
)

// limitMemory sets the collector unless the environment does, by GOGC or GOMEMLIMIT: the process collects ever more
// often rather than to take more than nine tenths of its control group's limit.
func limitMemory(v *settings.Values) {
	if percent, limit := v.Text("GOGC"), v.Text("GOMEMLIMIT"); percent != "" || limit != "" {
		return
	}
	debug.SetGCPercent(steadyGC)
	if limit := softLimit(cgroup.MemoryLimit()); limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	p := &pace{percent: steadyGC}
	afterCollections(func() {
		if before := p.percent; p.next(liveHeap()) != before {
			debug.SetGCPercent(p.percent)
		}
	})
}

// softLimit is the soft limit of memory for a control group's limit, both in bytes; 0 is none.
func softLimit(group int64) int64 { return group / 10 * 9 }

// pace decides how often to collect.
type pace struct {
	percent int    // what was decided last
	live    uint64 // what was in use at the collection before, in bytes
	quiet   int    // collections without growth
}

// next is GOGC until the next collection, given what the last one found in use, in bytes.
func (p *pace) next(live uint64) (percent int) {
	if live > p.live/100*(100+grown) {
		p.quiet, p.percent = 0, int(min(max(headroom*100/live, leastGC), steadyGC))
	} else if p.quiet++; p.quiet >= calm {
		p.percent = steadyGC
	}
	p.live = live
	return p.percent
}

// liveHeap is how much of the heap the last collection found in use, in bytes.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	if metrics.Read(s); s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

// unmapping decides after which collections the program's pages are unmapped. It is not for concurrent use.
type unmapping struct {
	last time.Time // zero before the first time
	live uint64    // what was in use then, in bytes
}

// due says whether they are to be unmapped now, after a collection that found so many bytes in use.
func (u *unmapping) due(now time.Time, live uint64) bool {
	every := unmapSteady
	if live > u.live/100*(100+grown) {
		every = unmapGrowing
	}
	if !u.last.IsZero() && now.Sub(u.last) < every {
		return false
	}
	u.last, u.live = now, live
	return true
}

// afterCollections calls f after every garbage collection, until the process ends; no two calls are at the same time.
func afterCollections(f func()) {
	// Nothing refers to it, so that the next collection finds it.
	garbage := &struct{ self *byte }{new(byte)}
	runtime.AddCleanup(garbage, func(struct{}) {
		f()
		afterCollections(f)
	}, struct{}{})
}
