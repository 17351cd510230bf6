package wasm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// binary is a module as far as the agent looks at it.
var binary = append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Repeat([]byte("code"), 1000)...)

func sum(b []byte) string { return hex.EncodeToString(digestOf(b)) }

func zipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}

func archive(files map[string][]byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, b := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(b)), Typeflag: tar.TypeReg})
		_, _ = w.Write(b)
	}
	_ = w.Close()
	return out.Bytes()
}

func cacheOf(t *testing.T, change func(*Options)) *Cache {
	t.Helper()
	o := Options{
		Dir: filepath.Join(t.TempDir(), "data"), Expiry: time.Hour, PurgeInterval: time.Hour, Timeout: 30 * time.Second, MaxSize: 1 << 20,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&o)
	}
	return New(o)
}

// site serves what it has by path, and counts the requests.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte
	asked atomic.Int32
}

func newSite(t *testing.T, files map[string][]byte) *site {
	s := &site{files: files}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		s.mu.Lock()
		b, ok := s.files[r.URL.Path]
		s.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(b)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestModulesOverHTTP(t *testing.T) {
	s := newSite(t, map[string][]byte{
		"/raw": binary, "/gz": zipped(binary), "/tar": archive(map[string][]byte{"a": []byte("x"), "b/plugin.wasm": binary}),
		"/tgz": zipped(archive(map[string][]byte{"./plugin.wasm": binary})), "/html": []byte("<html>" + strings.Repeat("x", 2000)), "/empty": nil,
		"/other": archive(map[string][]byte{"other.wasm": binary}), "/fake": archive(map[string][]byte{"plugin.wasm": []byte("text")}),
		"/large": append([]byte("\x00asm"), make([]byte, 2<<20)...), "/bomb": zipped(append([]byte("\x00asm"), make([]byte, 2<<20)...)),
	})
	for _, c := range []struct{ path, sha256, want string }{
		{"/raw", "", ""}, {"/raw", sum(binary), ""}, {"/raw", "sha256:" + strings.ToUpper(sum(binary)), ""}, {"/gz", sum(binary), ""}, {"/tar", "", ""}, {"/tgz", sum(binary), ""},
		{"/raw", sum([]byte("x")), "want " + sum([]byte("x"))}, {"/raw", "abc", "invalid sha256"}, {"/none", "", "status 404"},
		{"/html", "", "want a Wasm module"}, {"/empty", "", "no module"}, {"/other", "", "no module"}, {"/fake", "", "is no module"},
		{"/large", "", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES"}, {"/bomb", "", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES"},
	} {
		cache := cacheOf(t, nil)
		file, err := cache.get(t.Context(), Module{URL: s.URL + c.path, SHA256: c.sha256})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %s: %s, %v, want %q", c.path, c.sha256, file, err, c.want)
			}
			if left, _ := filepath.Glob(filepath.Join(cache.o.Dir, "*", "*")); len(left) > 0 || cache.Stats().Entries != 0 {
				t.Errorf("%s: %q is left, %+v", c.path, left, cache.Stats())
			}
			continue
		}
		want := filepath.Join(cache.o.Dir, sum([]byte(s.URL+c.path)), sum(binary)+".wasm")
		if got, readErr := os.ReadFile(file); err != nil || file != want || !bytes.Equal(got, binary) {
			t.Errorf("%s: %s, %v, %v, want %s", c.path, file, err, readErr, want)
		}
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v, want a file that Envoy's user can read", c.path, st, err)
		}
	}
	for _, u := range []string{"ftp://a/b", "http://", "://", "http://" + strings.Repeat("x", maxURL)} {
		if _, err := cacheOf(t, nil).get(t.Context(), Module{URL: u}); err == nil {
			t.Errorf("%.30s: want an error", u)
		}
	}
}

func TestModulesAreFetchedOnceAndExpire(t *testing.T) {
	s := newSite(t, map[string][]byte{"/m": binary})
	cache := cacheOf(t, nil)
	m := Module{URL: s.URL + "/m", SHA256: sum(binary)}
	var running sync.WaitGroup
	for range 10 {
		running.Go(func() {
			if _, err := cache.get(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if n := s.asked.Load(); n != 1 {
		t.Errorf("%d requests, want one", n)
	}
	if got := cache.Stats(); got != (Stats{Hits: 9, Misses: 1, Fetched: 1, Entries: 1}) {
		t.Errorf("%+v", got)
	}
	// The next agent finds what this one has left, if it is what is wanted.
	next := cacheOf(t, func(o *Options) { o.Dir = cache.o.Dir })
	file, err := next.get(t.Context(), m)
	if err != nil || s.asked.Load() != 1 {
		t.Fatalf("%v, %d requests, want one", err, s.asked.Load())
	}
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cacheOf(t, func(o *Options) { o.Dir = cache.o.Dir }).get(t.Context(), m); err != nil || s.asked.Load() != 2 {
		t.Errorf("%v, %d requests, want another one for a damaged file", err, s.asked.Load())
	}
	next.purge(time.Now().Add(59 * time.Minute))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("removed too early: %v", err)
	}
	next.purge(time.Now().Add(61 * time.Minute))
	if _, err := os.Stat(filepath.Dir(file)); !os.IsNotExist(err) || next.Stats().Entries != 0 {
		t.Errorf("not removed: %v, %+v", err, next.Stats())
	}
	if _, err := cache.get(t.Context(), m); err != nil || s.asked.Load() != 3 {
		t.Errorf("%v, %d requests, want another one for a file that is gone", err, s.asked.Load())
	}
}

func TestPolicyAlways(t *testing.T) {
	s := newSite(t, map[string][]byte{"/m": binary})
	cache := cacheOf(t, nil)
	for _, c := range []struct {
		version string
		always  bool
		want    int32
	}{{"1", true, 1}, {"1", true, 1}, {"2", false, 1}, {"2", true, 2}, {"2", true, 2}} {
		if _, err := cache.get(t.Context(), Module{URL: s.URL + "/m", Always: c.always, Version: c.version}); err != nil || s.asked.Load() != c.want {
			t.Errorf("%+v: %v, %d requests", c, err, s.asked.Load())
		}
	}
}

func TestFetchesAreRepeatedAndBounded(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(binary)
	}))
	defer s.Close()
	if _, err := cacheOf(t, func(o *Options) { o.Retries = 1 }).get(t.Context(), Module{URL: s.URL}); err != nil || asked.Load() != 2 {
		t.Errorf("%v, %d requests, want two", err, asked.Load())
	}
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	if _, err := cacheOf(t, nil).get(t.Context(), Module{URL: hangs.URL, Timeout: 50 * time.Millisecond}); err == nil || !strings.Contains(err.Error(), "not fetched within 50ms") {
		t.Errorf("%v, want the timeout", err)
	}
	blocked := cacheOf(t, func(o *Options) { o.Blocked = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	if _, err := blocked.get(t.Context(), Module{URL: s.URL}); err == nil || !strings.Contains(err.Error(), "BLOCKED_CIDRS_IN_WASM_FETCH") {
		t.Errorf("%v, want the blocked address", err)
	}
	secure := httptest.NewTLSServer(s.Config.Handler)
	defer secure.Close()
	if _, err := cacheOf(t, nil).get(t.Context(), Module{URL: secure.URL}); err == nil {
		t.Error("a certificate of nobody's is accepted")
	}
	if _, err := cacheOf(t, func(o *Options) { o.InsecureRegistries = []string{"127.0.0.1"} }).get(t.Context(), Module{URL: secure.URL}); err != nil {
		t.Errorf("an insecure host: %v", err)
	}
}

// registry is one with an image a/b:v1, for which it wants a token if it has a password.
type registry struct {
	*httptest.Server
	manifests map[string]string
	blobs     map[string][]byte
	password  string
	basic     bool
}

func digest(b []byte) string { return "sha256:" + sum(b) }

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	user, password, hasBasic := q.BasicAuth()
	if q.URL.Path == "/token" {
		if q.URL.Query().Get("scope") != "repository:a/b:pull" || q.URL.Query().Get("service") != "s" || r.password != "" && (user != "u" || password != r.password) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"token": "good"}`)
		return
	}
	if r.password != "" {
		switch {
		case r.basic && hasBasic && password == r.password, !r.basic && q.Header.Get("Authorization") == "Bearer good":
		case r.basic:
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:a/b:pull"`, r.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	}
	if ref, ok := strings.CutPrefix(q.URL.Path, "/v2/a/b/manifests/"); ok && r.manifests[ref] != "" {
		fmt.Fprint(w, r.manifests[ref])
		return
	}
	if ref, ok := strings.CutPrefix(q.URL.Path, "/v2/a/b/blobs/"); ok && r.blobs[ref] != nil {
		_, _ = w.Write(r.blobs[ref])
		return
	}
	http.NotFound(w, q)
}

func manifestOf(layers ...descriptor) string {
	b, _ := json.Marshal(manifest{MediaType: ociManifest, Layers: layers})
	return string(b)
}

func newRegistry(t *testing.T, tls bool) *registry {
	layer := zipped(archive(map[string][]byte{"plugin.wasm": binary}))
	r := &registry{blobs: map[string][]byte{digest(layer): layer, digest(binary): binary, digest([]byte("damaged")): layer}, manifests: map[string]string{}}
	image := manifestOf(descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: digest([]byte("base"))}, descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: digest(layer)})
	r.manifests["v1"] = image
	r.manifests[digest([]byte(image))] = image
	r.manifests["raw"] = manifestOf(descriptor{MediaType: wasmLayer, Digest: digest(binary)}, descriptor{MediaType: "x", Digest: digest([]byte("none"))})
	r.manifests["index"] = fmt.Sprintf(`{"manifests": [{"digest": %q}]}`, digest([]byte(image)))
	r.manifests["many"] = fmt.Sprintf(`{"manifests": [{"digest": %q}, {"digest": %q}]}`, digest([]byte(image)), digest([]byte(image)))
	r.manifests["damaged"] = manifestOf(descriptor{Digest: digest([]byte("damaged"))})
	r.manifests["strange"] = manifestOf(descriptor{Digest: "sha256:../../x"})
	r.manifests["empty"] = "{}"
	r.manifests[digest([]byte("forged"))] = image
	if r.Server = httptest.NewUnstartedServer(r); tls {
		r.StartTLS()
	} else {
		r.Start()
	}
	t.Cleanup(r.Close)
	return r
}

func TestModulesOfRegistries(t *testing.T) {
	for _, tls := range []bool{true, false} {
		r := newRegistry(t, tls)
		host := r.Listener.Addr().String()
		insecure := func(o *Options) { o.InsecureRegistries = []string{host} }
		image := digest([]byte(r.manifests["v1"]))
		for _, c := range []struct{ ref, sha256, want string }{
			{"a/b:v1", "", ""}, {"a/b:v1", strings.TrimPrefix(image, "sha256:"), ""}, {"a/b:v1", sum(binary), ""}, {"a/b@" + image, "", ""}, {"a/b:other@" + image, "", ""},
			{"a/b:raw", "", ""}, {"a/b:index", "", ""},
			{"a/b:v1", sum([]byte("x")), "want " + sum([]byte("x"))}, {"a/b:none", "", "status 404"}, {"a/b:many", "", "2 platforms"}, {"a/b:damaged", "", "digest"},
			{"a/b:strange", "", "invalid digest"}, {"a/b:empty", "", "0 layers"}, {"a/b@" + digest([]byte("forged")), "", "the manifest has the digest"},
			{"a/b@sha256:12", "", "invalid digest"}, {"a/../b:v1", "", "invalid repository"}, {"a/b:v 1", "", "invalid tag"}, {"A:v1", "", "invalid repository"},
		} {
			file, err := cacheOf(t, insecure).get(t.Context(), Module{URL: "oci://" + host + "/" + strings.ReplaceAll(c.ref, " ", "%20"), SHA256: c.sha256})
			if c.want == "" {
				if got, readErr := os.ReadFile(file); err != nil || !bytes.Equal(got, binary) {
					t.Errorf("TLS %v, %s: %v, %v", tls, c.ref, err, readErr)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("TLS %v, %s: %v, want %q", tls, c.ref, err, c.want)
			}
		}
		if _, err := cacheOf(t, nil).get(t.Context(), Module{URL: "oci://" + host + "/a/b:v1"}); err == nil {
			t.Errorf("TLS %v: a registry that does not prove who it is is used", tls)
		}
	}
}

func TestImagePullSecrets(t *testing.T) {
	r := newRegistry(t, false)
	host := r.Listener.Addr().String()
	auth := func(user string) []byte {
		return []byte(fmt.Sprintf(`{"auths": {"other.test": {"auth": "eDp5"}, "http://%s/v1/": {"auth": %q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user))))
	}
	r.password = "p"
	for _, basic := range []bool{false, true} {
		r.basic = basic
		for _, c := range []struct {
			secret []byte
			good   bool
		}{
			{auth("u:p"), true}, {auth("u:wrong"), false}, {nil, false}, {[]byte(`{"auths": {"other.test": {"auth": "dTpw"}}}`), false}, {[]byte(`[`), false},
			{[]byte(fmt.Sprintf(`{"auths": {%q: {"username": "u", "password": "p"}}}`, host)), true},
		} {
			_, err := cacheOf(t, func(o *Options) { o.InsecureRegistries = []string{"*"} }).get(t.Context(), Module{URL: "oci://" + host + "/a/b:v1", Secret: c.secret})
			if (err == nil) != c.good {
				t.Errorf("basic %v, %s: %v", basic, c.secret, err)
			}
			if err != nil && strings.Contains(err.Error(), "wrong") {
				t.Errorf("the error has the password: %v", err)
			}
		}
	}
	// What one has fetched another one without the secret does not get.
	cache := cacheOf(t, func(o *Options) { o.InsecureRegistries = []string{"*"} })
	if _, err := cache.get(t.Context(), Module{URL: "oci://" + host + "/a/b:v1", Secret: auth("u:p")}); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.get(t.Context(), Module{URL: "oci://" + host + "/a/b:v1"}); err == nil {
		t.Error("a module is given without the secret that it needs")
	}
	if _, err := cache.get(t.Context(), Module{URL: "oci://" + host + "/a/b:v1", SecretMissing: true}); err == nil {
		t.Error("a module is given although its secret is missing")
	}
}

func TestRunEnds(t *testing.T) {
	cache := cacheOf(t, func(o *Options) { o.PurgeInterval, o.Expiry = time.Millisecond, 0 })
	s := newSite(t, map[string][]byte{"/m": binary})
	file, err := cache.get(t.Context(), Module{URL: s.URL + "/m"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cache.Run(ctx) }()
	wait.Until(t, "the module is removed", func() bool { _, err := os.Stat(file); return os.IsNotExist(err) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
