package objectstatus

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Pace says how often statuses are written. The zero value is DefaultPace.
type Pace struct {
	// Interval is the shortest time between two writes of one object's status, CountInterval if only the number of
	// proxies has changed.
	Interval, CountInterval time.Duration
	// Hold is how long counts of a reconciled version, and delays of proxies, must last until they are written: proxies
	// come and go.
	Hold time.Duration
	// Grace is for how long after its start a writer leaves a status of the newest version as it is: proxies
	// connect again, and refuse again, what they have refused.
	Grace time.Duration
	// Counts is the shortest time between two writes of counts, whatever their objects.
	Counts time.Duration
}

// DefaultPace is the pace of the product.
var DefaultPace = Pace{Interval: 3 * time.Second, CountInterval: time.Minute, Hold: 30 * time.Second, Grace: 30 * time.Second, Counts: 500 * time.Millisecond}

const (
	// maxInterval is the longest interval between writes of the same, which somebody else undoes.
	maxInterval = 5 * time.Minute
	// maxQueue is for how long counts are put off at most so that others come first.
	maxQueue = 10 * time.Minute
)

// Pacer decides when statuses are written.
type Pacer struct {
	pace    Pace
	start   time.Time
	objects map[object.Key]*paced
	// counts is when the next count may be written.
	counts time.Time
}

// paced is one object.
type paced struct {
	change Change
	due    time.Time
	wrote  time.Time // zero for never
	text   string    // that was written last
	again  int       // how often that has been written again in a row
}

// NewPacer returns a Pacer of a writer that starts at the time start.
func NewPacer(p Pace, start time.Time) *Pacer {
	if p == (Pace{}) {
		p = DefaultPace
	}
	return &Pacer{pace: p, start: start, objects: map[object.Key]*paced{}}
}

// Due returns when a change of an object is to be written, which may be past; zero for Unchanged. text identifies
// what would be written.
func (p *Pacer) Due(k object.Key, c Change, text string, now time.Time) time.Time {
	o := p.objects[k]
	if c == Unchanged {
		if o != nil {
			if o.change, o.due = c, (time.Time{}); o.wrote.IsZero() || now.Sub(o.wrote) > maxInterval {
				delete(p.objects, k)
			}
		}
		return time.Time{}
	}
	if o == nil {
		o = &paced{}
		p.objects[k] = o
	}
	if o.change != c {
		o.change, o.due = c, p.due(o, c, now)
	}
	if pause := p.pause(o, text); o.due.Before(o.wrote.Add(pause)) {
		return o.wrote.Add(pause)
	}
	return o.due
}

// due is when a change that is new is to be written.
func (p *Pacer) due(o *paced, c Change, now time.Time) time.Time {
	at := now
	if c <= LagChange {
		at = at.Add(p.pace.Hold)
	}
	if grace := p.start.Add(p.pace.Grace); c < VersionChange && o.wrote.IsZero() && at.Before(grace) {
		at = grace
	}
	interval := p.pace.Interval
	if c == CountChange {
		interval = p.pace.CountInterval
	}
	if next := o.wrote.Add(interval); !o.wrote.IsZero() && at.Before(next) {
		at = next
	}
	if c == CountChange {
		if at.Before(p.counts) && p.counts.Before(now.Add(maxQueue)) {
			at = p.counts
		}
		p.counts = at.Add(p.pace.Counts)
	}
	return at
}

// pause is the least time after the last write of an object: longer each time that the same is written again.
func (p *Pacer) pause(o *paced, text string) time.Duration {
	if o.wrote.IsZero() {
		return 0
	}
	if o.text != text {
		return p.pace.Interval
	}
	if shift := o.again + 1; shift < 16 {
		return min(maxInterval, p.pace.Interval<<shift)
	}
	return maxInterval
}

// Wrote notes that a status was written, and returns how often the same has been written again in a row.
func (p *Pacer) Wrote(k object.Key, text string, now time.Time) int {
	o := p.objects[k]
	if o == nil {
		o = &paced{}
		p.objects[k] = o
	}
	if o.again++; o.wrote.IsZero() || o.text != text {
		o.again = 0
	}
	o.change, o.due, o.wrote, o.text = Unchanged, time.Time{}, now, text
	return o.again
}

// Forget drops an object that is gone.
func (p *Pacer) Forget(k object.Key) { delete(p.objects, k) }
