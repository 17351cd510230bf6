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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestQuestionsArePassedOn(t *testing.T) {
	for _, by := range []transport{overUDP, overTCP} {
		w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
		n := w.nameServer(2, answering(t, 3))
		ids, ports := map[uint16]bool{}, map[string]bool{}
		for i := range 20 {
			if m := w.get(by, ask(t, fmt.Sprintf("n%d.example.", i), dnsmessage.TypeA, 1232)); len(m.Answers) != 3 {
				t.Errorf("by %s: %+v", by, m)
			}
		}
		for _, h := range n.all() {
			ids[binary.BigEndian.Uint16(h.msg)], ports[h.from] = true, true
			if h.by != by {
				t.Errorf("a question by %s goes on by %s", by, h.by)
			}
		}
		// All ask under id 7. Of twenty random numbers few are alike.
		if len(ids) < 15 || len(ports) < 15 {
			t.Errorf("by %s: %d ids and %d ports for 20 questions: they can be guessed", by, len(ids), len(ports))
		}
		if s := w.s.Stats(); s.Questions != 20 || s.Upstream != 20 || s.Failures != 0 {
			t.Errorf("counted %+v", s)
		}
	}
}

// What guesses at the id, at the question, or says nothing of the kind, is no answer.
func TestOnlyTheAnswerCounts(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, func(h heard) [][]byte {
		forged := reply(t, ask(t, "forged.example.", dnsmessage.TypeA, 0), 0, 9)
		id := binary.BigEndian.Uint16(h.msg)
		return [][]byte{
			withID(reply(t, h.msg, 0, 9), id+1), withID(forged, id), h.msg, {1, 2, 3}, reply(t, h.msg, 0, 1),
		}
	})
	if m := w.get(overUDP, ask(t, "example.", dnsmessage.TypeA, 0)); len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
}

// Strays without end are not read without end, and their sender is a server that does not answer.
func TestStraysAreBounded(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30 attempts:1\n")
	w.nameServer(2, func(h heard) (out [][]byte) {
		for range 2 * maxStrays {
			out = append(out, withID(reply(t, h.msg, 0, 9), binary.BigEndian.Uint16(h.msg)+1))
		}
		return out
	})
	if m := w.get(overUDP, ask(t, "example.", dnsmessage.TypeA, 0)); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%+v", m)
	}
}

func TestLongAnswers(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 200)) // over 3 kB, whatever was offered
	for _, tt := range []struct {
		by        transport
		offers    int
		truncated bool
	}{{overUDP, 0, true}, {overUDP, 1232, true}, {overUDP, 8192, false}, {overTCP, 0, false}} {
		m := w.get(tt.by, ask(t, "example.", dnsmessage.TypeA, tt.offers))
		if m.Truncated != tt.truncated || (len(m.Answers) == 200) == tt.truncated {
			t.Errorf("by %s, offering %d: truncated %v, %d answers", tt.by, tt.offers, m.Truncated, len(m.Answers))
		}
	}
}

func TestWhoElseIsAsked(t *testing.T) {
	const two = "nameserver 127.0.0.2\nnameserver 127.0.0.3\noptions timeout:30\n"
	for _, tt := range []struct {
		name          string
		first, second func(heard) [][]byte // nil: nobody is there
		code          dnsmessage.RCode
		answers       int
		asked         [2]int
	}{
		{"the first answers", answering(t, 1), answering(t, 2), 0, 1, [2]int{1, 0}},
		{"there is no such name", saying(t, dnsmessage.RCodeNameError), answering(t, 2), dnsmessage.RCodeNameError, 0, [2]int{1, 0}},
		{"the first is not there", nil, answering(t, 2), 0, 2, [2]int{0, 1}},
		{"the first fails", saying(t, dnsmessage.RCodeServerFailure), answering(t, 2), 0, 2, [2]int{1, 1}},
		{"both fail", saying(t, dnsmessage.RCodeServerFailure), saying(t, dnsmessage.RCodeRefused), dnsmessage.RCodeRefused, 0, [2]int{1, 1}},
		{"neither is there", nil, nil, dnsmessage.RCodeServerFailure, 0, [2]int{0, 0}},
		{"one fails and one is not there", saying(t, dnsmessage.RCodeRefused), nil, dnsmessage.RCodeRefused, 0, [2]int{1, 0}},
	} {
		for _, by := range []transport{overUDP, overTCP} {
			t.Run(tt.name+" by "+string(by), func(t *testing.T) {
				w := newWorld(t, two)
				var asked [2]int
				var ns [2]*nameServer
				for i, f := range []func(heard) [][]byte{tt.first, tt.second} {
					if f != nil {
						ns[i] = w.nameServer(byte(2+i), f)
					}
				}
				m := w.get(by, ask(t, "example.", dnsmessage.TypeA, 0))
				for i, n := range ns {
					if n != nil {
						asked[i] = n.count()
					}
				}
				if m.RCode != tt.code || len(m.Answers) != tt.answers || asked != tt.asked {
					t.Errorf("%v, %d answers, asked %v; want %v, %d, %v", m.RCode, len(m.Answers), asked, tt.code, tt.answers, tt.asked)
				}
			})
		}
	}
}

// A server that keeps silent costs the first question time, and is asked last by the next.
func TestASilentServerComesLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "nameserver 127.0.0.2\nnameserver 127.0.0.3\noptions timeout:10 attempts:1\n")
	first := w.nameServer(2, silent)
	w.nameServer(3, answering(t, 1))
	for _, name := range []string{"a.example.", "b.example.", "c.example."} {
		if m := w.get(overUDP, ask(t, name, dnsmessage.TypeA, 0)); len(m.Answers) != 1 {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if n := first.count(); n != 1 {
		t.Errorf("the silent one was asked %d times, want once", n)
	}
}

// Where nobody answers the asker hears so, before it gives up by the same resolv.conf.
func TestNoServerAnswers(t *testing.T) {
	for _, by := range []transport{overUDP, overTCP} {
		w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:1\n")
		n := w.nameServer(2, silent)
		if m := w.get(by, ask(t, "example.", dnsmessage.TypeA, 0)); m.RCode != dnsmessage.RCodeServerFailure || len(m.Questions) != 1 {
			t.Errorf("by %s: %+v", by, m)
		}
		if c := n.count(); c < 1 || c > 2 {
			t.Errorf("%d attempts, want those of resolv.conf", c)
		}
		if text := w.log.String(); strings.Count(text, "no name server answers") != 1 {
			t.Errorf("the log says %s", text)
		}
	}
}

// A change of resolv.conf holds soon; one that leaves no server, not at all.
func TestResolvConfIsFollowed(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 2))
	w.nameServer(3, answering(t, 3))
	answers := func() int { return len(w.get(overUDP, ask(t, "example.", dnsmessage.TypeA, 0)).Answers) }
	if n := answers(); n != 2 {
		t.Fatalf("%d answers", n)
	}
	w.write("nameserver 127.0.0.3\n")
	wait.Until(t, "the other server is asked", func() bool { return answers() == 3 })
	w.write("")
	wait.Until(t, "the log tells of the empty file", func() bool {
		return answers() == 3 && strings.Contains(w.log.String(), "names no server any more")
	})
	if err := os.Remove(w.conf); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the log tells of the missing file", func() bool {
		return answers() == 3 && strings.Contains(w.log.String(), "read the name servers anew")
	})
}

// The agent does not ask itself: neither where resolv.conf names it, nor where its questions are
// captured and come back.
func TestNoLoop(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.1\n", func(s *Server) {
		// It listens where servers do, as with DNS_PROXY_ADDR=localhost:53.
		s.up.port, s.up.conf.looked = s.addrs[0].Port(), time.Time{}
	})
	if c := w.s.up.conf.current(); len(c.servers) != 0 || !strings.Contains(w.log.String(), "names this agent itself") {
		t.Errorf("servers %v", c.servers)
	}
	if m := w.get(overUDP, ask(t, "example.", dnsmessage.TypeA, 0)); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("without a server: %+v", m)
	}
	c := w.dial(overUDP)
	forget := w.s.up.register(overUDP, c.LocalAddr())
	if _, err := c.Write(ask(t, "example.", dnsmessage.TypeA, 0)); err != nil {
		t.Fatal(err)
	}
	if m := w.read(c); m.RCode != dnsmessage.RCodeRefused || !strings.Contains(w.log.String(), "own questions are captured") {
		t.Errorf("its own question: %+v", m)
	}
	forget()
	if w.s.up.asks(overUDP, netip.MustParseAddrPort(c.LocalAddr().String())) {
		t.Error("a socket is remembered that is closed")
	}
}

// Equal questions wait for one answer: nobody has more guesses for asking more often.
func TestEqualQuestionsAreOne(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30 attempts:1\n")
	release := make(chan struct{})
	n := w.nameServer(2, func(h heard) [][]byte {
		<-release
		return [][]byte{reply(t, h.msg, 0, 1)}
	})
	var conns []net.Conn
	for i := range 5 {
		c := w.dial(overUDP)
		conns = append(conns, c)
		if _, err := c.Write(withID(ask(t, "example.", dnsmessage.TypeA, 0), uint16(i))); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the question has come", func() bool { return w.s.Stats().Questions == uint64(i+1) })
	}
	wait.Until(t, "it was passed on", func() bool { return n.count() == 1 })
	close(release)
	for i, c := range conns {
		if m := w.read(c); m.ID != uint16(i) || len(m.Answers) != 1 {
			t.Errorf("asker %d: %+v", i, m)
		}
	}
	if n.count() == len(conns) { // a late one may have come after the answer
		t.Errorf("%d questions went on", n.count())
	}
}

// Of more questions at a time than there is room for, each is answered.
func TestABurstIsAnswered(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:1 attempts:1\n")
	w.nameServer(2, silent)
	c := w.dial(overUDP)
	const burst = maxPackets + 100
	for i := range burst {
		if _, err := c.Write(withID(ask(t, fmt.Sprintf("n%d.example.", i), dnsmessage.TypeA, 0), uint16(i))); err != nil {
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

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, start := newGate(1), time.Now()
		enter := func(want bool, after time.Duration) {
			t.Helper()
			if got := g.enter(t.Context()); got != want || time.Since(start) != after {
				t.Errorf("%v after %v, want %v after %v", got, time.Since(start), want, after)
			}
			start = time.Now()
		}
		enter(true, 0)
		enter(false, patience) // waited for in vain
		enter(false, 0)        // nobody waits now
		g.leave()
		enter(true, 0)
		time.AfterFunc(patience/2, g.leave)
		enter(true, patience/2) // there was room: waiting is worth it again
	})
}

// Several questions may come on one connection, and be answered in any order.
func TestPipeline(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	second := make(chan struct{})
	w.nameServer(2, func(h heard) [][]byte {
		if bytes.Contains(h.msg, []byte("slow")) {
			<-second
		}
		return [][]byte{reply(t, h.msg, 0, 1)}
	})
	c := w.dial(overTCP)
	for i, name := range []string{"slow.example.", "quick.example."} {
		if err := writeMessage(c, withID(ask(t, name, dnsmessage.TypeA, 0), uint16(i))); err != nil {
			t.Fatal(err)
		}
	}
	if m := w.read(c); m.ID != 1 {
		t.Errorf("%+v comes first", m.Header)
	}
	close(second)
	if m := w.read(c); m.ID != 0 || len(m.Answers) != 1 {
		t.Errorf("%+v comes next", m.Header)
	}
}

// What is no question ends its connection, and no other one's.
func TestBrokenStreams(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
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
	if m := w.get(overTCP, ask(t, "example.", dnsmessage.TypeA, 0)); len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
}

// One more connection than there is room for is closed at once; when one has gone the next is taken.
func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, "nameserver 127.0.0.2\noptions timeout:30\n")
	w.nameServer(2, answering(t, 1))
	works := func(c net.Conn) bool {
		err := writeMessage(c, ask(t, "example.", dnsmessage.TypeA, 0))
		if err == nil {
			_, err = readMessage(c, maxMessage)
		}
		return err == nil
	}
	var open []net.Conn
	for range maxConnections {
		c := w.dial(overTCP)
		if !works(c) {
			t.Fatal("a connection within the bound is closed")
		}
		open = append(open, c)
	}
	if works(w.dial(overTCP)) {
		t.Error("a connection beyond the bound is served")
	}
	_ = open[0].Close()
	wait.Until(t, "there is room again", func() bool { return works(w.dial(overTCP)) })
}

func TestSocketsThatCannotBeHad(t *testing.T) {
	port := wait.FreePort(t)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{
		fmt.Sprintf("localhost:%d", port): "address already in use (another program answers there",
		"192.0.2.1:15053":                 "cannot assign requested address",
		"localhost":                       `parse DNS_PROXY_ADDR "localhost"`,
		"localhost:x":                     `invalid port "x": want 1–65535`,
		"localhost:0":                     `invalid port "0": want 1–65535`,
		"here:53":                         `host "here" is neither localhost nor an IP address`,
	} {
		if _, err := New(Options{Address: address, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	// The packets' socket of the same address was given back.
	c, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
