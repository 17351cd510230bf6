// Package cgroup reads statistics and limits of this process's control group, in version 1 and 2.
//
// Every call reads the files again. Files that cannot be read mean that a value is unknown, which is not an error.
package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// OOMKills returns the number of processes of this control group that the kernel has killed because memory
// ran out; ok is false if it is unknown.
func OOMKills() (n int64, ok bool) { return oomKills(cgroupRoot, ownCgroups()) }

// CPULimit returns the number of CPUs that the control group may use, rounded up; 0 if there is no limit or it is unknown.
func CPULimit() int { return cpuLimit(cgroupRoot, ownCgroups()) }

// MemoryLimit returns the limit of memory of the control group, in bytes; 0 if there is no limit or it is unknown.
func MemoryLimit() int64 { return memoryLimit(cgroupRoot, ownCgroups()) }

// ownCgroups are this process's groups by controller; "" is the unified hierarchy's.
func ownCgroups() map[string]string {
	text, _ := os.ReadFile("/proc/self/cgroup") // without it nothing is known
	return parseCgroups(string(text))
}

// parseCgroups reads lines of "number:controller,controller:/path".
func parseCgroups(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			out[controller] = fields[2]
		}
	}
	return out
}

// readCgroup reads a file of a group. In a container the path may be the host's, and what is
// mounted is the group itself.
func readCgroup(root, mount, group, file string) (string, bool) {
	for _, path := range []string{filepath.Join(root, mount, group, file), filepath.Join(root, mount, file)} {
		if text, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(text)), true
		}
	}
	return "", false
}

func oomKills(root string, groups map[string]string) (int64, bool) {
	text, ok := readCgroup(root, "", groups[""], "memory.events")
	if !ok {
		if text, ok = readCgroup(root, "memory", groups["memory"], "memory.oom_control"); !ok {
			return 0, false
		}
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(value, 10, 64); name == "oom_kill" && err == nil {
			return n, true
		}
	}
	return 0, false
}

func cpuLimit(root string, groups map[string]string) int {
	quota, period := "", ""
	if text, ok := readCgroup(root, "", groups[""], "cpu.max"); ok {
		quota, period, _ = strings.Cut(text, " ")
	} else {
		quota, _ = readCgroup(root, "cpu", groups["cpu"], "cpu.cfs_quota_us")
		period, _ = readCgroup(root, "cpu", groups["cpu"], "cpu.cfs_period_us")
	}
	q, errQ := strconv.ParseFloat(quota, 64)
	p, errP := strconv.ParseFloat(period, 64)
	if errQ != nil || errP != nil || q <= 0 || p <= 0 {
		return 0
	}
	return int(math.Ceil(q / p))
}

func memoryLimit(root string, groups map[string]string) int64 {
	text, ok := readCgroup(root, "", groups[""], "memory.max")
	if !ok {
		text, ok = readCgroup(root, "memory", groups["memory"], "memory.limit_in_bytes")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	// Version 1 has a number for no limit that depends on the size of a page.
	if !ok || err != nil || n <= 0 || n >= 1<<62 {
		return 0
	}
	return n
}
