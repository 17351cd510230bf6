package logging

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/logline"
)

// output is what was logged, also by timers.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// take returns the text, and empties it.
func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.buf.Reset()
	return o.buf.String()
}

// lines returns what a log has, without times, and empties it.
func lines(out *output) string {
	var all []string
	for l := range strings.Lines(out.take()) {
		_, after, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		all = append(all, strings.ReplaceAll(after, "\t", " "))
	}
	return strings.Join(all, "; ")
}

func TestARepeatedLineIsWrittenOnceInAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := slog.New(Limit(logline.Text(&out, logline.Options{}), time.Minute)).With("scope", "upstream")
		failed := func(n int) {
			log.Warn("connection failed", "error", fmt.Errorf("dial 10.0.0.1:%d: refused", 40000+n), "attempt", n, "retry", time.Duration(n)*time.Second)
		}
		want := func(what, want string) {
			t.Helper()
			synctest.Wait()
			if got := lines(&out); got != want {
				t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
			}
		}
		failed(1)
		want("the first", `warn upstream connection failed error="dial 10.0.0.1:40001: refused" attempt=1 retry=1s`)
		failed(2)
		<-time.After(20 * time.Second)
		failed(3)
		log.Info("connected")
		want("within a minute", "info upstream connected")
		<-time.After(40*time.Second + time.Millisecond)
		want("after it", `warn upstream connection failed error="dial 10.0.0.1:40003: refused" attempt=3 retry=3s repeated=2`)
		failed(4)
		want("within the next", "")
		<-time.After(time.Minute)
		want("after that", `warn upstream connection failed error="dial 10.0.0.1:40004: refused" attempt=4 retry=4s repeated=1`)
		<-time.After(2 * time.Minute)
		failed(5)
		want("much later", `warn upstream connection failed error="dial 10.0.0.1:40005: refused" attempt=5 retry=5s`)
	})
}

// The last state is at the end of the log, however often it changed.
func TestTheLastStateIsWrittenLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := slog.New(Limit(logline.Text(&out, logline.Options{}), time.Minute))
		for range 3 {
			log.Info("ready")
			<-time.After(time.Second)
			log.Warn("NOT ready")
			<-time.After(time.Second)
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if got, want := lines(&out), "info ready; warn NOT ready; info ready repeated=2; warn NOT ready repeated=2"; got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

func TestWhichLinesAreTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := slog.New(Limit(logline.Text(&out, logline.Options{}), time.Minute))
		for range 2 {
			log.Info("m")
			log.Warn("m")
			log.With("scope", "s").Info("m")
			log.WithGroup("g").Info("m")
			log.Info("m", "port", 1)
			log.Info("m", "port", 2)
			log.Info("m", slog.Group("a", "b", "c"))
			log.Info("m", "error", errors.New("a"))
			log.Info("m", "error", errors.New("b"))
		}
		if text := out.take(); strings.Count(text, "\n") != 9 {
			t.Errorf("not the 9 different lines:\n%s", text)
		}
		log.Debug("d")
		log.Debug("d")
		if got := lines(&out); got != "debug d; debug d" {
			t.Errorf("lines for debugging are limited: %s", got)
		}
	})
}

// What is remembered is bounded: further lines are written, and none is lost.
func TestManyLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		h := Limit(logline.Text(&out, logline.Options{}), time.Minute).(*limited)
		log := slog.New(h)
		for i := range 3 * maxLines {
			log.Info("m", "i", i)
		}
		if n := strings.Count(out.take(), "\n"); n != 3*maxLines || len(h.limit.lines) != maxLines {
			t.Errorf("%d lines written and %d remembered, want %d and %d", n, len(h.limit.lines), 3*maxLines, maxLines)
		}
		<-time.After(time.Hour)
		log.Info("m", "i", -1)
		if len(h.limit.lines) != 1 {
			t.Errorf("%d lines are remembered after an hour, want 1", len(h.limit.lines))
		}
	})
}
