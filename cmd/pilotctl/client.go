package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// fetchTimeout is the timeout of a request to pilot-discovery.
	fetchTimeout = 10 * time.Second
	// maxPage bounds an answer, in bytes.
	maxPage = 1 << 30
	// maxAnswer is how much of an answer that is an error is shown, in bytes.
	maxAnswer = 400
)

// statusError is an answer of pilot-discovery that is an error.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// fetch reads a page of pilot-discovery's debug port: with a POST of the body, unless that is nil. An error names the
// replica, if it has a name.
func (k *replica) fetch(ctx context.Context, page string, query url.Values, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	u, err := url.Parse(k.base)
	if err != nil || u.Host == "" {
		return nil, misuse{fmt.Errorf("flag --discovery or PILOTCTL_DISCOVERY: invalid URL %q: want one such as %s", k.base, localDiscovery)}
	}
	u = u.JoinPath(page)
	u.RawQuery = query.Encode()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request to pilot-discovery: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := k.client.Do(req)
	if err != nil {
		return nil, k.unreachable(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxPage+1))
	if err == nil && len(text) > maxPage {
		err = fmt.Errorf("more than %d bytes", maxPage)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", k.at(page), err)
	}
	if res.StatusCode != http.StatusOK {
		said := printable.EscapeLines(printable.Clip(strings.TrimSpace(string(text)), maxAnswer), "  ")
		where := u.String()
		if k.name != "" {
			where = k.at(page)
		}
		message := fmt.Sprintf("%s responded with %s: %s", where, printable.Escape(res.Status), said)
		if k.name == "" && aboutTheRequest(res.StatusCode, said) {
			message = said
		}
		return nil, &statusError{res.StatusCode, message}
	}
	return text, nil
}

// aboutTheRequest reports whether pilot-discovery has said what is wrong with a request: then nothing is wrong with its address.
func aboutTheRequest(code int, said string) bool {
	return (code == http.StatusBadRequest || code == http.StatusNotFound) && said != "" && !strings.HasPrefix(said, "404 ") && !strings.HasPrefix(said, "<")
}

// at names a page of the replica.
func (k *replica) at(page string) string {
	if k.name == "" {
		return k.base + "/" + page
	}
	return k.name + ": /" + page
}

// unreachable is the error of a request that was not answered.
func (k *replica) unreachable(err error) error {
	if k.name == "" {
		return fmt.Errorf("request to pilot-discovery (is it running there? --discovery or PILOTCTL_DISCOVERY sets another address): %w", err)
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // the URL is the same for all replicas
	}
	return fmt.Errorf("request to Pod %s: %s", k.name, printable.EscapeLines(printable.Clip(err.Error(), maxAnswer), "  "))
}

// decode decodes an answer to a request for a page.
func (a answer) decode(page string, into any) error {
	if err := json.Unmarshal(a.text, into); err != nil {
		return fmt.Errorf("decode the response of %s: %w", a.replica.at(page), err)
	}
	return nil
}

// decoded decodes answers.
func decoded[T any](got []answer, name string) ([]page[T], error) {
	out := make([]page[T], len(got))
	for i, a := range got {
		out[i].replica = a.replica.name
		if err := a.decode(name, &out[i].value); err != nil {
			return nil, err
		}
	}
	return out, nil
}
