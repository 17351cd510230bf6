package main

import "runtime/debug"

// collectAt is the garbage collector's GOGC, in percent. Most of what a control plane has in use stays in use, so that
// collecting twice as often as by default costs little and keeps the peak within half as much again.
const collectAt = 50

// limitMemory sets the collector unless the environment does, by GOGC or GOMEMLIMIT.
func limitMemory(env map[string]string) {
	if env["GOGC"] == "" && env["GOMEMLIMIT"] == "" {
		debug.SetGCPercent(collectAt)
	}
}
