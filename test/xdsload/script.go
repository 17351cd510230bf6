package main

import (
	"encoding/gob"
	"os"
	"sync"
)

// frame is a response of a script. It is sent when the stream's client has made After requests in its phase.
type frame struct {
	After int
	Body  []byte
}

// script is what one stream was sent, by phases, for a server that sends it again. Safe for concurrent use.
type script struct {
	mu       sync.Mutex
	phases   [][]frame
	requests int // in the last phase
}

// next begins a phase.
func (s *script) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phases = append(s.phases, nil)
	s.requests = 0
}

// restart forgets the requests of a phase in which the client begins anew, before any response.
func (s *script) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = 0
}

func (s *script) request() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
}

func (s *script) response(body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := &s.phases[len(s.phases)-1]
	*last = append(*last, frame{s.requests, body})
}

func (s *script) save(file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := gob.NewEncoder(f).Encode(s.phases); err != nil {
		_ = f.Close() // the error that counts is known
		return err
	}
	return f.Close()
}

func loadScript(file string) (phases [][]frame, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return phases, gob.NewDecoder(f).Decode(&phases)
}
