package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// Limits bound what is asked. The zero value of a field is its default.
type Limits struct {
	// Every is how often at most; the default is 15 s.
	Every time.Duration
	// Timeout is how long both queries may take; the default is 10 s.
	Timeout time.Duration
	// Bytes is how long an answer may be; the default is 16 MiB.
	Bytes int64
	// Old is after which time without an answer nothing is shown any more; the default is a minute.
	Old time.Duration
}

// State is what is known.
type State struct {
	// Edges are immutable; nil if nothing is known.
	Edges []Edge
	// Known is when they were.
	Known time.Time
	// Problem is why the newest query has failed; empty if it has not.
	Problem string
}

// Asker asks while somebody looks. Create one with New; its methods may be called from any goroutine.
type Asker struct {
	at     *url.URL
	limits Limits
	client *http.Client
	wanted chan struct{} // has an element if somebody has looked since the last query

	mu    sync.Mutex
	state State
}

// New returns an asker of the server at a URL that ParseURL has returned.
func New(at *url.URL, l Limits) *Asker {
	if l.Every == 0 {
		l.Every = 15 * time.Second
	}
	if l.Timeout == 0 {
		l.Timeout = 10 * time.Second
	}
	if l.Bytes == 0 {
		l.Bytes = 16 << 20
	}
	if l.Old == 0 {
		l.Old = time.Minute
	}
	return &Asker{at: at, limits: l, wanted: make(chan struct{}, 1), client: &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: l.Timeout}).DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it redirects, which is not followed") },
	}}
}

// Latest is what is known; it makes Run ask.
func (a *Asker) Latest() State {
	select {
	case a.wanted <- struct{}{}:
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.state
	if time.Since(out.Known) > a.limits.Old {
		out.Edges = nil
	}
	return out
}

// Run asks when Latest has been called, until ctx ends. It returns nil, and must be called once.
func (a *Asker) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-a.wanted:
		case <-ctx.Done():
			return nil
		}
		found, err := a.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.mu.Lock()
		a.state.Problem = ""
		if err != nil {
			a.state.Problem = fmt.Sprintf("Prometheus at %s: %s", a.at, printable.Clip(printable.Escape(printable.Reason(err)), 500))
		} else {
			a.state.Edges, a.state.Known = found, time.Now()
		}
		a.mu.Unlock()
		timer.Reset(a.limits.Every)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *Asker) ask(ctx context.Context) ([]Edge, error) {
	ctx, cancel := context.WithTimeout(ctx, a.limits.Timeout)
	defer cancel()
	var answers [2][]series
	for i, errorsOnly := range []bool{false, true} {
		text, err := a.post(ctx, query(errorsOnly))
		if err == nil {
			answers[i], err = decode(text)
		}
		if err != nil {
			return nil, err
		}
	}
	return edges(answers[0], answers[1]), nil
}

// post sends one query, and returns the answer.
func (a *Asker) post(ctx context.Context, query string) ([]byte, error) {
	form := url.Values{"query": {query}, "timeout": {a.limits.Timeout.String()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.at.JoinPath("api/v1/query").String(), strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("User-Agent", "pilot-discovery")
	resp, err := a.client.Do(req)
	if err != nil {
		var wrapped *url.Error
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, fmt.Errorf("no answer within %s", a.limits.Timeout)
		case errors.As(err, &wrapped):
			err = wrapped.Err
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, a.limits.Bytes+1))
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer within %s", a.limits.Timeout)
	case err != nil:
		return nil, err
	case int64(len(text)) > a.limits.Bytes:
		return nil, fmt.Errorf("the answer has more than %d bytes", a.limits.Bytes)
	case resp.StatusCode != http.StatusOK:
		if _, failed := decode(text); failed != nil && strings.HasPrefix(failed.Error(), "the query failed") {
			return nil, failed
		}
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	return text, nil
}
