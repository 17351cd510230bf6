package discovery

import (
	"slices"
	"time"
)

// idleLimits bound what is kept of classes without proxies, so that proxies that come back need no
// compilation: after a rollout, the restart of a node, a connection that ended.
type idleLimits struct {
	// age is how long a class is kept after its last proxy has left.
	age time.Duration
	// classes is how many are kept.
	classes int
	// bytes bounds the resources in layers that only idle classes have, each layer counted once.
	bytes int
}

// defaultIdleLimits are the limits of a server.
var defaultIdleLimits = idleLimits{age: 5 * time.Minute, classes: 1000, bytes: 256 << 20}

// idleClasses are the classes without proxies that are kept.
type idleClasses struct {
	limits idleLimits
	// list and since have the same length; the class that has been idle the longest is the first.
	list  []*publishedClass
	since []time.Time
}

func (i *idleClasses) add(c *publishedClass, now time.Time) {
	i.list, i.since = append(i.list, c), append(i.since, now)
}

func (i *idleClasses) remove(c *publishedClass) {
	if at := slices.Index(i.list, c); at >= 0 {
		i.list, i.since = slices.Delete(i.list, at, at+1), slices.Delete(i.since, at, at+1)
	}
}

// excess is the class that is to be dropped next, where the layers that only idle classes have are of
// that many bytes; nil if all are within the limits.
func (i *idleClasses) excess(bytes int, now time.Time) *publishedClass {
	if len(i.list) > 0 && (len(i.list) > i.limits.classes || bytes > i.limits.bytes || !now.Before(i.until())) {
		return i.list[0]
	}
	return nil
}

// until is when the first class reaches the limit of age; zero if there is none.
func (i *idleClasses) until() time.Time {
	if len(i.list) == 0 {
		return time.Time{}
	}
	return i.since[0].Add(i.limits.age)
}
