package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// containerLog is the log of one start of a container: a line per line of output, TIME STREAM TEXT.
type containerLog struct {
	path string
	mu   sync.Mutex // guards the rest
	file *os.File
	// partial are the lines that have no end yet, by stream.
	partial map[string][]byte
	// grown is closed and replaced at each write, and closed for good at the end.
	grown chan struct{}
	ended bool
}

// maxLine bounds a line of a log; a longer one becomes several.
const maxLine = 16 << 10

func newContainerLog(path string) (*containerLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make the log of a container: %w", err)
	}
	return &containerLog{path: path, file: f, partial: map[string][]byte{}, grown: make(chan struct{})}, nil
}

// stream is the writer for stdout or stderr.
func (l *containerLog) stream(name string) io.Writer { return logStream{l, name} }

type logStream struct {
	log  *containerLog
	name string
}

// Write implements io.Writer.
func (s logStream) Write(p []byte) (int, error) {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, os.ErrClosed
	}
	text := append(l.partial[s.name], p...)
	for {
		end := bytes.IndexByte(text, '\n')
		if end < 0 && len(text) < maxLine {
			break
		}
		if end < 0 || end > maxLine {
			l.write(s.name, text[:maxLine])
			text = text[maxLine:]
			continue
		}
		l.write(s.name, text[:end])
		text = text[end+1:]
	}
	l.partial[s.name] = bytes.Clone(text)
	close(l.grown)
	l.grown = make(chan struct{})
	return len(p), nil
}

// write writes a line; a full disk loses it, which the reader sees.
func (l *containerLog) write(stream string, line []byte) {
	_, _ = fmt.Fprintf(l.file, "%s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), stream, line)
}

// close ends the log.
func (l *containerLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	for stream, text := range l.partial {
		if len(text) > 0 {
			l.write(stream, text)
		}
	}
	l.ended = true
	_ = l.file.Close()
	close(l.grown)
}

// progress returns a channel that is closed when there is more, and whether the log has ended.
func (l *containerLog) progress() (<-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grown, l.ended
}

// logOptions say which part of a log is read; they are those of the kubelet's API.
type logOptions struct {
	follow, timestamps bool
	// tail is the number of the last lines; negative for all. limit is the number of bytes; negative for all.
	tail, limit int64
	since       time.Time
	// stream is stdout or stderr; empty for both.
	stream string
}

// copyTo copies what the options say to w; with follow until the log or the context ends. After each part, flush is
// called.
func (l *containerLog) copyTo(ctx context.Context, w io.Writer, flush func(), o logOptions) error {
	f, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if o.tail >= 0 {
		if err := seekTail(f, o); err != nil {
			return err
		}
	}
	left := o.limit
	r := bufio.NewReaderSize(f, 64<<10)
	var begun string
	for {
		grown, ended := l.progress()
		for {
			part, err := r.ReadString('\n')
			begun += part
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			text := o.format(begun)
			begun = ""
			if o.limit >= 0 && int64(len(text)) > left {
				text = text[:left]
			}
			left -= int64(len(text))
			if _, err := io.WriteString(w, text); err != nil {
				return err
			}
			if o.limit >= 0 && left == 0 {
				return nil
			}
		}
		flush()
		if !o.follow || ended {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil
		}
	}
}

// seekTail moves to the beginning of the last lines that count.
func seekTail(f *os.File, o logOptions) error {
	var starts []int64
	var at int64
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if o.format(line) != "" {
			if starts = append(starts, at); int64(len(starts)) > o.tail {
				starts = starts[1:]
			}
		}
		at += int64(len(line))
	}
	if len(starts) > 0 {
		at = starts[0]
	}
	_, err := f.Seek(at, io.SeekStart)
	return err
}

// format is a line as the caller gets it; empty if it is not wanted.
func (o logOptions) format(line string) string {
	stamp, rest, _ := strings.Cut(line, " ")
	stream, text, _ := strings.Cut(rest, " ")
	if o.stream != "" && stream != o.stream {
		return ""
	}
	if !o.since.IsZero() {
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.Before(o.since) {
			return ""
		}
	}
	if o.timestamps {
		return stamp + " " + text
	}
	return text
}

// tail is the end of the log, for messages: at most so many lines and bytes.
func (l *containerLog) tail(lines int64, size int) string {
	var b strings.Builder
	_ = l.copyTo(context.Background(), &b, func() {}, logOptions{tail: lines, limit: -1})
	text := b.String()
	return text[max(0, len(text)-size):]
}
