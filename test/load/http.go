package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// answerTime bounds one request: far more than any takes.
const answerTime = 30 * time.Second

// KeepAlive has n clients send a request every so often, each over one connection for as long as the peer lets it.
func (l *Load) KeepAlive(addr string, n int, every time.Duration) {
	l.workers(n, every, func(turn func() bool) {
		var c *client
		defer func() { c.close() }()
		for turn() {
			c = l.one("keep-alive", addr, c)
		}
	})
}

// Churn has n clients send a request every so often, each on a connection of its own.
func (l *Load) Churn(addr string, n int, every time.Duration) {
	l.workers(n, every, func(turn func() bool) {
		for turn() {
			c := l.one("new connection", addr, nil)
			c.close()
		}
	})
}

type client struct {
	net.Conn
	in *bufio.Reader
}

func (c *client) close() {
	if c != nil {
		_ = c.Close()
	}
}

// one makes one request, on c or on a new connection, and returns the connection if it may be used again.
func (l *Load) one(kind, addr string, c *client) *client {
	l.sent.Add(1)
	if c == nil {
		conn, err := l.connect(addr)
		if err != nil {
			l.fail(kind, fmt.Errorf("connect: %w", err))
			return nil
		}
		c = &client{conn, bufio.NewReader(conn)}
	}
	goOn, err := exchange(c, addr)
	if err != nil {
		l.fail(kind, err)
	} else {
		l.answered(kind)
	}
	if err != nil || !goOn {
		c.close()
		return nil
	}
	return c
}

func (l *Load) connect(addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), answerTime)
	defer cancel()
	return l.dial(ctx, "tcp", addr)
}

// exchange is one request and its answer; goOn says that the peer keeps the connection.
func exchange(c *client, addr string) (goOn bool, err error) {
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return false, err
	}
	if _, err := fmt.Fprintf(c, "POST /load HTTP/1.1\r\nhost: %s\r\ncontent-length: 5\r\n\r\nhello", addr); err != nil {
		return false, err
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return false, fmt.Errorf("read the answer's body: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d %.100s", resp.StatusCode, text)
	}
	return !resp.Close, nil
}

// HTTP2 has n clients send a request every so often over HTTP/2 with prior knowledge, each over a
// connection of its own. A body that cannot be had again keeps the library from a second try.
func (l *Load) HTTP2(addr string, n int, every time.Duration) {
	l.workers(n, every, func(turn func() bool) {
		t := &http.Transport{Protocols: new(http.Protocols), DialContext: func(_ context.Context, _, a string) (net.Conn, error) {
			return l.connect(a)
		}}
		t.Protocols.SetUnencryptedHTTP2(true)
		defer t.CloseIdleConnections()
		for turn() {
			l.sent.Add(1)
			if err := post(t, addr); err != nil {
				l.fail("HTTP/2", err)
			} else {
				l.answered("HTTP/2")
			}
		}
	})
}

func post(t *http.Transport, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/load", strings.NewReader("hello"))
	if err != nil {
		return err
	}
	req.GetBody = nil
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d %.100s", resp.StatusCode, text)
	}
	return err
}

// Streams keeps n TCP streams open that send a line every so often and read one back. A
// stream that ends is noted and opened anew.
func (l *Load) Streams(addr string, n int, every time.Duration) {
	l.workers(n, every, func(turn func() bool) {
		for !l.over() {
			conn, err := l.connect(addr)
			if err != nil {
				l.fail("stream", fmt.Errorf("connect: %w", err))
				if !turn() {
					return
				}
				continue
			}
			opened := time.Now()
			err = l.stream(conn, turn)
			_ = conn.Close()
			if err != nil {
				l.mu.Lock()
				l.ends = append(l.ends, End{opened, time.Now(), err})
				l.mu.Unlock()
			}
		}
	})
}

// stream returns nil when it is over, and else what ended the stream.
func (l *Load) stream(conn net.Conn, turn func() bool) error {
	in := bufio.NewReader(conn)
	for turn() {
		if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "a line\n"); err != nil {
			return err
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		if !strings.HasSuffix(line, "a line\n") {
			return errors.New("another line came back: " + line)
		}
		l.answered("line")
	}
	return nil
}
