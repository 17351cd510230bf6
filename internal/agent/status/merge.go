package status

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

const (
	// scrapeTimeout bounds a scrape whose request has no timeout header, maxScrapeTimeout one that has.
	scrapeTimeout    = 10 * time.Second
	maxScrapeTimeout = 2 * time.Minute
	// writeGrace is how much longer a client may take to read the end of a response.
	writeGrace = 5 * time.Second
	// maxScrapes is how many requests for metrics are answered at a time; others wait.
	maxScrapes = 4
	// maxPage bounds the metrics of a target, in bytes after decompression.
	maxPage = 64 << 20
	// outBuffer is how much is written to the client at once, in bytes.
	outBuffer = 16 << 10
	// maxRedirects is how many redirects of a target are followed.
	maxRedirects = 10
)

// scrapeTimeoutHeader is the header in which a Prometheus server sends its timeout.
const scrapeTimeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"

// source is a kind of pages, and whether the last one failed.
type source struct {
	name     string
	log      *slog.Logger
	failures atomic.Int64
	failing  atomic.Pointer[string]
}

// note counts and logs a failure. The same one is logged once, until there is another result.
func (s *source) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
		s.failures.Add(1)
	}
	last := s.failing.Swap(&text)
	switch {
	case text != "" && (last == nil || *last != text):
		s.log.Warn("the metrics of "+s.name+" are missing or incomplete", "error", text)
	case text == "" && last != nil && *last != "":
		s.log.Info("the metrics of " + s.name + " are complete again")
	}
}

// metrics serves the agent's metrics, then Envoy's, then the application's, as they arrive. A source that fails is counted and
// left out, and the status is still 200. [agent M1, M5, M8, M9]
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	limit := timeout(r)
	end := time.Now().Add(limit - min(limit/10, 500*time.Millisecond)) // before the client gives up
	ctx, cancel := context.WithDeadline(r.Context(), end)
	defer cancel()
	select {
	case s.scraping <- struct{}{}:
		defer func() { <-s.scraping }()
	case <-ctx.Done():
		http.Error(w, fmt.Sprintf("more than %d requests for metrics at once", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	s.scrapes.Add(1)
	_ = http.NewResponseController(w).SetWriteDeadline(end.Add(writeGrace))

	pages, whole, openMetrics := s.openTargets(ctx, r, limit)
	defer func() {
		for _, p := range pages {
			p.close()
		}
	}()
	f := s.o.Facts()
	var own Page
	s.collect(&own, f)
	for _, collect := range s.o.Collect {
		collect(&own)
	}

	w.Header().Set("Content-Type", whole)
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	body, finish := encoded(w, r)
	e := newExposition(bufio.NewWriterSize(body, outBuffer), openMetrics)
	err := s.join(ctx, e, own.Bytes(), f.Envoy.Running, r.URL.RawQuery, pages)
	if err == nil {
		err = e.finish()
	}
	if err == nil {
		err = finish()
	}
	if err != nil {
		s.o.Log.Debug("answer a request for metrics", "from", r.RemoteAddr, "error", err)
	}
}

// encoded returns where to write the body, in gzip if the client takes that, and what ends it.
func encoded(w http.ResponseWriter, r *http.Request) (io.Writer, func() error) {
	if !acceptsGzip(r.Header.Values("Accept-Encoding")) {
		return w, func() error { return nil }
	}
	w.Header().Set("Content-Encoding", "gzip")
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	return z, z.Close
}

// join writes all pages. Its errors are those of the client's connection.
func (s *Server) join(ctx context.Context, e *exposition, own []byte, envoy bool, query string, pages []*targetPage) error {
	e.begin(true)
	err := copyPage(e, func(w io.Writer) error {
		_, err := w.Write(own)
		return err
	})
	if err != nil {
		return err
	}
	left := 1 + len(pages)
	if envoy {
		part, cancel := share(ctx, left)
		e.beginEnvoy()
		err := copyPage(e, func(w io.Writer) error { return s.o.Proxy.Scrape(part, query, w) })
		cancel()
		if gone(ctx, err) {
			return err
		}
		s.envoy.note(err)
	}
	if len(s.o.Targets) == 0 {
		return nil
	}
	var errs error
	for _, p := range pages {
		left--
		if p.err == nil {
			part, cancel := share(ctx, left)
			stop := context.AfterFunc(part, p.cancel)
			e.begin(!p.openMetrics)
			p.err = copyPage(e, p.copy)
			stop()
			cancel()
		}
		if gone(ctx, p.err) {
			return p.err
		}
		if p.err != nil {
			errs = errors.Join(errs, fmt.Errorf("scrape %s: %w", p.url, p.err))
		}
	}
	s.app.note(errs)
	return nil
}

// gone reports whether an error is due to the client, not to a source.
func gone(ctx context.Context, err error) bool {
	var failed *writeError
	return errors.As(err, &failed) || err != nil && errors.Is(ctx.Err(), context.Canceled)
}

// share returns a context with an equal share of the time that is left, so that no source uses that of the others.
func share(ctx context.Context, sources int) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(max(1, sources)))
}

// copyPage adds the page that has begun, as far as it is valid.
func copyPage(e *exposition, from func(io.Writer) error) error {
	err := from(e)
	return errors.Join(err, e.end(err == nil))
}

// timeout returns the timeout that a Prometheus server sends. [agent M7]
func timeout(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get(scrapeTimeoutHeader), 64)
	if err != nil || !(seconds > 0) {
		return scrapeTimeout
	}
	return time.Duration(min(seconds, maxScrapeTimeout.Seconds()) * float64(time.Second))
}

// newClient returns the client for the application, which it reaches at loopback only.
func newClient(o *Options) *http.Client {
	port := o.Port
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			var err6 error
			if c, err6 = d.DialContext(ctx, "tcp", net.JoinHostPort("::1", port)); err6 != nil {
				return nil, err
			}
		}
		return c, nil
	}
	return &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			switch {
			case next.URL.Host != via[0].URL.Host || next.URL.Port() == strconv.Itoa(port):
				return fmt.Errorf("redirect to %s: want the port and the path of the metrics in prometheus.io/port and prometheus.io/path", next.URL.Redacted())
			case len(via) >= maxRedirects:
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			return nil
		},
	}
}

// targetPage is the response of a target, or the error.
type targetPage struct {
	url         string
	cancel      context.CancelFunc
	resp        *http.Response
	contentType string
	openMetrics bool
	err         error
}

func (p *targetPage) close() {
	if p.resp != nil {
		_ = p.resp.Body.Close()
	}
	p.cancel()
}

// copy writes the body, which is at most maxPage long.
func (p *targetPage) copy(w io.Writer) error {
	body := io.Reader(p.resp.Body)
	switch encoding := p.resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip": // though it was not asked for
		z, err := gzip.NewReader(body)
		if err != nil {
			return fmt.Errorf("decompress: %w", err)
		}
		body = z
	default:
		return fmt.Errorf("unknown Content-Encoding %.40q: want none or gzip", encoding)
	}
	n, err := io.Copy(w, io.LimitReader(body, maxPage))
	if err == nil && n == maxPage {
		err = fmt.Errorf("more than %d bytes", maxPage)
	}
	return err
}

// openTargets requests all targets at once and waits for the headers of their responses, at most half of the time: they decide
// the format of the whole. Targets that disagree are requested again as text. [agent M3, M6]
func (s *Server) openTargets(ctx context.Context, r *http.Request, limit time.Duration) (pages []*targetPage, whole string, openMetrics bool) {
	accept := accepted(r.Header.Values("Accept"))
	pages = s.request(ctx, r, s.o.Targets, accept, limit/2)
	formats := map[string]bool{}
	for _, p := range pages {
		if p.err == nil {
			formats[p.contentType] = true
			whole, openMetrics = p.contentType, p.openMetrics
		}
	}
	if len(formats) <= 1 {
		if whole == "" {
			whole = textContentType
		}
		return pages, whole, openMetrics
	}
	for i, p := range pages {
		if p.err != nil || !p.openMetrics {
			continue
		}
		p.close()
		pages[i] = s.request(ctx, r, s.o.Targets[i:i+1], textOnly, limit/4)[0]
		if p = pages[i]; p.err == nil && p.openMetrics {
			p.err = errors.New("the response is OpenMetrics though only text is accepted, as another target has it")
		}
	}
	return pages, textContentType, false
}

// request asks targets for their metrics, and waits for the headers of the responses.
func (s *Server) request(ctx context.Context, r *http.Request, targets []spec.Target, accept string, wait time.Duration) []*targetPage {
	end, _ := ctx.Deadline()
	rest := strconv.FormatFloat(time.Until(end).Seconds(), 'f', 3, 64)
	pages := make([]*targetPage, len(targets))
	answered := make(chan struct{}, len(targets))
	for i, t := range targets {
		ctx, cancel := context.WithCancel(ctx)
		p := &targetPage{url: "http://localhost:" + strconv.Itoa(t.Port) + t.Path, cancel: cancel}
		pages[i] = p
		header := http.Header{"Accept": {accept}, scrapeTimeoutHeader: {rest}}
		if agent := r.UserAgent(); agent != "" {
			header.Set("User-Agent", agent)
		}
		go func() {
			defer func() { answered <- struct{}{} }()
			timer := time.AfterFunc(wait, cancel)
			if p.open(ctx, s.client, header); !timer.Stop() {
				p.err = fmt.Errorf("no response within %v", wait)
			}
		}()
	}
	for range targets {
		<-answered
	}
	return pages
}

// open sends the request. The response's body is the caller's to close.
func (p *targetPage) open(ctx context.Context, client *http.Client, header http.Header) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, http.NoBody)
	if err != nil {
		p.err = err
		return
	}
	req.Header = header
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // it repeats the URL
			err = u.Err
		}
		p.err = err
		return
	}
	p.resp = resp
	if resp.StatusCode != http.StatusOK {
		p.err = fmt.Errorf("status %d: want 200", resp.StatusCode)
		return
	}
	p.contentType, p.openMetrics = contentType(strings.Join(resp.Header.Values("Content-Type"), ","))
}
