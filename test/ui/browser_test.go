package ui_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// browser is a headless Chromium, which is spoken to by the DevTools protocol over two pipes: messages are JSON, with a zero
// byte after each.
type browser struct {
	t    *testing.T
	to   *os.File
	log  *wait.Output
	mu   sync.Mutex
	next int
	// answers are waited for by the number of their command.
	answers map[int]chan answer
	pages   map[string]*page // by session
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// message is an answer, or an event of a page.
type message struct {
	ID        int    `json:"id"`
	Method    string `json:"method"`
	SessionID string `json:"sessionId"`
	Params    json.RawMessage
	answer
}

// chromium is the program that is tested with: what CHROMIUM names, else Debian's.
func chromium() (string, error) {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path, nil
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		return "", fmt.Errorf("run 'make deps' first, or set CHROMIUM=/path/to/chromium: the tests of the page start a browser: %w", err)
	}
	return path, nil
}

// launch starts a browser, which ends with the test.
func launch(t *testing.T) *browser {
	t.Helper()
	path, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, to: inW, log: &wait.Output{}, answers: map[int]chan answer{}, pages: map[string]*page{}}
	profile := t.TempDir()
	c := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+profile,
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
		"--proxy-server=direct://", "--lang=en", "--hide-scrollbars", "about:blank")
	// What the user who runs the test has configured must not matter.
	c.Env = append(os.Environ(), "HOME="+profile, "XDG_CONFIG_HOME="+profile, "XDG_CACHE_HOME="+profile, "DBUS_SESSION_BUS_ADDRESS=disabled:")
	c.ExtraFiles, c.Stderr, c.Stdout = []*os.File{inR, outW}, b.log, b.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = inR.Close()
	_ = outW.Close()
	var read sync.WaitGroup
	read.Go(func() { b.receive(outR) })
	t.Cleanup(func() {
		_ = inW.Close() // the browser ends then
		ended := time.AfterFunc(10*time.Second, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		ended.Stop()
		read.Wait()
		_ = outR.Close()
	})
	return b
}

// receive distributes messages until the browser ends.
func (b *browser) receive(from io.Reader) {
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			for _, c := range b.answers {
				close(c)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.answers[m.ID]; m.ID != 0 && c != nil {
			c <- m.answer
			delete(b.answers, m.ID)
		} else if p := b.pages[m.SessionID]; p != nil {
			p.event(m)
		}
		b.mu.Unlock()
	}
}

// call sends a command and decodes its result into out, which may be nil.
func (b *browser) call(session, method string, params, out any) {
	b.t.Helper()
	c := make(chan answer, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	if b.answers == nil {
		b.mu.Unlock()
		b.t.Fatalf("%s: the browser has ended: %s", method, b.log)
	}
	b.answers[id] = c
	b.mu.Unlock()
	if params == nil {
		params = map[string]any{}
	}
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": session})
	if err != nil {
		b.t.Fatal(err)
	}
	if session == "" {
		text = bytes.Replace(text, []byte(`,"sessionId":""`), nil, 1)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v: %s", method, err, b.log)
	}
	limit := time.NewTimer(wait.Bound)
	defer limit.Stop()
	select {
	case a, ok := <-c:
		if !ok {
			b.t.Fatalf("%s: the browser has ended: %s", method, b.log)
		}
		if a.Error != nil {
			b.t.Fatalf("%s: %s", method, a.Error.Message)
		}
		if out != nil {
			if err := json.Unmarshal(a.Result, out); err != nil {
				b.t.Fatalf("%s: %v: %.500s", method, err, a.Result)
			}
		}
	case <-limit.C:
		b.t.Fatalf("%s: no answer within %v: %s", method, wait.Bound, b.log)
	}
}

// page is one tab.
type page struct {
	*browser
	session string
	// complaints are what the console, the network and the policy of contents have complained about; the browser's lock guards them.
	complaints []string
	requests   []string // URLs
}

// screen is how a page is seen.
type screen struct {
	width, height int
	dark          bool
}

func (s screen) String() string {
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	return fmt.Sprintf("%d-%s", s.width, scheme)
}

// open opens a URL in a new tab.
func (b *browser) open(url string, s screen) *page {
	b.t.Helper()
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p := &page{browser: b, session: session.SessionID}
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility", "DOM"} {
		p.do(domain+".enable", nil, nil)
	}
	p.see(s)
	p.do("Page.navigate", map[string]any{"url": url}, nil)
	return p
}

// see sets the size and the colors of the screen.
func (p *page) see(s screen) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": s.width, "height": s.height, "deviceScaleFactor": 1, "mobile": s.width < 600}, nil)
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

func (p *page) do(method string, params, out any) {
	p.t.Helper()
	p.call(p.session, method, params, out)
}

// event notes what a page complains about, and what it asks for. The browser's lock is held.
func (p *page) event(m message) {
	switch m.Method {
	case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
		p.complaints = append(p.complaints, m.Method+" "+string(m.Params))
	case "Network.requestWillBeSent":
		var r struct{ Request struct{ URL string } }
		if json.Unmarshal(m.Params, &r) == nil {
			p.requests = append(p.requests, r.Request.URL)
		}
	}
}

func (p *page) complained() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.complaints...)
}

// eval returns the value of an expression in the page, which may be a promise.
func eval[T any](p *page, expression string) (out T) {
	p.t.Helper()
	var got struct {
		Result           struct{ Value T }
		ExceptionDetails json.RawMessage
	}
	p.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true, "allowUnsafeEvalBlockedByCSP": false}, &got)
	if len(got.ExceptionDetails) > 0 {
		p.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return got.Result.Value
}

// await waits until an expression in the page is true; one that fails is not, as the page may not be there yet.
func (p *page) await(expression string) {
	p.t.Helper()
	wait.NoError(p.t, expression, func() error {
		if eval[bool](p, "(() => { try { return !!("+expression+"); } catch { return false; } })()") {
			return nil
		}
		return fmt.Errorf("the page shows: %s", eval[string](p, "document.body.innerText"))
	})
}

// key presses a key as a person does.
func (p *page) key(name string) {
	p.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, " ": 32}
	press := map[string]any{"type": "keyDown", "key": name, "code": strings.ReplaceAll(name, " ", "Space"), "windowsVirtualKeyCode": codes[name]}
	switch name {
	case "Enter":
		press["text"] = "\r"
	case " ":
		press["text"] = " "
	}
	p.do("Input.dispatchKeyEvent", press, nil)
	press["type"] = "keyUp"
	delete(press, "text")
	p.do("Input.dispatchKeyEvent", press, nil)
}

// click presses the mouse in the middle of an element as a person does.
func (p *page) click(selector string) {
	p.t.Helper()
	at := eval[[]float64](p, fmt.Sprintf("(() => { const e = document.querySelector(%q); e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()", selector))
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.do("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1}, nil)
	}
}

// write writes a text into what has the focus.
func (p *page) write(text string) {
	p.t.Helper()
	p.do("Input.insertText", map[string]any{"text": text}, nil)
}

// screenshots is where pictures of the pages are kept, for people to look at.
const screenshots = "screenshots"

// shoot keeps a picture of what the screen shows.
func (p *page) shoot(name string) {
	p.t.Helper()
	var got struct{ Data string }
	p.do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": false}, &got)
	png, err := base64.StdEncoding.DecodeString(got.Data)
	if err == nil {
		err = os.MkdirAll(screenshots, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(screenshots, name+".png"), png, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
