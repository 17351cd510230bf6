package wait

import (
	"bytes"
	"sync"
)

// Output collects what programs and loggers write, for tests that read it meanwhile. The zero value
// is empty. Safe for concurrent use.
type Output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
