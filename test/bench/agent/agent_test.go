// Package agent measures what the agent costs a Pod: memory, and time at the start.
//
// It runs the program as it is built for use, with a real Envoy. Nothing here passes or fails by a figure.
package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

const (
	// quiet is how long an agent is left alone before its memory counts, and idle how long
	// its wakes are counted.
	quiet = 6 * time.Second
	idle  = 10 * time.Second
)

// BenchmarkAgent starts the built agent with a real Envoy and an idle control plane. It
// reports the milliseconds from the agent's exec to Envoy's and to the first ready
// answer, how often the idle agent wakes, and what it holds in memory: what its control
// group is charged with, which a node pays, and the anonymous part of that; and, to compare
// with other programs, its resident set, in which pages that all agents of a node share
// count once for each.
func BenchmarkAgent(b *testing.B) {
	defer agenttest.Cleanup()
	plane := agenttest.NewPlane(b)
	plane.Start()
	agenttest.Binary(b)
	group := newGroup(b)
	var exec, ready, current, anonymous, rss, wakes float64
	for b.Loop() {
		a := agenttest.New(b, plane, "binaryPath: "+outside(b, group))
		group.hold(a.Cmd)
		a.Start()
		exec += untilEnvoy(b, a).Seconds()
		agenttest.Until(b, "the proxy is ready", func() error {
			code, body, err := a.Get(a.Status, "/healthz/ready")
			if err == nil && code != 200 {
				err = errors.New(body)
			}
			return err
		})
		ready += time.Since(a.Started).Seconds()
		<-time.After(quiet)
		before, err1 := a.Wakes()
		<-time.After(idle)
		after, err2 := a.Wakes()
		c, n, err3 := group.charged()
		r, err4 := resident(a.Cmd.Process.Pid)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			b.Fatal(err)
		}
		current, anonymous, rss, wakes = current+c, anonymous+n, rss+r, wakes+float64(after-before)/idle.Seconds()
		a.Stop()
	}
	n := float64(b.N)
	b.ReportMetric(exec/n*1e3, "exec-ms")
	b.ReportMetric(ready/n*1e3, "ready-ms")
	b.ReportMetric(current/n, "current-MB")
	b.ReportMetric(anonymous/n, "anonymous-MB")
	b.ReportMetric(rss/n, "rss-MB")
	b.ReportMetric(wakes/n, "wakes/s")
	b.ReportMetric(0, "ns/op")
}

// untilEnvoy looks for Envoy more often than agenttest.Until does: what is measured is
// shorter. Not without a pause, which would take a CPU from what is measured.
func untilEnvoy(b *testing.B, a *agenttest.Process) time.Duration {
	b.Helper()
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		if _, err := a.Envoy(); err == nil {
			return time.Since(a.Started)
		}
		if time.Since(a.Started) > agenttest.Bound {
			b.Fatal("no Envoy")
		}
		<-tick.C
	}
}

// resident reads a process's resident memory, in MB (of 1024 kB).
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Rss:" {
			n, err := strconv.ParseFloat(f[1], 64)
			return n / 1024, err
		}
	}
	return 0, errors.New("no resident set in smaps_rollup")
}
