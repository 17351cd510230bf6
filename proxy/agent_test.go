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

// harness is a Proxy whose epochs are controlled by the test, and a log of its calls.
type harness struct {
	t       *testing.T
	agent   proxy.Agent
	cancel  func()
	ended   chan error
	mu      sync.Mutex
	record  []string
	running map[int]chan error // what Run of a running epoch returns
	stuck   map[int]bool       // epochs that ignore their abort
}

func (s *harness) Run(config any, number int, abort <-chan error) error {
	end := make(chan error)
	s.mu.Lock()
	s.running[number] = end
	ignores := s.stuck[number]
	s.mu.Unlock()
	s.log("run %d %v", number, config)
	for {
		select {
		case err := <-end:
			return err
		case err := <-abort:
			if !ignores {
				return err
			}
			s.log("ignored %d", number)
		}
	}
}

func (s *harness) Cleanup(number int) { s.log("cleanup %d", number) }
func (s *harness) Panic(config any)   { s.log("panic %v", config) }

func (s *harness) log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = append(s.record, fmt.Sprintf(format, args...))
}

// end ends an epoch, and waits until all goroutines are blocked.
func (s *harness) end(number int, err error) {
	s.mu.Lock()
	c := s.running[number]
	s.mu.Unlock()
	c <- err
	synctest.Wait()
}

// unordered, as the first argument of expect, ignores the order.
const unordered = "in any order"

// expect compares the log since the last call.
func (s *harness) expect(want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(want) > 0 && want[0] == unordered {
		want = slices.Sorted(slices.Values(want[1:]))
		slices.Sort(s.record)
	}
	if !slices.Equal(s.record, want) {
		s.t.Fatalf("got:\n  %s\nwant:\n  %s", strings.Join(s.record, "\n  "), strings.Join(want, "\n  "))
	}
	s.record = nil
}

// sleep advances the fake time.
func (s *harness) sleep(d time.Duration) {
	s.t.Helper()
	<-time.After(d)
	synctest.Wait()
}

// done waits until Run returns.
func (s *harness) done() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(time.Hour):
		s.t.Fatal("Run has not returned")
		return nil
	}
}

// run calls test with a running agent, in a synctest bubble.
func run(t *testing.T, of func(*harness) proxy.Proxy, retry proxy.Retry, options []proxy.Option, test func(s *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &harness{t: t, cancel: cancel, ended: make(chan error, 1), running: map[int]chan error{}, stuck: map[int]bool{}}
		s.agent = proxy.NewAgent(of(s), retry, options...)
		go func() {
			s.agent.Run(ctx)
			s.ended <- s.agent.Err()
		}()
		test(s)
		cancel()
	})
}

func newProxy(s *harness) proxy.Proxy { return s }

var errFailed = errors.New("failed")

func TestStartAndStop(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, nil, func(s *harness) {
		s.agent.ScheduleConfigUpdate("a")
		s.expect("run 0 a")
		s.end(0, nil)
		s.expect("cleanup 0")
		s.sleep(time.Hour)
		s.expect() // an epoch that returned nil is not restarted
		s.agent.ScheduleConfigUpdate("b")
		s.expect("run 0 b")
		s.end(0, nil)
		s.cancel()
		if err := s.done(); err != nil {
			t.Error(err)
		}
		s.agent.ScheduleConfigUpdate("ignored")
		s.agent.Restart("ignored")
	})
}

func TestCancellationWithEpochsRunning(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, nil, func(s *harness) {
		s.agent.ScheduleConfigUpdate("a")
		s.expect("run 0 a")
		s.agent.ScheduleConfigUpdate("b")
		s.expect("run 1 b")
		began := time.Now()
		s.cancel()
		if err := s.done(); err != nil || time.Since(began) != 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		s.expect(unordered, "cleanup 0", "cleanup 1")
	})
}

func TestCancellationWaitIsBounded(t *testing.T) {
	for grace, options := range map[time.Duration][]proxy.Option{
		time.Second:     nil,
		3 * time.Second: {proxy.WithGrace(3 * time.Second)},
		0:               {proxy.WithGrace(0)},
	} {
		run(t, newProxy, proxy.DefaultRetry, options, func(s *harness) {
			s.stuck[0] = true
			s.agent.ScheduleConfigUpdate("a")
			s.expect("run 0 a")
			began := time.Now()
			s.cancel()
			if err := s.done(); err != nil || time.Since(began) != grace {
				t.Errorf("got %v after %v, want %v", err, time.Since(began), grace)
			}
			s.expect("ignored 0")
			s.end(0, nil)
		})
	}
}

func TestApplyTwice(t *testing.T) {
	type config struct{ Names []string }
	run(t, newProxy, proxy.DefaultRetry, nil, func(s *harness) {
		s.agent.ScheduleConfigUpdate(config{[]string{"a"}})
		s.agent.ConfigCh() <- config{[]string{"a"}}
		s.agent.Restart(config{[]string{"a"}})
		s.expect("run 0 {[a]}")
		s.agent.ConfigCh() <- config{[]string{"b"}}
		s.expect("run 1 {[b]}")
	})
}

func TestApplyThrice(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, nil, func(s *harness) {
		for _, config := range []string{"a", "b", "a"} {
			s.agent.Restart(config)
			synctest.Wait()
		}
		s.expect("run 0 a", "run 1 b", "run 2 a")
		s.end(0, nil)
		s.end(1, nil)
		s.agent.Restart("c")
		s.expect("cleanup 0", "cleanup 1", "run 3 c")
	})
}

var abortAll = []proxy.Option{proxy.WithAbortAll()}

// The other epochs keep running, and the number of the failed one is used again.
func TestAFailedStartLeavesTheOthersAlone(t *testing.T) {
	run(t, newProxy, proxy.Retry{MaxRetries: 2, InitialInterval: time.Second}, nil, func(s *harness) {
		s.agent.Restart("a")
		synctest.Wait()
		s.agent.Restart("b")
		s.expect("run 0 a", "run 1 b")
		s.end(1, errFailed)
		s.expect("cleanup 1")
		s.sleep(time.Second)
		s.expect("run 1 b")
		s.end(1, errFailed)
		s.sleep(2 * time.Second)
		s.expect("cleanup 1", "run 1 b")
		s.end(1, errFailed)
		s.expect("cleanup 1", "panic b")
		s.sleep(time.Hour)
		s.expect() // 0 keeps running
		s.agent.Restart("c")
		s.expect("run 1 c")
		s.end(0, errFailed) // the failure of an older epoch does not matter
		s.sleep(time.Hour)
		s.expect("cleanup 0")
		if err := s.agent.Err(); err != nil {
			t.Errorf("Err is %v while the agent runs", err)
		}
	})
}

func TestAbort(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, abortAll, func(s *harness) {
		for _, config := range []string{"a", "b", "c"} {
			s.agent.Restart(config)
			synctest.Wait()
		}
		s.expect("run 0 a", "run 1 b", "run 2 c")
		s.end(2, errFailed)
		s.expect(unordered, "cleanup 0", "cleanup 1", "cleanup 2")
		s.sleep(199 * time.Millisecond)
		s.expect()
		s.sleep(time.Millisecond)
		s.expect("run 0 c")
	})
}

func TestAnIgnoredAbortDelaysNothing(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, abortAll, func(s *harness) {
		s.stuck[0] = true
		s.agent.Restart("a")
		synctest.Wait()
		s.agent.Restart("b")
		s.expect("run 0 a", "run 1 b")
		s.end(1, errFailed)
		s.agent.Restart("c")
		s.expect(unordered, "cleanup 1", "ignored 0", "run 1 c")
		for i := range 2 * proxy.MaxAborts {
			s.end(1, errFailed)
			s.agent.Restart(i) // one above the epoch that is still running
			s.expect("cleanup 1", fmt.Sprintf("run 1 %d", i))
		}
		s.end(0, nil)
		s.expect("cleanup 0")
	})
}

func TestStartFails(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, nil, func(s *harness) {
		s.agent.ScheduleConfigUpdate("a")
		delay := 200 * time.Millisecond
		for range 10 {
			s.expect("run 0 a")
			s.end(0, errFailed)
			s.expect("cleanup 0")
			s.sleep(delay - 1)
			s.expect()
			s.sleep(1)
			delay *= 2
		}
		s.expect("run 0 a")
	})
}

func TestExceededBudget(t *testing.T) {
	run(t, newProxy, proxy.Retry{MaxRetries: 1, InitialInterval: time.Second}, nil, func(s *harness) {
		s.agent.ScheduleConfigUpdate("a")
		s.expect("run 0 a")
		s.end(0, errFailed)
		s.sleep(time.Second)
		s.expect("cleanup 0", "run 0 a")
		s.end(0, errFailed)
		s.expect("cleanup 0", "panic a")
		var given *proxy.GivenUpError
		if err := s.done(); !errors.As(err, &given) || given.Config != "a" || !errors.Is(err, errFailed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRecovery(t *testing.T) {
	run(t, newProxy, proxy.Retry{MaxRetries: 1, InitialInterval: time.Second}, nil, func(s *harness) {
		s.agent.ScheduleConfigUpdate("a")
		s.expect("run 0 a")
		s.end(0, errFailed)
		s.expect("cleanup 0")
		s.agent.ScheduleConfigUpdate("b") // another configuration starts at once, with its own budget
		s.expect("run 0 b")
		s.end(0, errFailed)
		s.sleep(time.Second)
		s.expect("cleanup 0", "run 0 b")
		s.sleep(time.Hour)
		s.expect()
	})
}

func TestCascadingAbort(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, abortAll, func(s *harness) {
		for _, config := range []string{"a", "b", "c"} {
			s.agent.Restart(config)
			synctest.Wait()
		}
		s.expect("run 0 a", "run 1 b", "run 2 c")
		s.end(0, errFailed) // the oldest, while the newest is desired
		s.expect(unordered, "cleanup 0", "cleanup 1", "cleanup 2")
		s.sleep(200 * time.Millisecond)
		s.expect("run 0 c")
	})
}

func TestNoLockUpAfterACascadingAbort(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, abortAll, func(s *harness) {
		s.agent.Restart("a")
		synctest.Wait()
		s.agent.Restart("b")
		s.expect("run 0 a", "run 1 b")
		s.end(0, errFailed)
		s.expect("cleanup 0", "cleanup 1")
		s.sleep(time.Minute)
		s.expect("run 0 b")
	})
}

func TestCleanupRunsInTheControlLoopBeforeTheNumberIsUsedAgain(t *testing.T) {
	var cleaned []int // without a lock, so that the race detector finds calls of other goroutines
	count := func(s *harness) proxy.Proxy {
		return proxy.ProxyFuncs{RunFunc: s.Run, CleanupFunc: func(n int) { cleaned = append(cleaned, n) }, PanicFunc: func(any) { cleaned = append(cleaned, -1) }}
	}
	run(t, count, proxy.Retry{}, nil, func(s *harness) {
		s.agent.Restart("a")
		s.expect("run 0 a")
		s.end(0, nil)
		s.agent.Restart("b")
		s.expect("run 0 b")
		s.end(0, errFailed)
		if err := s.done(); err == nil || !slices.Equal(cleaned, []int{0, 0, -1}) {
			t.Errorf("called %v, Run returned %v", cleaned, err)
		}
	})
}

func TestDrainEpoch(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, []proxy.Option{proxy.WithDrain(5 * time.Second)}, func(s *harness) {
		s.agent.Restart("a")
		s.expect("run 0 a")
		began := time.Now()
		s.cancel()
		s.expect("run 1 {}")
		s.sleep(4 * time.Second)
		s.expect()
		if err := s.done(); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestQuitEndsADrain(t *testing.T) {
	run(t, newProxy, proxy.DefaultRetry, []proxy.Option{proxy.WithDrain(time.Hour)}, func(s *harness) {
		s.agent.Restart("a")
		s.expect("run 0 a")
		began := time.Now()
		s.cancel()
		s.expect("run 1 {}")
		s.agent.Quit()
		if err := s.done(); err != nil || time.Since(began) != 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		s.agent.Quit() // does not block
	})
}
