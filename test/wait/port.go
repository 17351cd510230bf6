package wait

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports of FreePort are below those that the kernel assigns to outgoing connections (from 32768 by
// default): a program under test that is restarted needs its port, which an outgoing connection could
// otherwise have.
const firstPort, portCount = 10000, 20000

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(portCount)) }

// FreePort is a TCP port that is free on all addresses, a different one at each call. Safe for concurrent
// use.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := FindPort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// FindPort is [FreePort] outside of tests, in TestMain and in programs.
func FindPort() (int, error) {
	for range portCount {
		port := firstPort + int(nextPort.Add(1)%portCount)
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port, nil
	}
	return 0, errors.New("no TCP port is free")
}
