package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// restarts is the number of processes that are killed.
const restarts = 50

// Processes of pilot-discovery are killed 50 times: one replica, the other, and every fifth time both at once, each time when
// what was killed before is ready again. No request fails, and no Envoy removes anything: no replica ever serves a part of
// the configuration. All changes that were made meanwhile arrive.
func TestRestarts(t *testing.T) {
	s := start(t)
	l := s.load(t)
	stopEdits := s.edit(t)
	all := s.two(t)
	began := time.Now()
	for n := 0; n < restarts; {
		which := all[n%2 : n%2+1]
		if n%10 == 8 {
			which = all[:]
		}
		before := map[string]int{}
		for _, r := range which {
			before[r.name] = r.pid()
			r.kill(t)
		}
		for _, r := range which {
			until(t, r.name+" is ready again", func(ctx context.Context) error {
				if pid := r.pid(); pid == 0 || pid == before[r.name] {
					return errors.New("its process has not ended")
				}
				status, text, err := r.get(ctx, 8080, "/ready")
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("status %d: %s", status, text)
				}
				return err
			})
		}
		n += len(which)
	}
	t.Logf("%d restarts took %v", restarts, time.Since(began).Round(time.Millisecond))
	s.settled(t)
	s.have(t, stopEdits()...)
	l.stop(t)
}

// pid is the process of a replica, 0 if there is none.
func (p pod) pid() int {
	pid, err := p.Node.PID(p.namespace, p.name, "discovery")
	if err != nil {
		return 0
	}
	return pid
}
