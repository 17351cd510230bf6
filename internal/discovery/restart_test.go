package discovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/test/wait"
)

// life is a directory of configuration and a state folder, used by one control plane after the other.
type life struct {
	t             *testing.T
	config, state string
	log           wait.Output
	adjust        func(*Options)
	plane         *plane
	end           func()
}

func newLife(t *testing.T, files map[string]string) *life {
	t.Helper()
	l := &life{t: t, config: t.TempDir(), state: wait.Folder(t), adjust: func(*Options) {}}
	for name, text := range files {
		l.write(name, text)
	}
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *life) write(name, text string) {
	l.t.Helper()
	path := filepath.Join(l.config, name)
	if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) remove(name string) {
	l.t.Helper()
	if err := os.Remove(filepath.Join(l.config, name)); err != nil {
		l.t.Fatal(err)
	}
}

// new makes a control plane, as New does.
func (l *life) new() (*Server, error) {
	any := "127.0.0.1:0"
	o := Options{
		ConfigDir: l.config, StateDir: l.state, Names: Names{Domain: "cluster.local", TrustDomain: "cluster.local", Namespace: "istio-system"},
		Ports: Ports{HTTP: any, GRPC: any, Monitoring: any}, HTTP: HTTPOptions{Shutdown: time.Second},
		Log: slog.New(slog.NewTextHandler(&l.log, nil)), Version: "test",
	}
	l.adjust(&o)
	return New(l.t.Context(), o)
}

// start starts the next control plane and waits until it has read its configuration.
func (l *life) start() {
	l.t.Helper()
	srv, err := l.new()
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	l.plane = &plane{t: l.t, server: srv, addr: srv.Addresses()}
	l.end = func() {
		stop()
		if err := <-ended; err != nil {
			l.t.Errorf("run: %v", err)
		}
	}
	wait.Until(l.t, "the configuration is read", func() (read bool) {
		srv.loop.ask(func() { read = srv.loop.gate.synced })
		return read
	})
}

// stop ends the control plane, which saves what it has not saved yet.
func (l *life) stop() {
	if l.end != nil {
		l.end()
	}
	l.end = nil
}

// restart stops the control plane, calls meanwhile, and starts the next one.
func (l *life) restart(meanwhile func()) {
	l.t.Helper()
	l.stop()
	meanwhile()
	l.start()
}

// ready waits until /ready has that status and text.
func (l *life) ready(code int, parts ...string) {
	l.t.Helper()
	wait.NoError(l.t, "/ready says it", func() error {
		got, body := l.plane.get(l.plane.addr.HTTP, "/ready")
		for _, p := range parts {
			if !strings.Contains(body, p) {
				return fmt.Errorf("%d %q, want %q", got, body, p)
			}
		}
		if got != code {
			return fmt.Errorf("%d %q, want %d", got, body, code)
		}
		return nil
	})
}

// listener opens a stream and returns the proxy with its inbound listener.
func (l *life) listener() *client {
	l.t.Helper()
	c := l.plane.dial("", "").open()
	c.expect("LDS", "virtualInbound")
	return c
}

// strict reports whether a listener accepts mutual TLS only; closed whether it accepts nothing.
func strict(c *client) bool { return !strings.Contains(c.text("virtualInbound"), "raw_buffer") }
func closed(c *client) bool {
	return !strings.Contains(c.text("virtualInbound"), "0.0.0.0_") && !strings.Contains(c.text("virtualInbound"), "InboundPassthroughCluster")
}

const (
	strictShop = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n"
	// A bracket is missing, so that the document cannot be parsed.
	brokenShop = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}\n"
)

// While the directory is away, nothing is removed, and for how long changes may be missing is said as of a cluster that cannot be read.
func TestADirectoryThatIsAwayIsBehind(t *testing.T) {
	const metric = "pilothouse_source_behind_seconds"
	beside := t.TempDir()
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": strictShop, "mesh.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"{configSources: [{address: 'fs://" + beside + "'}]}\"}\n"})
	l.start()
	l.ready(http.StatusOK, "ready")
	c := l.listener()
	generation := func() (n uint64) {
		l.plane.server.loop.ask(func() { n = l.plane.server.loop.views.generation })
		return n
	}
	before := generation()
	for what, dir := range map[string]string{"the directory": l.config, "one of configSources": beside} {
		behind := func(want bool) {
			t.Helper()
			wait.Until(t, what+" is away", func() bool { return (l.plane.metrics()[metric] > 0) == want })
		}
		behind(false)
		gone := time.Now()
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		l.ready(http.StatusOK, "ready", "changes since ", " may be missing, ")
		took := time.Since(gone).Seconds()
		if got := l.plane.metrics()[metric]; got < behindNoted.Seconds() || got > took+60 {
			t.Errorf("%s: behind for %v s, away for %v s", what, got, took)
		}
		if c := l.listener(); !strict(c) {
			t.Errorf("%s: STRICT is not in force while it is away", what)
		}
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
		behind(false)
		if _, body := l.plane.get(l.plane.addr.HTTP, "/ready"); strings.Contains(body, "may be missing") {
			t.Errorf("%s: /ready says %q when it is back", what, body)
		}
	}
	if now := generation(); now != before {
		t.Errorf("something has changed: generation %d, was %d", now, before)
	}
	l.write("policy.yaml", strings.Replace(strictShop, "STRICT", "PERMISSIVE", 1))
	c.until("virtualInbound", "raw_buffer")
}

func TestRestartKeepsLastGoodVersionOfUnreadableFiles(t *testing.T) {
	for name, text := range map[string]string{
		"a syntax error":           brokenShop,
		"a field that is unknown":  strings.Replace(strictShop, "mtls:", "mtsl:", 1),
		"a value that is refused":  strings.Replace(strictShop, "spec: {", "spec: {portLevelMtls: {80: {mode: STRICT}}, ", 1),
		"a document without names": "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": strictShop})
			l.start()
			l.ready(http.StatusOK, "ready")
			if c := l.listener(); !strict(c) {
				t.Fatal("STRICT is not enforced at all")
			}
			for range 2 { // restored objects are saved again
				l.restart(func() { l.write("policy.yaml", text) })
				l.ready(http.StatusOK, "ready", "1 of 3 objects in force are those of the saved configuration")
				if c := l.listener(); !strict(c) {
					t.Fatal("after a restart plaintext is accepted")
				}
			}
			if got := l.plane.objects(); len(got) < 2 || got[1].Meanwhile == "" || strings.Contains(got[1].Meanwhile, "no good value") || !strings.Contains(got[0].Text, "ago") {
				t.Errorf("objects say %+v", got)
			}
			_, metrics := l.plane.get(l.plane.addr.Monitoring, "/metrics")
			if !strings.Contains(metrics, "pilothouse_restored_objects 1") || !strings.Contains(metrics, "pilothouse_broken_policies 0") {
				t.Error("the metrics do not tell of it")
			}
			c := l.listener()
			l.write("policy.yaml", strings.Replace(strictShop, "STRICT", "PERMISSIVE", 1))
			c.until("virtualInbound", "raw_buffer")
			l.restart(func() { l.remove("policy.yaml") })
			if c := l.listener(); strict(c) {
				t.Error("what was deleted is enforced")
			}
		})
	}
}

func TestRestartKeepsServicesOfAnInvalidFile(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop})
	l.start()
	l.ready(http.StatusOK, "ready")
	l.restart(func() { l.write("shop.yaml", strings.ReplaceAll(shop, "spec: {", "spec: [")) })
	l.ready(http.StatusOK, "ready")
	if !l.plane.server.mayLack() {
		t.Error("with saved objects in force, what proxies claim and this process does not know is removed at once")
	}
	c := l.plane.dial("", "").open()
	c.expect("CDS", "outbound|9080||reviews.shop.svc.cluster.local")
	l.write("shop.yaml", strings.ReplaceAll(shop, "9080", "9081"))
	c.expect("CDS", "outbound|9081||reviews.shop.svc.cluster.local")
	if got := l.plane.objects(); len(got) != 0 || l.plane.server.mayLack() {
		t.Errorf("after the repair: %+v, may lack something %v", got, l.plane.server.mayLack())
	}
	if !strings.Contains(l.log.String(), "every object in force has been read from its source") {
		t.Errorf("the log does not say that the saved values are gone:\n%s", l.log.String())
	}
}

func TestMissingDirectoryIsServedFromSavedState(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": strictShop})
	aside := l.config + ".aside"
	l.adjust = func(o *Options) { o.MeshFile = filepath.Join(l.state, "mesh") }
	l.start()
	l.ready(http.StatusOK, "ready")
	l.restart(func() {
		if err := os.Rename(l.config, aside); err != nil {
			t.Fatal(err)
		}
	})
	l.ready(http.StatusOK, "3 of 3 objects in force are those of the saved configuration", "ago")
	if c := l.listener(); !strict(c) {
		t.Error("STRICT is not enforced")
	}
	if got := l.plane.objects(); len(got) != 2 || !strings.Contains(got[1].Text, "no such file") || got[1].Meanwhile != "what was read from there before stays" {
		t.Errorf("objects say %+v", got)
	}
	if err := os.Rename(aside, l.config); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the directory is read again", func() bool {
		_, body := l.plane.get(l.plane.addr.HTTP, "/ready")
		return body == "ready\n"
	})
}

// Whatever is in the place of the directory: what cannot be listed does not remove anything.
func TestWhatIsNotADirectoryIsServedFromSavedState(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a link to nothing": func(path string) error { return os.Symlink("nothing", path) },
		"a link to itself":  func(path string) error { return os.Symlink(path, path) },
		"a file":            func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": strictShop})
			l.start()
			l.ready(http.StatusOK, "ready")
			l.restart(func() {
				if err := errors.Join(os.RemoveAll(l.config), put(l.config)); err != nil {
					t.Fatal(err)
				}
			})
			l.ready(http.StatusOK, "3 of 3 objects in force are those of the saved configuration", " ago")
			if c := l.listener(); !strict(c) {
				t.Error("STRICT is not enforced")
			}
			if !strings.Contains(l.log.String(), "as they were saved") || !strings.Contains(l.log.String(), "age=") {
				t.Errorf("the log does not give the age:\n%s", l.log.String())
			}
		})
	}
}

// The directory is missing at start, then it is empty, as a volume is before it is filled.
func TestDirectoryThatReappearsEmptyRemovesNothing(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": strictShop})
	l.start()
	l.ready(http.StatusOK, "ready")
	l.restart(func() {
		if err := os.RemoveAll(l.config); err != nil {
			t.Fatal(err)
		}
	})
	l.ready(http.StatusOK, "3 of 3 objects")
	if err := os.Mkdir(l.config, 0o700); err != nil {
		t.Fatal(err)
	}
	l.ready(http.StatusOK, "3 of 3 objects", "the source is empty: 3 objects", "--accept-empty-config")
	if c := l.listener(); !strict(c) {
		t.Error("STRICT is not enforced")
	}
	l.write("shop.yaml", shop)
	wait.Until(t, "the directory counts", func() bool {
		_, body := l.plane.get(l.plane.addr.HTTP, "/ready")
		return body == "ready\n"
	})
	if c := l.listener(); strict(c) {
		t.Error("what is gone is enforced")
	}
}

func TestMissingDirectoryWithoutSavedStateIsAnError(t *testing.T) {
	l := newLife(t, nil)
	l.config = filepath.Join(l.config, "none")
	if _, err := l.new(); err == nil || !strings.Contains(err.Error(), l.config) {
		t.Errorf("error %v", err)
	}
}

func TestEmptyDirectoryWithRememberedObjectsIsNotServed(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop})
	l.start()
	l.ready(http.StatusOK, "ready")
	for range 2 { // the saved objects remain saved while they are not served
		l.restart(func() { _ = os.Remove(filepath.Join(l.config, "shop.yaml")) })
		l.ready(http.StatusServiceUnavailable, "not ready", "2 objects", "--accept-empty-config")
		if err := l.plane.dial("", "").refusal(); !strings.Contains(err.Error(), "--accept-empty-config") {
			t.Errorf("the stream ends with %v", err)
		}
		if got := l.plane.objects(); len(got) != 1 || !strings.Contains(got[0].Text, "no proxy is served") {
			t.Errorf("objects say %+v", got)
		}
	}
	l.write("other.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n")
	l.ready(http.StatusOK, "ready")

	l.adjust = func(o *Options) { o.Lenience.EmptyConfig = true }
	l.restart(func() { l.remove("other.yaml") })
	l.ready(http.StatusOK, "ready")
	l.adjust = func(*Options) {}
	l.restart(func() {})
	l.ready(http.StatusOK, "ready") // the empty configuration has been accepted before
}

func TestUnusableSavedFileIsRenamed(t *testing.T) {
	good, err := new(saved.Encoder).Encode(time.Now(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cut": string(good[:20]), "newer": strings.Replace(string(good), "configuration 1", "configuration 2", 1), "nothing": "", "flipped": strings.Replace(string(good), "objects", "objectz", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, map[string]string{"shop.yaml": shop})
			path := filepath.Join(l.state, savedFile)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			l.start()
			l.ready(http.StatusOK, "ready")
			if aside, err := os.ReadFile(path + ".unusable"); err != nil || string(aside) != text {
				t.Errorf("renamed to %q, %v", aside, err)
			}
			if n := strings.Count(l.log.String(), "cannot be used and is renamed"); n != 1 {
				t.Errorf("it is told %d times:\n%s", n, l.log.String())
			}
			l.stop()
			if text, err := os.ReadFile(path); err != nil {
				t.Error(err)
			} else if set, err := saved.Decode(text); err != nil || len(set.Objects) != 2 {
				t.Errorf("saved is %+v, %v", set, err)
			}
		})
	}
}

// A later release has saved kinds and fields that this one does not know: the rest is used, and one line says
// so.
func TestSavedFileOfALaterRelease(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop, "policy.yaml": strictShop})
	l.start()
	l.ready(http.StatusOK, "ready")
	l.stop()
	path := filepath.Join(l.state, savedFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(text), "\n")
	body = strings.Replace(body, `"objects":3`, `"shards":2,"objects":5`, 1) + `{"kind":"ProxyPolicy","name":"p","namespace":"shop","spec":{"a":1}}` + "\n" + `{"lease":"x"}` + "\n"
	body = strings.Replace(body, `"spec":{`, `"spec":{"Later":true,`, 1)
	text = fmt.Appendf(nil, "pilothouse-saved-configuration %d sha256:%x\n%s", saved.Version, sha256.Sum256([]byte(body)), body)
	if err := errors.Join(os.WriteFile(path, text, 0o600), os.RemoveAll(l.config)); err != nil {
		t.Fatal(err)
	}
	l.start()
	l.ready(http.StatusOK, "3 of 3 objects in force are those of the saved configuration")
	if c := l.listener(); !strict(c) {
		t.Error("STRICT is not enforced")
	}
	if n := strings.Count(l.log.String(), "saved configuration is of a later release"); n != 1 || !strings.Contains(l.log.String(), "ProxyPolicy") {
		t.Errorf("it is logged %d times:\n%s", n, l.log.String())
	}
}

// No Secret gets into the state folder, in whatever form it is given.
func TestSecretsAreNotSaved(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop, "secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop, annotations: {note: annotated-secret}}\n" +
		"stringData: {password: hunter2-in-plain}\ndata: {token: aHVudGVyMy1pbi1iYXNlNjQ=}\n"})
	l.start()
	l.ready(http.StatusOK, "ready")
	l.stop()
	err := filepath.WalkDir(l.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, part := range []string{"hunter2", "aHVudGVyMi1pbi1wbGFpb", "hunter3", "aHVudGVyMy1pbi1iYXNlNjQ", "annotated-secret"} {
			if strings.Contains(string(text), part) {
				t.Errorf("%s contains %q", path, part)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(l.state, savedFile)); err != nil || !strings.Contains(string(text), `"Service"`) {
		t.Errorf("the Service is not saved: %v", err)
	}
}

// A folder has the name of the file, so that every write fails, even for root.
func TestUnwritableStateFolderDoesNotStopServing(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop})
	path := filepath.Join(l.state, savedFile)
	l.start()
	l.ready(http.StatusOK, "ready")
	k := l.plane.server.loop.kept
	wait.Until(t, "the first state is saved", func() bool { return k.stats.written.Load() > 0 })
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	c := l.listener()
	l.write("policy.yaml", strictShop)
	c.untilGone("virtualInbound", "raw_buffer")
	l.ready(http.StatusOK, "ready", "cannot be saved")
	l.write("policy.yaml", strings.Replace(strictShop, "STRICT", "PERMISSIVE", 1))
	c.until("virtualInbound", "raw_buffer")
	_, metrics := l.plane.get(l.plane.addr.Monitoring, "/metrics")
	if !strings.Contains(metrics, "pilothouse_save_failing 1") || strings.Contains(metrics, "pilothouse_save_failures_total 0") {
		t.Error("the metrics do not tell of it")
	}
	if n := strings.Count(l.log.String(), "configuration cannot be saved"); n != 1 {
		t.Errorf("it is told %d times:\n%s", n, l.log.String())
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	l.stop() // saves what has not been saved
	if n := strings.Count(l.log.String(), "configuration is saved again"); n != 1 {
		t.Errorf("the end of it is told %d times:\n%s", n, l.log.String())
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Error("nothing was saved at the end")
	}
}

func TestMeshFileIsRemembered(t *testing.T) {
	l := newLife(t, map[string]string{"shop.yaml": shop})
	file := filepath.Join(l.state, "mesh")
	l.adjust = func(o *Options) { o.MeshFile = file }
	if err := os.WriteFile(file, []byte("outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.start()
	l.plane.dial("", "").open().until("9080", "block_all")
	for _, text := range []string{"outboundTrafficPolicy: {mode: ALWAYS}\n", "outboundTrafficPolicy: [\n"} {
		l.restart(func() {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		})
		l.plane.dial("", "").open().until("9080", "block_all")
	}
	l.restart(func() { // a folder cannot be read as a file
		if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
			t.Fatal(err)
		}
	})
	l.plane.dial("", "").open().until("9080", "block_all")
}
