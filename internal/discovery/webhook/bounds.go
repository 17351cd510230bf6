package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Bounds of the requests of one path.
const (
	// maxHeld is how many bytes of requests are held at a time, those that still arrive included.
	maxHeld = 64 << 20
	// maxDecided is the weight of the requests that are decided at a time; minWeight is the least of one, so that
	// it is also a bound on their number.
	maxDecided, minWeight = 16 << 20, 1 << 20
	// valueWeight is the weight of one value of JSON. A value of few bytes may become a large structure.
	valueWeight = 1 << 10
	// maxPodValues and maxValues bound the values of a request that has a Pod, and of any other one.
	maxPodValues, maxValues = 50_000, 500_000
	// defaultTimeout is how long a request may take that does not say it, and maxTimeout the longest that is used:
	// they are the API server's.
	defaultTimeout, maxTimeout = 10 * time.Second, 30 * time.Second
	// bodyTimeout is how long the body of a request may take.
	bodyTimeout = 5 * time.Second
	// maxWaiting is how many connections may be in their handshake or before their first request, maxIdle how many
	// between requests.
	maxWaiting, maxIdle = 256, 256
)

// bounds are those of one path.
type bounds struct {
	held    *semaphore.Weighted
	decided *semaphore.Weighted
	values  int
}

func newBounds(values int) *bounds {
	return &bounds{held: semaphore.NewWeighted(maxHeld), decided: semaphore.NewWeighted(maxDecided), values: values}
}

// timeoutOf is how long the client waits for the answer: the API server says it in the query.
func timeoutOf(r *http.Request, most time.Duration) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = defaultTimeout
	}
	return min(d, most)
}

// errHeld refuses a request that would be one too many. Who waits holds what has arrived of the body, so that requests
// that wait for each other would all fail.
var errHeld = httpError{http.StatusTooManyRequests, fmt.Errorf("busy: requests of %d bytes are held", maxHeld)}

// read reads a body of at most max bytes. What is read counts as held until release is called, which must be
// called in any case.
func (b *bounds) read(body io.Reader, size int64, most int) (text []byte, release func(), err error) {
	held := 0
	release = func() { b.held.Release(int64(held)) }
	grow := func(to int) bool {
		if !b.held.TryAcquire(int64(to - held)) {
			return false
		}
		held = to
		return true
	}
	first := 4 << 10
	if size >= 0 && size < int64(first) {
		first = int(size) + 1 // the end is read, too
	}
	if !grow(first) {
		return nil, release, errHeld
	}
	text = make([]byte, 0, first)
	for {
		if len(text) == cap(text) {
			next := min(2*cap(text), most+1)
			if size >= 0 {
				next = min(next, int(size)+1)
			}
			next = max(next, cap(text)+1)
			if !grow(next) {
				return nil, release, errHeld
			}
			text = append(make([]byte, 0, next), text...)
		}
		n, err := body.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		switch {
		case len(text) > most:
			return nil, release, tooLarge()
		case err == io.EOF:
			return text, release, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, release, httpError{http.StatusRequestTimeout, errors.New("the body has not come in time")}
		case err != nil:
			return nil, release, fmt.Errorf("read the request: %w", err)
		}
	}
}

// weigh counts the values of a text of JSON, valid or not, and returns its weight.
func (b *bounds) weigh(text []byte) (int64, error) {
	values, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '{' || c == '['):
			values++
		}
	}
	if values > b.values {
		return 0, httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("request of %d values: want at most %d", values, b.values)}
	}
	return int64(min(max(len(text), values*valueWeight, minWeight), maxDecided)), nil
}

// turn waits until a request of a weight may be decided, or ctx ends. The caller releases the weight.
func (b *bounds) turn(ctx context.Context, weight int64) error {
	if b.decided.Acquire(ctx, weight) != nil {
		return httpError{http.StatusTooManyRequests, fmt.Errorf("busy: as many requests are decided as may be at a time, until the client no longer waits")}
	}
	return nil
}

// Connections bounds the connections of a server. Of those that send no request, the oldest is closed where
// there are too many: the API server's are quick, those of a client that holds connections are not.
type Connections struct {
	waiting, idle int // the most of each

	mu    sync.Mutex
	order map[http.ConnState][]net.Conn
}

// NewConnections returns the bounds of the HTTPS port, whose Follow is a server's ConnState.
func NewConnections() *Connections {
	return &Connections{waiting: maxWaiting, idle: maxIdle, order: map[http.ConnState][]net.Conn{}}
}

// Follow is told each state of a connection.
func (c *Connections) Follow(conn net.Conn, state http.ConnState) {
	oldest := c.follow(conn, state)
	if t, ok := oldest.(*tls.Conn); ok {
		oldest = t.NetConn() // whose Close tells the client nothing, which could take long
	}
	if oldest != nil {
		_ = oldest.Close() // its server notices it
	}
}

func (c *Connections) follow(conn net.Conn, state http.ConnState) (oldest net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, all := range c.order {
		for i, other := range all {
			if other == conn {
				c.order[s] = append(all[:i:i], all[i+1:]...)
				break
			}
		}
	}
	most := map[http.ConnState]int{http.StateNew: c.waiting, http.StateIdle: c.idle}[state]
	if most == 0 {
		return nil
	}
	all := append(c.order[state], conn)
	if len(all) > most {
		oldest, all = all[0], all[1:]
	}
	c.order[state] = all
	return oldest
}
