package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// An agent without events wakes about once a second, for the poll of its
// files. Each wake costs the Go runtime some switches between its threads, more on a busy machine; a timer of
// 100 ms alone made more than 40 a second.
func TestIdleAgentRarelyWakes(t *testing.T) {
	const seconds, most = 10, 20 // most is per second
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	// It gives memory back some seconds after its start, and while it waits for a processor of a busy machine the Go runtime
	// wakes up to 100 times a second: one quiet stretch is enough to show that no timer runs more often.
	const stretches = 30
	var err error
	for range stretches {
		if err = idle(a, seconds*time.Second, seconds*most); err == nil {
			return
		}
	}
	t.Errorf("an idle agent, in each of %d stretches: %v", stretches, err)
}

// idle fails where an agent wakes more often than most in a time.
func idle(a *agenttest.Process, length time.Duration, most int) error {
	before, err := a.Wakes()
	if err != nil {
		return err
	}
	<-time.After(length)
	after, err := a.Wakes()
	if err != nil {
		return err
	}
	if after-before > most {
		return fmt.Errorf("%d wakes in %v, want at most %d", after-before, length, most)
	}
	return nil
}
