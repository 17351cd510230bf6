package sds

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/pilothouse/pilothouse/internal/claim"
)

// Users are the users whose processes are served.
type Users struct {
	// All lets every user connect; otherwise only those of UIDs are served.
	All  bool
	UIDs []uint32
}

// Has reports whether processes of a user are served.
func (u Users) Has(uid uint32) bool { return u.All || slices.Contains(u.UIDs, uid) }

// maxReported is the maximum number of refused users that are logged, once each.
const maxReported = 64

// guarded is a listener that closes the connections of users who are not served, before anything is read from them.
type guarded struct {
	net.Listener
	users Users
	log   *slog.Logger

	mu       sync.Mutex
	reported map[uint32]bool
}

// Accept returns the next connection of a user who is served.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g.allows(c) {
			return c, nil
		}
		_ = c.Close() // nothing was exchanged
	}
}

func (g *guarded) allows(c net.Conn) bool {
	if g.users.All {
		return true
	}
	uid, err := peer(c)
	if err == nil && g.users.Has(uid) {
		return true
	}
	g.mu.Lock()
	first := !g.reported[uid] && len(g.reported) < maxReported
	if first {
		if g.reported == nil {
			g.reported = map[uint32]bool{}
		}
		g.reported[uid] = true
	}
	g.mu.Unlock()
	if first {
		g.log.Warn("a process of another user asks for the workload's secrets and is not served", "uid", uid, "error", err,
			"remedy", "if that is intended, add the user to WORKLOAD_IDENTITY_SOCKET_UIDS")
	}
	return false
}

func peer(c net.Conn) (uint32, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a Unix connection")
	}
	return claim.Peer(u)
}
