package wasm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// moduleFile is the name of a module in an archive.
	moduleFile = "plugin.wasm"
	// maxHeader bounds the header of a response, in bytes.
	maxHeader = 64 << 10
	// firstPause is the time before the first repetition of a fetch. It doubles, up to maxPause.
	firstPause, maxPause = 500 * time.Millisecond, 10 * time.Second
	dialTimeout          = 5 * time.Second
)

// client fetches modules.
type client struct {
	o *Options
	// verified checks certificates, insecure does not.
	verified, insecure *http.Client
}

func newClient(o *Options) *client {
	d := &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error { return o.allow(address) }}
	make := func(config *tls.Config) *http.Client {
		o.TLS.Apply(config)
		return &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: d.DialContext, TLSClientConfig: config, ForceAttemptHTTP2: true,
			// Modules are fetched seldom: no connection is kept.
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		}}
	}
	return &client{
		o: o, verified: make(&tls.Config{MinVersion: tls.VersionTLS12}),
		insecure: make(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}), // #nosec G402 -- for hosts that a setting names
	}
}

func (c *client) close() {
	c.verified.CloseIdleConnections()
	c.insecure.CloseIdleConnections()
}

// allow returns an error if an address must not be connected to.
func (o *Options) allow(address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := a.Addr().Unmap().WithZone("")
	for _, p := range o.Blocked {
		if p.Contains(ip) {
			return fmt.Errorf("connect to %s: BLOCKED_CIDRS_IN_WASM_FETCH has %s", ip, p)
		}
	}
	return nil
}

// isInsecure reports whether a host need not prove who it is.
func (o *Options) isInsecure(host string) bool {
	return slices.Contains(o.InsecureRegistries, "*") || slices.Contains(o.InsecureRegistries, host) || slices.Contains(o.InsecureRegistries, hostname(host))
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// permanentError is an error that a repetition would not change.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(format string, args ...any) error { return permanentError{fmt.Errorf(format, args...)} }

// fetch fetches a module into a folder, and returns the file.
func (c *client) fetch(ctx context.Context, m Module, dir string) (string, error) {
	u, err := url.Parse(m.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "oci" {
		return "", fmt.Errorf("invalid URL %s: want http://, https:// or oci://", printable.Quote(m.URL, maxURL))
	}
	pause := firstPause
	for try := 0; ; try++ {
		file, err := c.once(ctx, m, u, dir)
		var p permanentError
		if err == nil || errors.As(err, &p) || try >= c.o.Retries || ctx.Err() != nil {
			return file, err
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return "", ctx.Err()
		}
		pause = min(2*pause, maxPause)
	}
}

func (c *client) once(ctx context.Context, m Module, u *url.URL, dir string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, m.Timeout, fmt.Errorf("not fetched within %v", m.Timeout))
	defer cancel()
	file, err := func() (string, error) {
		if u.Scheme == "oci" {
			return c.image(ctx, m, u, dir)
		}
		h := c.verified
		if c.o.isInsecure(u.Host) {
			h = c.insecure
		}
		resp, err := get(ctx, h, u.String(), nil)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return c.save(resp.Body, dir, "", func(sum string) (string, error) {
			if m.SHA256 != "" && sum != m.SHA256 {
				return "", permanent("the module has SHA-256 %s: want %s", sum, m.SHA256)
			}
			return sum, nil
		})
	}()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return file, err
}

// get sends a GET, whose answer is 200.
func get(ctx context.Context, h *http.Client, u string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, http.NoBody)
	if err != nil {
		return nil, permanentError{err}
	}
	if header != nil {
		req.Header = header
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	err = &statusError{code: resp.StatusCode, url: req.URL.Redacted(), challenge: resp.Header.Values("WWW-Authenticate")}
	_ = resp.Body.Close()
	if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout {
		err = permanentError{err}
	}
	return nil, err
}

// statusError is an answer other than 200.
type statusError struct {
	code      int
	url       string
	challenge []string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("GET %s: status %d: want 200", printable.Quote(e.url, maxURL), e.code)
}

// save writes the module that a body has to a file of a folder. The body is the module itself, or a tar archive with plugin.wasm, or one
// of these compressed. If digest is not empty, the body must have it. name decides from the module's SHA-256 what the file is
// called, or whether it is refused.
func (c *client) save(body io.Reader, dir, digest string, name func(sum string) (string, error)) (file string, err error) {
	whole := sha256.New()
	raw := &bounded{r: io.TeeReader(body, whole), left: c.o.MaxSize}
	tmp, err := os.CreateTemp(dir, ".fetching-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if tmp.Close(); err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	sum := sha256.New()
	if err := c.extract(raw, tmp, sum); err != nil {
		return "", err
	}
	if digest != "" {
		if _, err := io.Copy(io.Discard, raw); err != nil {
			return "", err
		}
		if got := "sha256:" + hex.EncodeToString(whole.Sum(nil)); got != digest {
			return "", permanent("the layer has the digest %s: want %s", got, digest)
		}
	}
	called, err := name(hex.EncodeToString(sum.Sum(nil)))
	if err != nil {
		return "", err
	}
	if err := tmp.Chmod(0o644); err != nil { // Envoy may run as another user
		return "", err
	}
	if err := tmp.Sync(); err != nil {
		return "", err
	}
	file = filepath.Join(dir, called+".wasm")
	if file, err = filepath.Abs(file); err != nil { // Envoy may have another working directory
		return "", err
	}
	return file, os.Rename(tmp.Name(), file)
}

// Beginnings of files.
var (
	magicWasm = []byte("\x00asm")
	magicGzip = []byte{0x1f, 0x8b}
)

// extract writes the module in r to w and to sum.
func (c *client) extract(r io.Reader, w io.Writer, sum hash.Hash) error {
	in := bufio.NewReader(r)
	if begin, _ := in.Peek(len(magicGzip)); bytes.Equal(begin, magicGzip) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in = bufio.NewReader(&bounded{r: z, left: c.o.MaxSize})
	}
	begin, err := in.Peek(len(magicWasm))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(begin, magicWasm) {
		if in, err = inArchive(in); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.MultiWriter(w, sum), in)
	return err
}

// inArchive finds the module in a tar archive.
func inArchive(r io.Reader) (*bufio.Reader, error) {
	const want = "want a Wasm module, or an archive with " + moduleFile
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil, permanent("no module: %s", want)
		}
		if err != nil {
			var large *tooLargeError
			if errors.As(err, &large) {
				return nil, err
			}
			return nil, permanent("neither a module nor an archive: %w: %s", err, want)
		}
		if h.Typeflag != tar.TypeReg || path.Base(h.Name) != moduleFile {
			continue
		}
		in := bufio.NewReader(archive)
		if begin, _ := in.Peek(len(magicWasm)); !bytes.Equal(begin, magicWasm) {
			return nil, permanent("%s in the archive is no module: it begins with %q", moduleFile, begin)
		}
		return in, nil
	}
}

// tooLargeError is a module that is larger than allowed.
type tooLargeError struct{}

func (*tooLargeError) Error() string {
	return "the module is larger than ISTIO_WASM_MAX_BINARY_SIZE_BYTES allows"
}

// bounded reads at most left bytes, and returns an error if there are more.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, permanentError{&tooLargeError{}}
	}
	return n, err
}

// sumOf returns the SHA-256 of a file.
func sumOf(file string) (string, error) {
	f, err := filewatch.OpenRegular(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
