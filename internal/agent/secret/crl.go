package secret

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// CRL is the revocation list that goes with the workload's roots, from a file that may be missing. What was read is kept until its
// successor can be read completely: a list that is damaged revokes no less than before. If the file is removed, there is
// no list. [agent S21]
type CRL struct {
	path     string
	follower *filewatch.Follower
	log      *slog.Logger
	now      atomic.Pointer[list]
}

// list is one value.
type list struct {
	known bool
	text  []byte
	next  chan struct{} // closed when there is a newer one
}

// NewCRL makes a CRL. Run reads the file. Later contents are found only while the follower runs.
func NewCRL(path string, follower *filewatch.Follower, log *slog.Logger) *CRL {
	c := &CRL{path: path, follower: follower, log: log}
	c.now.Store(&list{next: make(chan struct{})})
	return c
}

// Current returns the list in PEM, nil for none, and a channel that is closed when it changes. known is false until the file was
// read, or found to be missing: roots without a list that exists would trust what it revokes. Any goroutine may call it.
func (c *CRL) Current() (text []byte, known bool, changed <-chan struct{}) {
	now := c.now.Load()
	return now.text, now.known, now.next
}

// Run follows the file until ctx ends, then returns nil.
func (c *CRL) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	set := c.follower.Follow(wake, c.path)
	set.ByContent()
	defer set.Close()
	logged := ""
	for {
		if set.Due() {
			logged = c.update(set, logged)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}

// update reads the file and publishes it. It logs an error that is not logged already and returns its text.
func (c *CRL) update(set *filewatch.Set, logged string) string {
	var text []byte
	err := set.Read(func() (err error) {
		text, err = readCRL(c.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	switch {
	case errors.Is(err, filewatch.ErrMoving):
		return logged
	case err != nil:
		if err.Error() != logged {
			c.log.Warn("revocation list not read", "reason", err, "serving", len(c.now.Load().text) > 0)
		}
		return err.Error()
	}
	old := c.now.Load()
	if !old.known || !bytes.Equal(old.text, text) {
		if old.known || len(text) > 0 {
			c.log.Info("revocation list changed", "file", c.path, "bytes", len(text))
		}
		c.now.Store(&list{known: true, text: text, next: make(chan struct{})})
		close(old.next)
	}
	return ""
}

// readCRL reads the lists of a file. Envoy rejects the roots together with a list that it cannot parse.
func readCRL(path string) ([]byte, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read revocation list %s: %w", path, err)
	}
	if err := whole(text); err != nil {
		return nil, fmt.Errorf("read revocation list %s: %w", path, err)
	}
	var out bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			continue
		}
		if _, err := x509.ParseRevocationList(block.Bytes); err != nil {
			return nil, fmt.Errorf("read revocation list %s: %w", path, err)
		}
		// Writing to a buffer fails for bad headers only, and there are none.
		_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
	}
	if out.Len() == 0 {
		return nil, fmt.Errorf("read revocation list %s: no PEM block X509 CRL", path)
	}
	return out.Bytes(), nil
}
