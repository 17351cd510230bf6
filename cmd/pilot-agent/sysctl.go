package main

import (
	"fmt"
	"io"
	"os"
)

// migrateRequests is this network namespace's switch for handing connections that wait on a socket
// that is closed to another one of the same port (Linux 5.14).
const migrateRequests = "/proc/sys/net/ipv4/tcp_migrate_req"

// keepWaiting has the kernel keep the connections that wait for an Envoy with fewer workers than the one it takes over from.
// It is no part of the capture, but capture has the right: without it, the agent keeps the workers.
func keepWaiting(out io.Writer) {
	if err := os.WriteFile(migrateRequests, []byte("1"), 0o644); err != nil {
		fmt.Fprintln(out, "Note: the number of Envoy's workers cannot be lowered by a hot restart here:", err)
	}
}
