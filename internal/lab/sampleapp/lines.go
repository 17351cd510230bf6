package sampleapp

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
)

// serveLines answers every line with the name of the pod, its version and the line.
func (a *app) serveLines(l net.Listener) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		if !a.conns.add(c) {
			_ = c.Close()
			continue
		}
		group.Go(func() {
			defer a.conns.remove(c)
			a.echo(c)
		})
	}
}

func (a *app) echo(c net.Conn) {
	in := bufio.NewScanner(c)
	for in.Scan() {
		a.lines.Add(1)
		if _, err := fmt.Fprintf(c, "%s %s %s\n", a.self.Pod, a.self.Version, in.Text()); err != nil {
			return
		}
	}
}

func (a *app) closeConns() { a.conns.close() }

// connSet holds open connections so that the end can close them. The mutex guards both
// fields: connections come and go on goroutines of their own.
type connSet struct {
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// add says false once the set is closed; the caller keeps the connection then.
func (s *connSet) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = map[net.Conn]bool{}
	}
	s.open[c] = true
	return true
}

func (s *connSet) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	_ = c.Close()
}

func (s *connSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		_ = c.Close()
	}
}
