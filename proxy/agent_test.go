package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pilothouse/pilothouse/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a Proxy whose epochs do what the test says, and a record of what happened.
type stage struct {
	t       *testing.T
	agent   proxy.Agent
	cancel  func()
	ended   chan error
	mu      sync.Mutex
	record  []string
	running map[int]chan error // what a running epoch is told to end with
	stuck   map[int]bool       // epochs that ignore their abort
}

func (s *stage) Run(config any, number int, abort <-chan error) error {
	end := make(chan error)
	s.mu.Lock()
	s.running[number] = end
	ignores := s.stuck[number]
	s.mu.Unlock()
	s.note("run %d %v", number, config)
	for {
		select {
		case err := <-end:
			return err
		case err := <-abort:
			if !ignores {
				return err
			}
			s.note("ignored %d", number)
		}
	}
}

func (s *stage) Cleanup(number int) { s.note("cleanup %d", number) }
func (s *stage) Panic(config any)   { s.note("panic %v", config) }

func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = append(s.record, fmt.Sprintf(format, args...))
}

// end ends an epoch, and waits until everything has come to rest again.
func (s *stage) end(number int, err error) {
	s.mu.Lock()
	c := s.running[number]
	s.mu.Unlock()
	c <- err
	synctest.Wait()
}

// unordered as the first thing wanted says that the order is nobody's promise.
const unordered = "in any order"

// wants compares what happened since the last call.
func (s *stage) wants(want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(want) > 0 && want[0] == unordered {
		want = slices.Sorted(slices.Values(want[1:]))
		slices.Sort(s.record)
	}
	if !slices.Equal(s.record, want) {
		s.t.Fatalf("happened:\n  %s\nwant:\n  %s", strings.Join(s.record, "\n  "), strings.Join(want, "\n  "))
	}
	s.record = nil
}

// later lets time pass.
func (s *stage) later(d time.Duration) {
	s.t.Helper()
	<-time.After(d)
	synctest.Wait()
}

// done waits for the end of Run.
func (s *stage) done() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(time.Hour):
		s.t.Fatal("Run has not returned")
		return nil
	}
}

// play runs a scene in a bubble of its own time.
func play(t *testing.T, of func(*stage) proxy.Proxy, retry proxy.Retry, options []proxy.Option, scene func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &stage{t: t, cancel: cancel, ended: make(chan error, 1), running: map[int]chan error{}, stuck: map[int]bool{}}
		s.agent = proxy.NewAgent(of(s), retry, options...)
		go func() {
			s.agent.Run(ctx)
			s.ended <- s.agent.Err()
		}()
		scene(s)
		cancel()
	})
}

func plain(s *stage) proxy.Proxy { return s }

var errFailed = errors.New("it broke")

func TestStartAndCleanEndOfRun(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, nil, func(s *stage) {
		s.agent.ScheduleConfigUpdate("a")
		s.wants("run 0 a")
		s.end(0, nil)
		s.wants("cleanup 0")
		s.later(time.Hour)
		s.wants() // what has ended well is not started again
		s.agent.ScheduleConfigUpdate("b")
		s.wants("run 0 b")
		s.end(0, nil)
		s.cancel()
		if err := s.done(); err != nil {
			t.Error(err)
		}
		s.agent.ScheduleConfigUpdate("nobody takes it")
		s.agent.Restart("nor that")
	})
}

func TestCancellationWithEpochsRunning(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, nil, func(s *stage) {
		s.agent.ScheduleConfigUpdate("a")
		s.wants("run 0 a")
		s.agent.ScheduleConfigUpdate("b")
		s.wants("run 1 b")
		began := time.Now()
		s.cancel()
		if err := s.done(); err != nil || time.Since(began) != 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		s.wants(unordered, "cleanup 0", "cleanup 1")
	})
}

func TestCancellationDoesNotWaitForEver(t *testing.T) {
	for grace, options := range map[time.Duration][]proxy.Option{
		time.Second:     nil,
		3 * time.Second: {proxy.WithGrace(3 * time.Second)},
		0:               {proxy.WithGrace(0)},
	} {
		play(t, plain, proxy.DefaultRetry, options, func(s *stage) {
			s.stuck[0] = true
			s.agent.ScheduleConfigUpdate("a")
			s.wants("run 0 a")
			began := time.Now()
			s.cancel()
			if err := s.done(); err != nil || time.Since(began) != grace {
				t.Errorf("got %v after %v, want %v", err, time.Since(began), grace)
			}
			s.wants("ignored 0")
			s.end(0, nil)
		})
	}
}

func TestApplyTwice(t *testing.T) {
	type config struct{ Names []string }
	play(t, plain, proxy.DefaultRetry, nil, func(s *stage) {
		s.agent.ScheduleConfigUpdate(config{[]string{"a"}})
		s.agent.ConfigCh() <- config{[]string{"a"}}
		s.agent.Restart(config{[]string{"a"}})
		s.wants("run 0 {[a]}")
		s.agent.ConfigCh() <- config{[]string{"b"}}
		s.wants("run 1 {[b]}")
	})
}

func TestApplyThrice(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, nil, func(s *stage) {
		for _, config := range []string{"a", "b", "a"} {
			s.agent.Restart(config)
			synctest.Wait()
		}
		s.wants("run 0 a", "run 1 b", "run 2 a")
		s.end(0, nil)
		s.end(1, nil)
		s.agent.Restart("c")
		s.wants("cleanup 0", "cleanup 1", "run 3 c")
	})
}

var abortAll = []proxy.Option{proxy.WithAbortAll()}

// The epoch that serves goes on, and the number of the failed one is used again.
func TestAFailedStartLeavesTheOthersAlone(t *testing.T) {
	play(t, plain, proxy.Retry{MaxRetries: 2, InitialInterval: time.Second}, nil, func(s *stage) {
		s.agent.Restart("a")
		synctest.Wait()
		s.agent.Restart("b")
		s.wants("run 0 a", "run 1 b")
		s.end(1, errFailed)
		s.wants("cleanup 1")
		s.later(time.Second)
		s.wants("run 1 b")
		s.end(1, errFailed)
		s.later(2 * time.Second)
		s.wants("cleanup 1", "run 1 b")
		s.end(1, errFailed)
		s.wants("cleanup 1", "panic b")
		s.later(time.Hour)
		s.wants() // 0 serves on
		s.agent.Restart("c")
		s.wants("run 1 c")
		s.end(0, errFailed) // an older epoch that fails in the end had nothing left to do
		s.later(time.Hour)
		s.wants("cleanup 0")
		if err := s.agent.Err(); err != nil {
			t.Errorf("Err is %v while the agent runs", err)
		}
	})
}

func TestAbort(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, abortAll, func(s *stage) {
		for _, config := range []string{"a", "b", "c"} {
			s.agent.Restart(config)
			synctest.Wait()
		}
		s.wants("run 0 a", "run 1 b", "run 2 c")
		s.end(2, errFailed)
		s.wants(unordered, "cleanup 0", "cleanup 1", "cleanup 2")
		s.later(199 * time.Millisecond)
		s.wants()
		s.later(time.Millisecond)
		s.wants("run 0 c")
	})
}

func TestAnIgnoredAbortHoldsNothingUp(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, abortAll, func(s *stage) {
		s.stuck[0] = true
		s.agent.Restart("a")
		synctest.Wait()
		s.agent.Restart("b")
		s.wants("run 0 a", "run 1 b")
		s.end(1, errFailed)
		s.agent.Restart("c")
		s.wants(unordered, "cleanup 1", "ignored 0", "run 1 c")
		for i := range 2 * proxy.MaxAborts {
			s.end(1, errFailed)
			s.agent.Restart(i) // one above the one that goes on
			s.wants("cleanup 1", fmt.Sprintf("run 1 %d", i))
		}
		s.end(0, nil)
		s.wants("cleanup 0")
	})
}

func TestStartFails(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, nil, func(s *stage) {
		s.agent.ScheduleConfigUpdate("a")
		delay := 200 * time.Millisecond
		for range 10 {
			s.wants("run 0 a")
			s.end(0, errFailed)
			s.wants("cleanup 0")
			s.later(delay - 1)
			s.wants()
			s.later(1)
			delay *= 2
		}
		s.wants("run 0 a")
	})
}

func TestExceededBudget(t *testing.T) {
	play(t, plain, proxy.Retry{MaxRetries: 1, InitialInterval: time.Second}, nil, func(s *stage) {
		s.agent.ScheduleConfigUpdate("a")
		s.wants("run 0 a")
		s.end(0, errFailed)
		s.later(time.Second)
		s.wants("cleanup 0", "run 0 a")
		s.end(0, errFailed)
		s.wants("cleanup 0", "panic a")
		var given *proxy.GivenUpError
		if err := s.done(); !errors.As(err, &given) || given.Config != "a" || !errors.Is(err, errFailed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRecovery(t *testing.T) {
	play(t, plain, proxy.Retry{MaxRetries: 1, InitialInterval: time.Second}, nil, func(s *stage) {
		s.agent.ScheduleConfigUpdate("a")
		s.wants("run 0 a")
		s.end(0, errFailed)
		s.wants("cleanup 0")
		s.agent.ScheduleConfigUpdate("b") // another one waits for nothing, and has a budget of its own
		s.wants("run 0 b")
		s.end(0, errFailed)
		s.later(time.Second)
		s.wants("cleanup 0", "run 0 b")
		s.later(time.Hour)
		s.wants()
	})
}

func TestCascadingAbort(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, abortAll, func(s *stage) {
		for _, config := range []string{"a", "b", "c"} {
			s.agent.Restart(config)
			synctest.Wait()
		}
		s.wants("run 0 a", "run 1 b", "run 2 c")
		s.end(0, errFailed) // the oldest, while the newest is what is desired
		s.wants(unordered, "cleanup 0", "cleanup 1", "cleanup 2")
		s.later(200 * time.Millisecond)
		s.wants("run 0 c")
	})
}

func TestNoLockUpAfterACascadingAbort(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, abortAll, func(s *stage) {
		s.agent.Restart("a")
		synctest.Wait()
		s.agent.Restart("b")
		s.wants("run 0 a", "run 1 b")
		s.end(0, errFailed)
		s.wants("cleanup 0", "cleanup 1")
		s.later(time.Minute)
		s.wants("run 0 b")
	})
}

func TestCleanupRunsInTheControlLoopBeforeTheNumberIsUsedAgain(t *testing.T) {
	var cleaned []int // no lock: the race detector sees if another goroutine calls
	count := func(s *stage) proxy.Proxy {
		return proxy.ProxyFuncs{RunFunc: s.Run, CleanupFunc: func(n int) { cleaned = append(cleaned, n) }, PanicFunc: func(any) { cleaned = append(cleaned, -1) }}
	}
	play(t, count, proxy.Retry{}, nil, func(s *stage) {
		s.agent.Restart("a")
		s.wants("run 0 a")
		s.end(0, nil)
		s.agent.Restart("b")
		s.wants("run 0 b")
		s.end(0, errFailed)
		if err := s.done(); err == nil || !slices.Equal(cleaned, []int{0, 0, -1}) {
			t.Errorf("called %v, Run returned %v", cleaned, err)
		}
	})
}

func TestDrainByOneMoreEpoch(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, []proxy.Option{proxy.WithDrain(5 * time.Second)}, func(s *stage) {
		s.agent.Restart("a")
		s.wants("run 0 a")
		began := time.Now()
		s.cancel()
		s.wants("run 1 {}")
		s.later(4 * time.Second)
		s.wants()
		if err := s.done(); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestQuitCutsADrainShort(t *testing.T) {
	play(t, plain, proxy.DefaultRetry, []proxy.Option{proxy.WithDrain(time.Hour)}, func(s *stage) {
		s.agent.Restart("a")
		s.wants("run 0 a")
		began := time.Now()
		s.cancel()
		s.wants("run 1 {}")
		s.agent.Quit()
		if err := s.done(); err != nil || time.Since(began) != 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		s.agent.Quit() // does nothing, and waits for nobody
	})
}
