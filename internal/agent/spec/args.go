package spec

import (
	"strconv"
	"strings"
	"time"
)

// Arguments are the options on Envoy's command line. The zero value means the defaults;
// only Bootstrap is required.
type Arguments struct {
	// Bootstrap is the path of the bootstrap file (-c).
	Bootstrap string
	// Drain is how long Envoy itself drains removed listeners; in whole seconds; 0 means 45 s.
	Drain time.Duration
	// IPv6 says that the proxy's own addresses are IPv6 only.
	IPv6 bool
	// LogLevel is "level" or "level,component:level,…"; warning if it has no bare level.
	LogLevel string
	// ComponentLogLevel has further component levels ("misc:error,upstream:debug").
	ComponentLogLevel string
	// FlushInterval is the time after which buffered access logs are written, in whole milliseconds; 0 means one second.
	FlushInterval time.Duration
	// FlushKB is the minimum size in kB at which access logs are written; 0 leaves it to Envoy.
	FlushKB int
	// CoreDump lets a crash leave a core file.
	CoreDump bool
	// ShowDeprecatedLogs leaves out --skip-deprecated-logs.
	ShowDeprecatedLogs bool
	// BootstrapYAML is merged over the bootstrap (--config-yaml).
	BootstrapYAML string
	// Concurrency is the number of worker threads; 0 leaves it to Envoy (one per CPU).
	Concurrency int
	// HotRestart leaves Envoy's hot restart on; epochs and base ids are then added per start.
	HotRestart bool
	// Extra is appended unchanged.
	Extra []string
}

// List returns the command line without the program, in the order of Istio's agent [agent L1], because users grep it.
func (a Arguments) List() []string {
	drain := int(a.Drain.Seconds())
	if drain == 0 {
		drain = 45
	}
	flush := a.FlushInterval
	if flush <= 0 {
		flush = time.Second
	}
	family := "v4"
	if a.IPv6 {
		family = "v6"
	}
	out := []string{
		"-c", a.Bootstrap,
		"--drain-time-s", strconv.Itoa(drain),
		"--drain-strategy", "immediate",
		"--local-address-ip-version", family,
		"--file-flush-interval-msec", strconv.FormatInt(max(1, flush.Milliseconds()), 10),
	}
	if !a.HotRestart {
		out = append(out, "--disable-hot-restart")
	}
	out = append(out, "--allow-unknown-static-fields")
	if a.FlushKB > 0 {
		out = append(out, "--file-flush-min-size-kb", strconv.Itoa(a.FlushKB))
	}
	level, components := SplitLogLevel(a.LogLevel, a.ComponentLogLevel)
	out = append(out, "-l", level)
	if components != "" {
		out = append(out, "--component-log-level", components)
	}
	if !a.ShowDeprecatedLogs {
		out = append(out, "--skip-deprecated-logs")
	}
	if a.CoreDump {
		out = append(out, "--enable-core-dump")
	}
	if a.BootstrapYAML != "" {
		out = append(out, "--config-yaml", a.BootstrapYAML)
	}
	if a.Concurrency > 0 {
		out = append(out, "--concurrency", strconv.Itoa(a.Concurrency))
	}
	return append(out, a.Extra...)
}

// SplitLogLevel splits "level,component:level,…" and further components into the values of -l
// and --component-log-level [agent F6, F7]. The first bare level wins; warning is the default.
func SplitLogLevel(mixed, more string) (level, components string) {
	var scoped []string
	for part := range strings.SplitSeq(mixed+","+more, ",") {
		part = strings.TrimSpace(part)
		switch {
		case part == "":
		case strings.Contains(part, ":"):
			scoped = append(scoped, part)
		case level == "":
			level = part
		}
	}
	if level == "" {
		level = "warning"
	}
	return level, strings.Join(scoped, ",")
}
