package filewatch

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// FollowerOptions configure a Follower. Zero values mean the defaults.
type FollowerOptions struct {
	// Poll is the time between two polls without an inotify event; 0 means one second.
	Poll time.Duration
	// Digest is the time between two comparisons of the contents of groups that asked for it by ByContent; 0 means five seconds.
	Digest time.Duration
	// PollOnly disables inotify: for file systems without events, and for
	// tests with a fake clock.
	PollOnly bool
	// Log gets a warning if the kernel refuses a watch; nil discards it.
	Log *slog.Logger
}

// Follower watches all files of a program with one goroutine, one timer and one Notifier,
// so that an idle program wakes once per poll however many files it follows.
//
// Each user calls Follow once per group of files that belong together, receives from the
// channel that it passed, and reads the files through Set.Read where Set.Due is true:
//
//	wake := make(chan struct{}, 1)
//	set := follower.Follow(wake, paths...)
//	defer set.Close()
//	for {
//		if set.Due() {
//			err := set.Read(func() error { … })
//		}
//		select {
//		case <-ctx.Done():
//			return nil
//		case <-wake:
//		}
//	}
//
// All methods may be called by any goroutine; Run is called once.
type Follower struct {
	poll     time.Duration
	digest   time.Duration
	pollOnly bool
	log      *slog.Logger
	wake     chan struct{} // a set wants to be polled
	watched  int           // how many sets the Notifier watches the directories of; Run's alone
	tried    time.Time     // when that was last tried; Run's alone
	stat     func(path string) (Sig, error)
	refusals atomic.Uint64

	mu   sync.Mutex // guards sets and what is in them; never held during a system call
	sets map[*Set]bool
}

// NewFollower makes a Follower of no files.
func NewFollower(o FollowerOptions) *Follower {
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Digest <= 0 {
		o.Digest = 5 * time.Second
	}
	return &Follower{poll: o.Poll, digest: o.Digest, stat: Stat, pollOnly: o.PollOnly, log: o.Log, wake: make(chan struct{}, 1), sets: map[*Set]bool{}}
}

// Set is a group of files that are read together.
type Set struct {
	follower *Follower
	wake     chan<- struct{}
	state    setState
	also     func() bool
	watched  bool // the Notifier watches the directories of the present paths
	// byContent compares contents, too: contents are those that were last read, parallel to the paths, nil for
	// none, and compared is when that was last done.
	byContent bool
	contents  []digest
	compared  time.Time
}

// Follow adds a group of files, which may be missing and may be symbolic links. It is due
// at once, since nothing has been read yet. wake gets a value, if it has room for one,
// whenever the group becomes due; several groups may share a channel. A group holds
// resources until it is closed.
func (f *Follower) Follow(wake chan<- struct{}, paths ...string) *Set {
	s := &Set{follower: f, wake: wake}
	s.state.setPaths(paths)
	s.state.due = true
	f.mu.Lock()
	f.sets[s] = true
	f.mu.Unlock()
	s.notify()
	f.pollNow()
	return s
}

// Close ends the following of the group. It may be called more than once.
func (s *Set) Close() {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	delete(s.follower.sets, s)
}

// SetPaths replaces the group's paths. Where one of them is new, the group is due.
func (s *Set) SetPaths(paths ...string) {
	s.follower.mu.Lock()
	fresh := s.state.setPaths(paths)
	s.watched = false
	s.follower.mu.Unlock()
	if fresh {
		s.notify()
	}
	s.follower.pollNow()
}

// Ask makes the group due whether or not a file changed, as soon as none of them may be
// half written. It returns at once.
func (s *Set) Ask() {
	s.follower.mu.Lock()
	s.state.asked = true
	s.follower.mu.Unlock()
	s.follower.pollNow()
}

// Also has differs called at each poll, by Run's goroutine;
// where it returns true, the group becomes due as after Ask. It is for inputs that are no
// regular files, such as the limits of a control group, and must not block.
func (s *Set) Also(differs func() bool) {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	s.also = differs
}

// ByContent has the contents compared with those that were last read, every few seconds: for files that must not be missed on
// file systems whose times are coarse or missing. It costs reading the files each time.
func (s *Set) ByContent() {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	s.byContent = true
}

// Due says whether the group is to be read: a path is new, Ask was called, the last Read
// failed and a poll has passed since, or files differ from those that were last read and
// have been unchanged for a while (50 ms; DefaultQuietPeriod for those that became smaller in place).
func (s *Set) Due() bool {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	return s.state.due
}

// Read calls read, which reads the files, in the caller's goroutine. Where a file changed
// meanwhile the error is ErrMoving, what was read is not to be used, and the group is due
// again once its files are unchanged. Any other error is that of read; the group is then due
// again after a poll, changed or not, because a right to read or a directory may change
// without a trace in the file. A caller that wants no second try without a change lets
// read return nil.
//
// Read may be called when the group is not due, for one at the start. Do not call it from
// two goroutines at once.
func (s *Set) Read(read func() error) error {
	f := s.follower
	f.mu.Lock()
	s.state.begin()
	paths, byContent := s.state.paths, s.byContent
	f.mu.Unlock()
	before := f.stats(paths)
	var contents []digest
	if byContent {
		contents = digests(paths)
	}
	err := read()
	if err == nil && (!slices.Equal(before, f.stats(paths)) || byContent && !slices.Equal(contents, digests(paths))) {
		err = ErrMoving
	}
	f.mu.Lock()
	s.contents, s.compared = contents, time.Now()
	s.state.end(time.Now(), paths, before, err, f.poll)
	f.mu.Unlock()
	f.pollNow()
	return err
}

func (s *Set) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// pollNow has Run poll at once.
func (f *Follower) pollNow() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run polls the files until ctx ends, then returns nil.
func (f *Follower) Run(ctx context.Context) error {
	n := &Notifier{}
	if !f.pollOnly {
		n = NewNotifier(f.log)
		defer n.Close()
	}
	for {
		wait := f.pollAll(time.Now())
		if f.watch(n) {
			continue // what changed before the watch was there made no notice
		}
		if !n.wait(ctx, wait, f.wake) {
			return nil
		}
	}
}

// pollAll examines all files and says how long to wait for the next poll.
func (f *Follower) pollAll(now time.Time) time.Duration {
	wait := f.poll
	if len(f.all()) == 0 {
		wait = time.Hour // Follow wakes
	}
	for _, s := range f.all() {
		f.mu.Lock()
		paths, also := s.state.paths, s.also
		var contents []digest
		if s.byContent && !s.state.due && !s.state.reading && now.Sub(s.compared) >= f.digest && len(s.contents) == len(paths) {
			contents, s.compared = s.contents, now
		}
		f.mu.Unlock()
		sigs := f.stats(paths)
		differs := also != nil && also()
		differs = differs || contents != nil && !slices.Equal(contents, digests(paths))
		f.mu.Lock()
		s.state.asked = s.state.asked || differs && !s.state.due && !s.state.reading
		changed, due, next := s.state.observe(now, paths, sigs)
		s.watched = s.watched && !changed
		f.mu.Unlock()
		if due {
			s.notify()
		}
		if next > 0 {
			wait = min(wait, next)
		}
	}
	return wait
}

func (f *Follower) all() []*Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*Set, 0, len(f.sets))
	for s := range f.sets {
		out = append(out, s)
	}
	return out
}

// Refusals counts how often the kernel refused to watch a directory. Any goroutine may call it.
func (f *Follower) Refusals() uint64 { return f.refusals.Load() }

// watch has the kernel give notice where the files lie now. It says whether a directory is new.
func (f *Follower) watch(n *Notifier) bool {
	defer func() { f.refusals.Store(n.refusals) }()
	if n.watch == nil {
		return false
	}
	f.mu.Lock()
	current := len(f.sets) == f.watched
	var paths []string
	for s := range f.sets {
		current = current && s.watched
		s.watched = true
		paths = append(paths, s.state.paths...)
	}
	f.watched = len(f.sets)
	f.mu.Unlock()
	now := time.Now()
	if current && (!n.incomplete || now.Sub(f.tried) < f.poll) {
		return false
	}
	f.tried = now
	slices.Sort(paths)
	var dirs []string
	for _, path := range slices.Compact(paths) {
		real, links := Resolve(path)
		dirs = append(append(dirs, links...), filepath.Dir(real))
	}
	return n.Watch(dirs)
}

// stats are the signatures of files, the zero one for each that cannot be looked at.
func (f *Follower) stats(paths []string) []Sig {
	out := make([]Sig, len(paths))
	for i, path := range paths {
		out[i], _ = f.stat(path)
	}
	return out
}
