package dns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestQueriesAreForwarded(t *testing.T) {
	for _, by := range []transport{overUDP, overTCP} {
		w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
		n := w.nameServer(2, answering(t, 3))
		ids, ports := map[uint16]bool{}, map[string]bool{}
		for i := range 20 {
			if m := w.get(by, newQuery(t, fmt.Sprintf("n%d.example.", i), dnsmessage.TypeA, 1232)); len(m.Answers) != 3 {
				t.Errorf("over %s: %+v", by, m)
			}
		}
		for _, h := range n.all() {
			ids[binary.BigEndian.Uint16(h.msg)], ports[h.from] = true, true
			if h.by != by {
				t.Errorf("a query over %s is forwarded over %s", by, h.by)
			}
		}
		// All queries have the ID 7. Few of twenty random numbers are equal.
		if len(ids) < 15 || len(ports) < 15 {
			t.Errorf("over %s: %d IDs and %d ports for 20 queries, which can be guessed", by, len(ids), len(ports))
		}
		if s := w.s.Stats(); s.Queries != 20 || s.Upstream != 20 || s.Failures != 0 {
			t.Errorf("counted %+v", s)
		} else if n := sum(s.Durations[:]); n != 20 {
			t.Errorf("%d durations of 20 responses: %v", n, s.Durations)
		}
	}
}

func sum(counts []uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Messages with another ID or another question, and what is not a response at all, are ignored.
func TestOnlyTheMatchingResponseCounts(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, func(h received) [][]byte {
		forged := newResponse(t, newQuery(t, "forged.example.", dnsmessage.TypeA, 0), 0, 9)
		id := binary.BigEndian.Uint16(h.msg)
		return [][]byte{
			withID(newResponse(t, h.msg, 0, 9), id+1), withID(forged, id), h.msg, {1, 2, 3}, newResponse(t, h.msg, 0, 1),
		}
	})
	if m := w.get(overUDP, newQuery(t, "example.", dnsmessage.TypeA, 0)); len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
}

// A server that sends only mismatched responses counts as one that does not respond.
func TestMismatchedResponsesAreBounded(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30 attempts:1\n")
	w.nameServer(2, func(h received) (out [][]byte) {
		for range 2 * maxMismatches {
			out = append(out, withID(newResponse(t, h.msg, 0, 9), binary.BigEndian.Uint16(h.msg)+1))
		}
		return out
	})
	if m := w.get(overUDP, newQuery(t, "example.", dnsmessage.TypeA, 0)); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%+v", m)
	}
}

func TestLongResponses(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 200)) // over 3 kB
	for _, tt := range []struct {
		by        transport
		size      int
		truncated bool
	}{{overUDP, 0, true}, {overUDP, 1232, true}, {overUDP, 8192, false}, {overTCP, 0, false}} {
		m := w.get(tt.by, newQuery(t, "example.", dnsmessage.TypeA, tt.size))
		if m.Truncated != tt.truncated || (len(m.Answers) == 200) == tt.truncated {
			t.Errorf("over %s, size %d: truncated %v, %d answers", tt.by, tt.size, m.Truncated, len(m.Answers))
		}
	}
}

func TestFallbackToTheNextServer(t *testing.T) {
	const two = "nameserver 127.0.0.2\nnameserver 127.0.0.3\noptions timeout:30\n"
	for _, tt := range []struct {
		name          string
		first, second func(received) [][]byte // nil: nothing listens
		code          dnsmessage.RCode
		answers       int
		queries       [2]int
	}{
		{"the first responds", answering(t, 1), answering(t, 2), 0, 1, [2]int{1, 0}},
		{"no such name", failing(t, dnsmessage.RCodeNameError), answering(t, 2), dnsmessage.RCodeNameError, 0, [2]int{1, 0}},
		{"the first does not listen", nil, answering(t, 2), 0, 2, [2]int{0, 1}},
		{"the first fails", failing(t, dnsmessage.RCodeServerFailure), answering(t, 2), 0, 2, [2]int{1, 1}},
		{"both fail", failing(t, dnsmessage.RCodeServerFailure), failing(t, dnsmessage.RCodeRefused), dnsmessage.RCodeRefused, 0, [2]int{1, 1}},
		{"neither listens", nil, nil, dnsmessage.RCodeServerFailure, 0, [2]int{0, 0}},
		{"one fails and one does not listen", failing(t, dnsmessage.RCodeRefused), nil, dnsmessage.RCodeRefused, 0, [2]int{1, 0}},
	} {
		for _, by := range []transport{overUDP, overTCP} {
			t.Run(tt.name+" over "+string(by), func(t *testing.T) {
				w := newHarness(t, two)
				var queries [2]int
				var ns [2]*nameServer
				for i, f := range []func(received) [][]byte{tt.first, tt.second} {
					if f != nil {
						ns[i] = w.nameServer(byte(2+i), f)
					}
				}
				m := w.get(by, newQuery(t, "example.", dnsmessage.TypeA, 0))
				for i, n := range ns {
					if n != nil {
						queries[i] = n.count()
					}
				}
				if m.RCode != tt.code || len(m.Answers) != tt.answers || queries != tt.queries {
					t.Errorf("%v, %d answers, queries %v; want %v, %d, %v", m.RCode, len(m.Answers), queries, tt.code, tt.answers, tt.queries)
				}
			})
		}
	}
}

// An unresponsive server delays the first query only.
func TestUnresponsiveServersAreQueriedLast(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "nameserver 127.0.0.2\nnameserver 127.0.0.3\noptions timeout:10 attempts:1\n")
	first := w.nameServer(2, neverRespond)
	w.nameServer(3, answering(t, 1))
	for _, name := range []string{"a.example.", "b.example.", "c.example."} {
		if m := w.get(overUDP, newQuery(t, name, dnsmessage.TypeA, 0)); len(m.Answers) != 1 {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if n := first.count(); n != 1 {
		t.Errorf("the unresponsive server got %d queries, want 1", n)
	}
}

// If no server responds, the client gets SERVFAIL before its own timeout.
func TestNoServerResponds(t *testing.T) {
	for _, by := range []transport{overUDP, overTCP} {
		w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:1\n")
		n := w.nameServer(2, neverRespond)
		if m := w.get(by, newQuery(t, "example.", dnsmessage.TypeA, 0)); m.RCode != dnsmessage.RCodeServerFailure || len(m.Questions) != 1 {
			t.Errorf("over %s: %+v", by, m)
		}
		if c := n.count(); c < 1 || c > 2 {
			t.Errorf("%d attempts, want those of resolv.conf", c)
		}
		if text := w.log.String(); strings.Count(text, "no name server responds") != 1 {
			t.Errorf("log:\n%s", text)
		}
	}
}

// A change of resolv.conf is applied, unless it leaves no server.
func TestResolvConfChanges(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 2))
	w.nameServer(3, answering(t, 3))
	answers := func() int { return len(w.get(overUDP, newQuery(t, "example.", dnsmessage.TypeA, 0)).Answers) }
	if n := answers(); n != 2 {
		t.Fatalf("%d answers", n)
	}
	w.write("nameserver 127.0.0.3\n")
	wait.Until(t, "the other server is queried", func() bool { return answers() == 3 })
	w.write("")
	wait.Until(t, "the empty file is logged", func() bool {
		return answers() == 3 && strings.Contains(w.log.String(), "has no servers any more")
	})
	if err := os.Remove(w.conf); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the missing file is logged", func() bool {
		return answers() == 3 && strings.Contains(w.log.String(), "read resolv.conf")
	})
}

// DNS_FORWARD_TIMEOUT holds for a query in all, whatever resolv.conf says, also after that changes.
func TestTimeoutOverridesResolvConf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	for _, c := range []struct {
		text      string
		set, want time.Duration
	}{{"nameserver 127.0.0.2\noptions timeout:20\n", 0, 20 * time.Second}, {"nameserver 127.0.0.2\noptions timeout:20\n", 2 * time.Second, 2 * time.Second}, {"nameserver 127.0.0.2\n", 7 * time.Second, 7 * time.Second}} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := New(Options{Address: fmt.Sprintf("localhost:%d", wait.FreePort(t)), Conf: file, Timeout: c.set, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.up.conf.current(); got.timeout != c.want || got.budget() >= c.want {
			t.Errorf("%q with %v: timeout %v, budget %v, want %v", c.text, c.set, got.timeout, got.budget(), c.want)
		}
	}
}

// The agent does not query itself, neither if resolv.conf names it nor if its queries are captured.
func TestNoLoop(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.1\n", func(s *Server) {
		// It listens on the port of servers, as with DNS_PROXY_ADDR=localhost:53.
		s.up.port, s.up.conf.checked = s.addrs[0].Port(), time.Time{}
	})
	if c := w.s.up.conf.current(); len(c.servers) != 0 || !strings.Contains(w.log.String(), "names this agent") {
		t.Errorf("servers %v", c.servers)
	}
	if m := w.get(overUDP, newQuery(t, "example.", dnsmessage.TypeA, 0)); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("without a server: %+v", m)
	}
	c := w.dial(overUDP)
	unregister := w.s.up.register(overUDP, c.LocalAddr())
	if _, err := c.Write(newQuery(t, "example.", dnsmessage.TypeA, 0)); err != nil {
		t.Fatal(err)
	}
	if m := w.read(c); m.RCode != dnsmessage.RCodeRefused || !strings.Contains(w.log.String(), "own queries are captured") {
		t.Errorf("its own query: %+v", m)
	}
	unregister()
	if w.s.up.isOwnSocket(overUDP, netip.MustParseAddrPort(c.LocalAddr().String())) {
		t.Error("a closed socket is still registered")
	}
}

// Equal queries share one response, so that sending more of them gives no more chances to guess an ID.
func TestEqualQueriesShareOneResponse(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30 attempts:1\n")
	release := make(chan struct{})
	n := w.nameServer(2, func(h received) [][]byte {
		<-release
		return [][]byte{newResponse(t, h.msg, 0, 1)}
	})
	var conns []net.Conn
	for i := range 5 {
		c := w.dial(overUDP)
		conns = append(conns, c)
		if _, err := c.Write(withID(newQuery(t, "example.", dnsmessage.TypeA, 0), uint16(i))); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the query has arrived", func() bool { return w.s.Stats().Queries == uint64(i+1) })
	}
	wait.Until(t, "it was forwarded", func() bool { return n.count() == 1 })
	close(release)
	for i, c := range conns {
		if m := w.read(c); m.ID != uint16(i) || len(m.Answers) != 1 {
			t.Errorf("client %d: %+v", i, m)
		}
	}
	if n.count() == len(conns) { // one may have arrived after the response
		t.Errorf("%d queries were forwarded", n.count())
	}
}

// Queries beyond the limit get a response too.
func TestABurstIsAnswered(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:1 attempts:1\n")
	w.nameServer(2, neverRespond)
	c := w.dial(overUDP)
	const burst = maxUDPQueries + 100
	for i := range burst {
		if _, err := c.Write(withID(newQuery(t, fmt.Sprintf("n%d.example.", i), dnsmessage.TypeA, 0), uint16(i))); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[uint16]bool{}
	for len(seen) < burst {
		m := w.read(c)
		if seen[m.ID] = true; m.RCode != dnsmessage.RCodeServerFailure {
			t.Fatalf("%+v", m)
		}
	}
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := newLimiter(1), time.Now()
		acquire := func(want bool, after time.Duration) {
			t.Helper()
			if got := l.acquire(t.Context()); got != want || time.Since(start) != after {
				t.Errorf("%v after %v, want %v after %v", got, time.Since(start), want, after)
			}
			start = time.Now()
		}
		acquire(true, 0)
		acquire(false, queueTimeout) // timed out
		acquire(false, 0)            // refused at once
		l.release()
		acquire(true, 0)
		time.AfterFunc(queueTimeout/2, l.release)
		acquire(true, queueTimeout/2) // there was room, so queries wait again
	})
}

// Queries of one connection are answered in any order.
func TestPipeline(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	second := make(chan struct{})
	w.nameServer(2, func(h received) [][]byte {
		if bytes.Contains(h.msg, []byte("slow")) {
			<-second
		}
		return [][]byte{newResponse(t, h.msg, 0, 1)}
	})
	c := w.dial(overTCP)
	for i, name := range []string{"slow.example.", "quick.example."} {
		if err := writeMessage(c, withID(newQuery(t, name, dnsmessage.TypeA, 0), uint16(i))); err != nil {
			t.Fatal(err)
		}
	}
	if m := w.read(c); m.ID != 1 {
		t.Errorf("%+v is first", m.Header)
	}
	close(second)
	if m := w.read(c); m.ID != 0 || len(m.Answers) != 1 {
		t.Errorf("%+v is second", m.Header)
	}
}

// An invalid message closes its connection only.
func TestInvalidMessagesCloseTheConnection(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 1))
	for name, text := range map[string]string{
		"too short": "\x00\x05hello", "too long": "\xff\xff", "an answer": "\x00\x0c\x00\x07\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00",
	} {
		c := w.dial(overTCP)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
			t.Errorf("%s: read %d, %v; want the connection closed", name, n, err)
		}
	}
	if m := w.get(overTCP, newQuery(t, "example.", dnsmessage.TypeA, 0)); len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
}

// A connection beyond the limit is closed at once, until another one is closed.
func TestConnectionsAreBounded(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 1))
	works := func(c net.Conn) bool {
		err := writeMessage(c, newQuery(t, "example.", dnsmessage.TypeA, 0))
		if err == nil {
			_, err = readMessage(c, maxMessage)
		}
		return err == nil
	}
	var open []net.Conn
	for range maxConnections {
		c := w.dial(overTCP)
		if !works(c) {
			t.Fatal("a connection within the limit was closed")
		}
		open = append(open, c)
	}
	if works(w.dial(overTCP)) {
		t.Error("a connection beyond the limit was served")
	}
	_ = open[0].Close()
	wait.Until(t, "there is room again", func() bool { return works(w.dial(overTCP)) })
}

func TestUnavailableAddresses(t *testing.T) {
	port := wait.FreePort(t)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{
		fmt.Sprintf("localhost:%d", port): "address already in use (stop the program that uses the address",
		"192.0.2.1:15053":                 "cannot assign requested address",
		"localhost":                       `parse DNS_PROXY_ADDR "localhost"`,
		"localhost:x":                     `invalid port "x": want 1–65535`,
		"localhost:0":                     `invalid port "0": want 1–65535`,
		"here:53":                         `invalid host "here": want localhost or an IP address`,
	} {
		if _, err := New(Options{Address: address, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	// The UDP socket of the same address was closed.
	c, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
