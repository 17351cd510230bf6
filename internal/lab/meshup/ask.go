package meshup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Answer is a response of the sample app, with the responses of the services that it called.
type Answer struct {
	Service, Version, Pod, Protocol, Peer, Path, Error string
	Status                                             int
	Calls                                              []Answer
}

// FirstFailure is the first failure in an answer or in those below it, "" if there is none.
func (a Answer) FirstFailure() string {
	for _, next := range a.Calls {
		if bad := next.FirstFailure(); bad != "" {
			return bad
		}
	}
	if a.Status != http.StatusOK {
		who := a.Service
		if who == "" {
			who = a.Path
		}
		return strings.TrimSpace(fmt.Sprintf("%s: status %d %s", who, a.Status, a.Error))
	}
	return ""
}

// Post makes one request and never repeats it: net/http repeats a request on a new connection only if it
// can read the body again. A response that is not the sample app's is an error.
func Post(ctx context.Context, c *http.Client, url string, header http.Header) (Answer, error) {
	var a Answer
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte("hello")))
	if err != nil {
		return a, err
	}
	req.GetBody = nil
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := c.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	return ReadAnswer(res)
}

// ReadAnswer reads a response. One that is not the sample app's is an error.
func ReadAnswer(res *http.Response) (Answer, error) {
	var a Answer
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return a, fmt.Errorf("read the answer: %w", err)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("status %d: %.120s", res.StatusCode, text)
	}
	a.Status = res.StatusCode
	return a, nil
}

// Client returns a client in a Pod that keeps at most idle idle connections. With 0, each request has its
// own connection.
func Client(from Dialer, idle int) *http.Client {
	return &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{DialContext: from.Dial, MaxIdleConnsPerHost: max(idle, 1), DisableKeepAlives: idle == 0},
	}
}

// Line sends one line over TCP from a Pod and returns the line that comes back.
func Line(ctx context.Context, from Dialer, addr, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, text); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}
