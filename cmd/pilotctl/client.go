package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// fetchTimeout is the timeout of a request to pilot-discovery.
const fetchTimeout = 10 * time.Second

// maxAnswer is how much of an answer that is an error is shown, in bytes.
const maxAnswer = 400

// fetch reads a page of pilot-discovery's debug port: with a POST of the body, unless that is nil.
func fetch(ctx context.Context, base, page string, query url.Values, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, misuse{fmt.Errorf("flag --discovery: invalid URL %q: want one such as http://127.0.0.1:8080", base)}
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
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("request to pilot-discovery (is it running there? --discovery sets another address): %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", u, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responded with %s: %s", u, printable.Escape(res.Status), printable.EscapeLines(printable.Clip(strings.TrimSpace(string(text)), maxAnswer), "  "))
	}
	return text, nil
}

// fetchInto reads a page and decodes it; the text is returned too.
func fetchInto(ctx context.Context, base, page string, query url.Values, into any) ([]byte, error) {
	return post(ctx, base, page, query, nil, into)
}

// post is fetchInto with a body.
func post(ctx context.Context, base, page string, query url.Values, body []byte, into any) ([]byte, error) {
	text, err := fetch(ctx, base, page, query, body)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, fmt.Errorf("decode the response of %s/%s: %w", base, page, err)
	}
	return text, nil
}
