package xds

import (
	"context"
	"sync"
)

// Watches returns what connections are subscribed to, by their ids and then by type URL, as their streams
// answer until ctx ends. A stream that waits for its client to read does not answer, and is not listed.
func (s *Server) Watches(ctx context.Context, ids []string) map[string]map[string][]string {
	var mu sync.Mutex
	out := map[string]map[string][]string{}
	var all sync.WaitGroup
	for _, id := range ids {
		s.mu.Lock()
		c := s.conns[id]
		s.mu.Unlock()
		if c == nil {
			continue
		}
		answer := make(chan map[string][]string, 1)
		question := func(sub *Sub) {
			names := map[string][]string{}
			for t := range numTypes {
				if list := sub.Subscription(t); list != nil {
					names[t.URL()] = list
				}
			}
			answer <- names
		}
		all.Go(func() {
			asked := c.questions
			for {
				select {
				case asked <- question:
					asked = nil
				case names := <-answer:
					mu.Lock()
					defer mu.Unlock()
					out[id] = names
					return
				case <-c.ended:
					return
				case <-ctx.Done():
					return
				}
			}
		})
	}
	all.Wait()
	return out
}
