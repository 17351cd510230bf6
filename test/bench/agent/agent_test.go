// Package agent measures what the agent costs a Pod: memory, and time at the start.
//
// It runs the program as it is built for use, with a real Envoy. Nothing here passes or fails by a figure.
package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/agenttest"
)

const (
	// quiet is how long an agent is left alone before its memory counts, and idle how long
	// its wakes are counted.
	quiet = 6 * time.Second
	idle  = 10 * time.Second
)

// BenchmarkAgent starts the built agent with a real Envoy and an idle control plane that
// gives no configuration. It reports the milliseconds from the agent's exec to Envoy's and to
// the first ready answer, how often the idle agent wakes, and what it holds in memory: what
// its control group is charged with, which a node pays, and the anonymous part of that; and,
// to compare with other programs, its resident set, in which pages that all agents of a node
// share count once for each.
func BenchmarkAgent(b *testing.B) {
	plane := agenttest.NewPlane(b)
	plane.Start()
	measure(b, plane, nil)
}

const (
	clusters = 1000
	names    = 1000
)

// BenchmarkAgentWithEverything is BenchmarkAgent in a mesh of 1,000 services, with the parts
// of the agent that hold something in memory: each alone, and all together. The copy is that
// of what Envoy acknowledged, for which a restarted agent is measured, too; the agent
// answers DNS questions from a table of 1,000 names; and a scrape of Envoy and of an
// application comes every second, an interval shorter than those in use.
func BenchmarkAgentWithEverything(b *testing.B) {
	plane := agenttest.NewPlane(b)
	plane.Give(clusterType, staticClusters())
	plane.GiveBytes(mesh.NameTableType, "", nameTable())
	plane.Start()
	app := application(b)
	noCopy := "XDS_COPY_DIR="
	scraped := `ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","port":"` + app + `","path":"/metrics"}`
	for _, part := range []struct {
		name string
		use  use
	}{
		{"configuration", use{env: []string{noCopy}}},
		{"copy", use{}},
		{"copy-used-again", use{again: true}},
		{"dns", use{env: []string{noCopy}, dns: true}},
		{"metrics", use{env: []string{noCopy, scraped}, scrape: true}},
		{"everything", use{env: []string{scraped}, dns: true, scrape: true, again: true}},
	} {
		b.Run(part.name, func(b *testing.B) { measure(b, plane, &part.use) })
	}
}

// use is what an agent is given to do.
type use struct {
	env    []string
	dns    bool
	scrape bool
	again  bool // measure the second agent of a directory, which finds the copy of the first
}

// start starts an agent in the group.
func (u *use) start(b *testing.B, plane *agenttest.Plane, group *group, before *agenttest.Process) *agenttest.Process {
	b.Helper()
	var env []string
	if u != nil {
		env = u.env
		if u.dns {
			env = append(slices.Clone(env), "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=127.0.0.1:"+agenttest.Port(b))
		}
	}
	var a *agenttest.Process
	if before != nil {
		a = before.Again()
	} else {
		a = agenttest.New(b, plane, "binaryPath: "+outside(b, group), env...)
		group.hold(a.Cmd)
	}
	a.Start()
	return a
}

// measure runs agents, one for each iteration, and reports means. u is nil for one that only runs.
func measure(b *testing.B, plane *agenttest.Plane, u *use) {
	group := newGroup(b)
	var exec, ready, current, anonymous, rss, wakes float64
	for b.Loop() {
		a := u.start(b, plane, group, nil)
		if u != nil && u.again {
			untilReady(b, a)
			a.Stop()
			a = u.start(b, plane, group, a)
		}
		exec += untilEnvoy(b, a).Seconds()
		untilReady(b, a)
		ready += time.Since(a.Started).Seconds()
		if u != nil && u.scrape {
			for range 30 {
				if code, _, err := a.Get(a.Status, "/stats/prometheus"); err != nil || code != 200 {
					b.Fatal("scrape: ", code, err)
				}
			}
		}
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

func untilReady(b *testing.B, a *agenttest.Process) {
	b.Helper()
	agenttest.Until(b, "the proxy is ready", func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err == nil && code != 200 {
			err = errors.New(body)
		}
		return err
	})
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
