package capture_test

import (
	"io"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/test/wait"
)

// An application may run as the proxy's user where the proxy is recognized by its mark.
func TestProxyKnownByItsMark(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	o := injector()
	o.ProxyMark = "42"
	w.apply(t, o)
	w.check(t, []leg{
		{w.pod, proxy, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
		{w.pod, app, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
		{w.pod, proxy, "", "10.99.0.2:80", "pod"},
	})
	for to, want := range map[string]string{"10.99.0.3:80": "other", "10.99.0.2:80": "inbound for 10.99.0.2:80"} {
		d := net.Dialer{Timeout: wait.Bound, Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 42) })
		}}
		var c net.Conn
		do(t, w.pod, func() (err error) {
			c, err = d.Dial("tcp", to)
			return err
		})
		told, err := io.ReadAll(c)
		c.Close()
		if string(told) != want {
			t.Errorf("with the mark to %s: %q, %v, want %q", to, told, err, want)
		}
	}
}
