package vm

import (
	"fmt"
	"strings"
)

// Unit is the text of the unit of systemd. program is the absolute path of pilot-agent. [agent V2]
func Unit(program string) string {
	return fmt.Sprintf(`# The proxy of this machine in the service mesh. pilot-agent join configures it, pilot-agent leave removes it.
[Unit]
Description=Service mesh proxy (pilot-agent and Envoy)
Documentation=man:pilot-agent(1)
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
# It captures traffic as root, and then runs the proxy as the user istio-proxy.
ExecStart=%[1]s start
# Connections of the machine work without the proxy when it is not running.
ExecStopPost=%[1]s start clean
WorkingDirectory=/
Restart=always
RestartSec=10
# The agent drains and ends Envoy itself; only what is left is killed.
KillMode=mixed
TimeoutStopSec=30
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
`, program)
}

// Script is the text of a script that starts the proxy where there is no systemd. root is the machine's root, / or a folder.
func Script(program, root string) string {
	more := ""
	if root != "/" {
		more = " --root '" + strings.ReplaceAll(root, "'", `'\''`) + "'"
	}
	return fmt.Sprintf(`#!/bin/sh
# Starts the proxy of this machine in the service mesh, and ends with it. Call it as root when the machine
# starts, from whatever starts services here, and start it again when it ends.
# When it has ended for good, "%[1]s start clean%[2]s" removes the capture of connections.
exec %[1]s start%[2]s "$@"
`, program, more)
}
