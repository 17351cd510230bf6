package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
)

// maxAnswer bounds an answer of the API server, in bytes.
const maxAnswer = 64 << 20

// ErrNotFound is within the error of Get if there is no such object or kind.
var ErrNotFound = errors.New("not found")

// Reader reads objects from an API server, without a cache. It is safe for concurrent use.
type Reader struct {
	client *http.Client
	base   *url.URL
}

// NewReader returns a Reader of the API server of c. It opens no connection.
func NewReader(c *rest.Config) (*Reader, error) {
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API server: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API server: %w", err)
	}
	if base.Path == "" {
		base.Path = "/"
	}
	return &Reader{client, base}, nil
}

// Get decodes the object or list at a path, such as api, v1, nodes, into v. The error names the path and
// what the server said.
func (r *Reader) Get(ctx context.Context, v any, path ...string) error {
	u := r.base.JoinPath(path...)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("get %s: %w", u.Path, err)
	}
	request.Header.Set("Accept", "application/json")
	answer, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("get %s: %w", u.Path, err)
	}
	defer func() { _ = answer.Body.Close() }() // it is only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("get %s: %w", u.Path, err)
	case len(text) > maxAnswer:
		return fmt.Errorf("get %s: more than %d bytes", u.Path, maxAnswer)
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("get %s: %w: %s", u.Path, ErrNotFound, message(text))
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("get %s: %s: %s", u.Path, answer.Status, message(text))
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("get %s: decode the answer: %w", u.Path, err)
	}
	return nil
}

// message is what a Status of the API server says.
func message(text []byte) string {
	var s struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &s) == nil && s.Message != "" {
		return s.Message
	}
	return string(text[:min(len(text), 200)])
}
