package xdsproxy

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// peers finds out which process a connection is of. It secures nothing.
type peers struct{}

// peerInfo is what peers finds out.
type peerInfo struct {
	credentials.CommonAuthInfo
	pid int // 0 if it is not known
}

func (peerInfo) AuthType() string { return "unix" }

func (peers) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	if u, ok := c.(*net.UnixConn); ok {
		if raw, err := u.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { // without it, the process is not known
				if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					info.pid = int(cred.Pid)
				}
			})
		}
	}
	return c, info, nil
}

func (peers) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

func (peers) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}
func (p peers) Clone() credentials.TransportCredentials {
	return p
}
func (peers) OverrideServerName(string) error { return nil }

// maxParents is how many processes may be between the agent and Envoy, such as a script that starts it.
const maxParents = 4

// maxStat bounds what the kernel says of a process, in bytes.
const maxStat = 4096

// isEnvoy reports whether a stream is of a process that this one started, or of this one. Any other process in the Pod can
// connect, too, and must not decide what is kept.
func isEnvoy(ctx context.Context) bool {
	return amongParents(ctx, func(pid int) bool { return pid == os.Getpid() })
}

// amongParents reports whether a stream's process, or one of the nearest parents that it has, is one that is sought.
func amongParents(ctx context.Context, sought func(pid int) bool) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	info, ok := p.AuthInfo.(peerInfo)
	if !ok {
		return false
	}
	pid := info.pid
	for range maxParents {
		switch {
		case pid > 0 && sought(pid):
			return true
		case pid <= 1:
			return false
		}
		pid = parent(pid)
	}
	return false
}

// parent returns the parent of a process, 0 if it is not known.
func parent(pid int) int {
	text, err := filewatch.ReadFile("/proc/"+strconv.Itoa(pid)+"/stat", maxStat)
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain anything.
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return ppid
}
