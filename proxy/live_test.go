package proxy_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/proxy"
)

// liverHarness is a harness with a Live method, whose results come from the test.
type liverHarness struct {
	*harness
	live chan error
}

func (p *liverHarness) Live(ctx context.Context, number int) error {
	select {
	case err := <-p.live:
		p.log("live %d", number)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func runLive(t *testing.T, retry proxy.Retry, test func(s *harness, live chan error)) {
	t.Helper()
	var p *liverHarness
	run(t, func(s *harness) proxy.Proxy {
		p = &liverHarness{s, make(chan error)}
		return p
	}, retry, nil, func(s *harness) { test(s, p.live) })
}

func TestTheNextEpochWaitsUntilThePreviousIsLive(t *testing.T) {
	runLive(t, proxy.DefaultRetry, func(s *harness, live chan error) {
		s.agent.Restart("a")
		s.expect("run 0 a")
		s.agent.ScheduleConfigUpdate("b")
		restarted := make(chan struct{})
		go func() {
			s.agent.Restart("c")
			close(restarted)
		}()
		s.expect() // of b and c, the newest wins
		select {
		case <-restarted:
			t.Error("Restart returned before its epoch was started")
		default:
		}
		live <- nil
		s.expect("live 0", "run 1 c")
		<-restarted
		live <- nil
		s.agent.ScheduleConfigUpdate("d")
		s.expect("live 1") // at most two epochs run
		s.end(0, nil)
		s.expect("cleanup 0", "run 2 d")
	})
}

func TestAnExitEndsTheWaitForLive(t *testing.T) {
	runLive(t, proxy.DefaultRetry, func(s *harness, _ chan error) {
		s.agent.Restart("a")
		s.expect("run 0 a")
		s.agent.ScheduleConfigUpdate("b")
		s.expect()
		s.end(0, errFailed)
		s.expect("cleanup 0", "run 0 b")
	})
}

func TestAFailedChildLeavesTheLiveEpoch(t *testing.T) {
	runLive(t, proxy.Retry{MaxRetries: 1, InitialInterval: time.Second}, func(s *harness, live chan error) {
		s.agent.Restart("a")
		synctest.Wait()
		live <- nil
		s.agent.Restart("b")
		s.expect("run 0 a", "live 0", "run 1 b")
		s.end(1, errFailed)
		s.sleep(time.Second)
		s.expect("cleanup 1", "run 1 b")
		s.end(1, errFailed)
		s.expect("cleanup 1", "panic b")
		s.agent.Restart("b") // a no-op, which does not block
		s.sleep(time.Hour)
		s.expect()
		s.agent.Restart("c")
		s.expect("run 1 c")
	})
}

func TestAChildThatIsNeverLiveIsAborted(t *testing.T) {
	runLive(t, proxy.DefaultRetry, func(s *harness, live chan error) {
		s.agent.Restart("a")
		synctest.Wait()
		live <- nil
		s.agent.Restart("b")
		synctest.Wait()
		live <- errors.New("unknown")
		s.expect("run 0 a", "live 0", "run 1 b", "live 1")
		s.sleep(20*time.Second - 1)
		s.expect()
		s.sleep(1)
		s.expect("cleanup 1")
		s.sleep(200 * time.Millisecond)
		s.expect("run 1 b")
	})
}
