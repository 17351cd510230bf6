// Package cloud asks a cloud's metadata server where this machine is.
//
// Only the platform that a setting names is asked, at the link-local address that it documents; no proxy and no redirect is
// followed, and answers are bounded in bytes and time. Find repeats until an answer is there, a bounded number of times. What a
// server says is checked before it is used: each value is a short printable text. [agent B6, B8, E33]
package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// The platforms. Auto asks all of them.
const (
	GCP   = "gcp"
	AWS   = "aws"
	Azure = "azure"
	Auto  = "auto"
)

const (
	// attempt bounds one attempt to ask a platform.
	attempt = 5 * time.Second
	// tries is how often a platform is asked, with a pause from firstPause on that doubles, up to maxPause.
	tries                = 8
	firstPause, maxPause = time.Second, 30 * time.Second
	// maxAnswer bounds an answer and maxValue a value, in bytes.
	maxAnswer = 64 << 10
	maxValue  = 1024
)

// Facts are what a platform says of a machine.
type Facts struct {
	// Platform is GCP, AWS or Azure.
	Platform string
	Locality mesh.Locality
	// Metadata has the keys of Istio's PLATFORM_METADATA.
	Metadata map[string]string
}

// Options configure Find. Log is required.
type Options struct {
	// Platform is GCP, AWS, Azure or Auto.
	Platform string
	// IPv6 asks at the IPv6 addresses that GCP and AWS have, too; Azure has none.
	IPv6 bool
	// GCPHost replaces the address of GCP; empty for its own.
	GCPHost string
	Log     *slog.Logger
}

// Find returns the facts, or the error of the last attempt, or that of ctx.
func Find(ctx context.Context, o Options) (Facts, error) {
	pause := firstPause
	for try := 1; ; try++ {
		facts, err := ask(ctx, o)
		if err == nil || ctx.Err() != nil || try == tries || o.Platform == Auto {
			return facts, err
		}
		o.Log.Info("the cloud's metadata server does not answer", "platform", o.Platform, "again", pause, "reason", err)
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return Facts{}, ctx.Err()
		}
		pause = min(2*pause, maxPause)
	}
}

// ask asks once: one platform, or all, of which the first answer counts.
func ask(ctx context.Context, o Options) (Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	platforms := []string{o.Platform}
	if o.Platform == Auto {
		platforms = []string{GCP, AWS, Azure}
	}
	type result struct {
		facts Facts
		err   error
	}
	results := make(chan result, len(platforms))
	for _, p := range platforms {
		go func() {
			facts, err := newServer(p, o).facts(ctx)
			if err != nil {
				err = fmt.Errorf("%s: %w", p, err)
			}
			results <- result{facts, err}
		}()
	}
	var errs []error
	for range platforms {
		r := <-results
		if r.err == nil {
			return r.facts, nil
		}
		errs = append(errs, r.err)
	}
	return Facts{}, errors.Join(errs...)
}

// server is a metadata server.
type server struct {
	platform string
	base     string
	client   *http.Client
}

func newServer(platform string, o Options) *server {
	// Documented by the clouds. The IPv6 addresses are unique local ones, which only they route.
	base := "http://169.254.169.254"
	switch {
	case platform == GCP && o.GCPHost != "":
		base = "http://" + o.GCPHost
	case platform == GCP && o.IPv6:
		base = "http://[fd20:ce::254]"
	case platform == AWS && o.IPv6:
		base = "http://[fd00:ec2::254]"
	}
	return &server{platform: platform, base: base, client: &http.Client{
		Transport:     &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 16 << 10, MaxConnsPerHost: 1, IdleConnTimeout: time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// facts asks for everything that is used of a platform.
func (s *server) facts(ctx context.Context) (Facts, error) {
	defer s.client.CloseIdleConnections()
	switch s.platform {
	case GCP:
		return s.gcp(ctx)
	case AWS:
		return s.aws(ctx)
	case Azure:
		return s.azure(ctx)
	}
	return Facts{}, fmt.Errorf("unknown platform %s", s.platform)
}

// errAbsent says that a server does not have a value.
var errAbsent = errors.New("404")

// get requests a path. mark is the header by which the answer must show that the server is the platform's; empty for none.
func (s *server) get(ctx context.Context, method, path string, header map[string]string, mark string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusNotFound:
		return nil, errAbsent
	case mark != "" && res.Header.Get(mark) != header[mark]:
		return nil, fmt.Errorf("%s: the answer lacks %s: it is not of the platform", path, mark)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: status %d", path, res.StatusCode)
	case len(text) > maxAnswer:
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxAnswer)
	}
	return text, nil
}

// usable reports whether a value can be metadata.
func usable(value string) bool {
	return value != "" && len(value) <= maxValue && printable.Is(value)
}

// keep returns the values that can be metadata.
func keep(values map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range values {
		if usable(v) {
			out[k] = v
		}
	}
	return out
}
