package discovery

import "sync"

// signals are what streams tell the loop without waiting for it, so that they end and go on while it is busy.
// Each connection that the loop knows is in each list at most once, which bounds them. Any goroutine may use it.
type signals struct {
	mu      sync.Mutex
	refused []string            // connections whose proxy refuses something else than before, in order
	known   map[string]struct{} // those in refused
	left    []string            // connections that have ended
	// answered are the connections whose proxy has answered listeners that are awaited, each once, as answering has them.
	answered  []string
	answering map[string]struct{}
	// wake has an element while there may be something to take.
	wake chan struct{}
}

func newSignals() *signals {
	return &signals{known: map[string]struct{}{}, answering: map[string]struct{}{}, wake: make(chan struct{}, 1)}
}

// refuse notes that what the proxy of a connection refuses has changed.
func (s *signals) refuse(id string) {
	s.mu.Lock()
	if _, ok := s.known[id]; !ok {
		s.known[id] = struct{}{}
		s.refused = append(s.refused, id)
	}
	s.mu.Unlock()
	s.notify()
}

// listeners notes that the proxy of a connection has answered listeners that are awaited.
func (s *signals) listeners(id string) {
	s.mu.Lock()
	if _, ok := s.answering[id]; !ok {
		s.answering[id] = struct{}{}
		s.answered = append(s.answered, id)
	}
	s.mu.Unlock()
	s.notify()
}

// leave notes that a connection has ended.
func (s *signals) leave(id string) {
	s.mu.Lock()
	s.left = append(s.left, id)
	s.mu.Unlock()
	s.notify()
}

func (s *signals) notify() {
	select {
	case s.wake <- struct{}{}:
	default: // the loop will take this one, too
	}
}

// take returns what has been noted since the last call.
func (s *signals) take() (refused, answered, left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused, answered, left = s.refused, s.answered, s.left
	s.refused, s.answered, s.left = nil, nil, nil
	clear(s.known)
	clear(s.answering)
	return refused, answered, left
}
