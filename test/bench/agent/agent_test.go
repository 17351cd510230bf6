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

// settled is how long an agent is left alone before its memory counts.
const settled = 6 * time.Second

// BenchmarkAgent starts the built agent with a real Envoy and an idle control plane. It
// reports the milliseconds from the agent's exec to Envoy's and to the first ready
// answer, and what the idle agent holds in memory, all of it and its anonymous part.
func BenchmarkAgent(b *testing.B) {
	defer agenttest.Cleanup()
	plane := agenttest.NewPlane(b)
	plane.Start()
	agenttest.Binary(b)
	var exec, ready, rss, anonymous float64
	for b.Loop() {
		a := agenttest.New(b, plane, "")
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
		<-time.After(settled)
		r, n, err := resident(a.Cmd.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
		rss, anonymous = rss+r, anonymous+n
		a.Stop()
	}
	n := float64(b.N)
	b.ReportMetric(exec/n*1e3, "exec-ms")
	b.ReportMetric(ready/n*1e3, "ready-ms")
	b.ReportMetric(rss/n, "rss-MB")
	b.ReportMetric(anonymous/n, "anonymous-MB")
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

// resident reads a process's resident memory and its anonymous part, in MB (of 1024 kB).
func resident(pid int) (rss, anonymous float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		n, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "Rss:":
			rss = n / 1024
		case "Anonymous:":
			anonymous = n / 1024
		}
	}
	return rss, anonymous, nil
}
