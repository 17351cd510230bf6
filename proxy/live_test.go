package proxy_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/proxy"
)

// tells is a stage that can tell when an epoch is live: when the test says so.
type tells struct {
	*stage
	live chan error
}

func (p *tells) Live(ctx context.Context, number int) error {
	select {
	case err := <-p.live:
		p.note("live %d", number)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func playLive(t *testing.T, retry proxy.Retry, scene func(s *stage, live chan error)) {
	t.Helper()
	var p *tells
	play(t, func(s *stage) proxy.Proxy {
		p = &tells{s, make(chan error)}
		return p
	}, retry, nil, func(s *stage) { scene(s, p.live) })
}

func TestTheNextEpochWaitsUntilTheOneBeforeIsLive(t *testing.T) {
	playLive(t, proxy.DefaultRetry, func(s *stage, live chan error) {
		s.agent.Restart("a")
		s.wants("run 0 a")
		s.agent.ScheduleConfigUpdate("b")
		restarted := make(chan struct{})
		go func() {
			s.agent.Restart("c")
			close(restarted)
		}()
		s.wants() // and the newest wins
		select {
		case <-restarted:
			t.Error("Restart has returned before its epoch was started")
		default:
		}
		live <- nil
		s.wants("live 0", "run 1 c")
		<-restarted
		live <- nil
		s.agent.ScheduleConfigUpdate("d")
		s.wants("live 1") // two at most
		s.end(0, nil)
		s.wants("cleanup 0", "run 2 d")
	})
}

func TestAnExitEndsTheWaitForLive(t *testing.T) {
	playLive(t, proxy.DefaultRetry, func(s *stage, _ chan error) {
		s.agent.Restart("a")
		s.wants("run 0 a")
		s.agent.ScheduleConfigUpdate("b")
		s.wants()
		s.end(0, errFailed)
		s.wants("cleanup 0", "run 0 b")
	})
}

func TestAFailedChildLeavesTheOneThatServes(t *testing.T) {
	playLive(t, proxy.Retry{MaxRetries: 1, InitialInterval: time.Second}, func(s *stage, live chan error) {
		s.agent.Restart("a")
		synctest.Wait()
		live <- nil
		s.agent.Restart("b")
		s.wants("run 0 a", "live 0", "run 1 b")
		s.end(1, errFailed)
		s.later(time.Second)
		s.wants("cleanup 1", "run 1 b")
		s.end(1, errFailed)
		s.wants("cleanup 1", "panic b")
		s.agent.Restart("b") // the same one: nothing to wait for
		s.later(time.Hour)
		s.wants()
		s.agent.Restart("c")
		s.wants("run 1 c")
	})
}

func TestAChildThatIsNeverLiveIsGivenUp(t *testing.T) {
	playLive(t, proxy.DefaultRetry, func(s *stage, live chan error) {
		s.agent.Restart("a")
		synctest.Wait()
		live <- nil
		s.agent.Restart("b")
		synctest.Wait()
		live <- errors.New("cannot tell")
		s.wants("run 0 a", "live 0", "run 1 b", "live 1")
		s.later(20*time.Second - 1)
		s.wants()
		s.later(1)
		s.wants("cleanup 1")
		s.later(200 * time.Millisecond)
		s.wants("run 1 b")
	})
}
