package hotrestart_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
)

// askOn makes a request on a connection and says whether its peer keeps the connection.
func askOn(t *testing.T, c net.Conn, in *bufio.Reader) (kept bool) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nhost: app\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, error %v", resp.StatusCode, err)
	}
	return !resp.Close
}

// TestDrainClosesClientConnections: clients with keep-alive connections are asked to close them long before the end of the drain,
// and are served until then.
func TestDrainClosesClientConnections(t *testing.T) {
	p := up(t, func(o *envoy.Options) { o.Policy.Drain = 2 * patience })
	c, err := net.Dial("tcp", p.http)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for range 3 {
		if !askOn(t, c, in) {
			t.Fatal("the connection is given up while nothing ends")
		}
	}
	p.cancel()
	p.until("the connection is given up", func() bool { return !askOn(t, c, in) })
	if s := p.State(); !s.Live || !s.Ending || dead(s.PID) {
		t.Errorf("in the drain: %+v", s)
	}
	again, err := net.Dial("tcp", p.http)
	if err != nil {
		t.Fatalf("a late client is refused: %v", err)
	}
	defer again.Close()
	askOn(t, again, bufio.NewReader(again))
}
