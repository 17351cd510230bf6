package envoy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"
)

const (
	lineBuffer  = 16 << 10
	longestLine = 1 << 20
	// outputDelay is how long output is awaited once the process is gone: only what it has
	// left in the pipe, unless something it started keeps the pipe open.
	outputDelay = time.Second
)

// copyLines passes src on to dst in whole lines, each in one Write and as many at a time as
// have come, until src ends. A dst that is shared with a logger which also writes whole lines
// (one *os.File will do: its writes exclude each other) never sees two lines mixed. A line of more than 1 MiB is
// cut, and a last line without an end gets one.
func copyLines(dst io.Writer, src io.Reader) error {
	buf, have := make([]byte, lineBuffer), 0
	for {
		n, err := src.Read(buf[have:])
		fresh := have // what was there before held no end of a line
		have += n
		if end := fresh + bytes.LastIndexByte(buf[fresh:have], '\n') + 1; end > fresh {
			if _, werr := dst.Write(buf[:end]); werr != nil {
				return werr
			}
			have = copy(buf, buf[end:have])
			if len(buf) > lineBuffer && have < lineBuffer {
				buf = append(make([]byte, 0, lineBuffer), buf[:have]...)[:lineBuffer]
			}
		}
		if err != nil || have == longestLine {
			if have > 0 {
				if _, werr := dst.Write(append(buf[:have:have], '\n')); werr != nil {
					return werr
				}
				have = 0
			}
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			if err != nil {
				return nil
			}
		}
		if have == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
	}
}
