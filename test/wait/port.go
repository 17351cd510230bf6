package wait

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports that are handed out lie below those that the kernel gives to outgoing
// connections (from 32768 by default): a program under test that is started again must
// find its port free, and any connection of anybody's might have taken one from there.
const firstPort, portCount = 10000, 20000

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(portCount)) }

// FreePort is a TCP port that is free on all addresses, another one at each call. Any
// goroutine may call it.
func FreePort(t testing.TB) int {
	t.Helper()
	for range portCount {
		port := firstPort + int(nextPort.Add(1)%portCount)
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port
	}
	t.Fatal("no TCP port is free")
	return 0
}
