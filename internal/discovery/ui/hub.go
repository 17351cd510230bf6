package ui

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Limits bound what pages cost the control plane. The zero value of a field is its default.
type Limits struct {
	// Clients is how many pages may be open; the default is 16.
	Clients int
	// Every is how often a page is updated at most; the default is a second.
	Every time.Duration
	// Write is how long a client may take to read an update, before it is disconnected; the default is 10 s.
	Write time.Duration
	// Alive is how often an event is sent where nothing changes, so that both ends notice that the other is gone; the default is 10 s.
	Alive time.Duration
}

// share is the part of the time that may be spent on reading the state: one in share+1.
const share = 20

// Hub sends the state of the control plane to pages. Create one with NewHub; its methods may be called from any goroutine.
type Hub struct {
	read   func() State
	limits Limits
	done   chan struct{} // closed when Run ends
	wake   chan struct{} // has an element if there is a client that Run may not know of

	mu      sync.Mutex
	clients map[*client]struct{}
	latest  Rows // nil if it is not current
	// services and traffic are those of the last state; immutable.
	services []Service
	traffic  Traffic
}

// client is one open page.
type client struct{ news chan struct{} }

// NewHub returns a hub of what read returns. Only one goroutine at a time calls read.
func NewHub(read func() State, l Limits) *Hub {
	if l.Clients == 0 {
		l.Clients = 16
	}
	if l.Every == 0 {
		l.Every = time.Second
	}
	if l.Write == 0 {
		l.Write = 10 * time.Second
	}
	if l.Alive == 0 {
		l.Alive = 10 * time.Second
	}
	return &Hub{read: read, limits: l, done: make(chan struct{}), wake: make(chan struct{}, 1), clients: map[*client]struct{}{}}
}

// Run reads the state while pages are open, until ctx ends; the connections of pages end then. It returns nil, and must be
// called once.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		if !h.hasClients() {
			select {
			case <-h.wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		start := time.Now()
		state := h.read()
		h.publish(RowsOf(state), state.Services, state.Traffic)
		timer.Reset(max(h.limits.Every, share*time.Since(start)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *Hub) hasClients() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.clients) == 0 {
		h.latest, h.services, h.traffic = nil, nil, Traffic{} // the next client gets what is current then
	}
	return len(h.clients) > 0
}

func (h *Hub) publish(rows Rows, services []Service, t Traffic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest, h.services, h.traffic = rows, services, t
	for c := range h.clients {
		c.tell()
	}
}

func (c *client) tell() {
	select {
	case c.news <- struct{}{}:
	default: // it has not taken the last one yet
	}
}

// enter adds a client; nil if there are too many.
func (h *Hub) enter() *client {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.clients) >= h.limits.Clients {
		return nil
	}
	c := &client{news: make(chan struct{}, 1)}
	h.clients[c] = struct{}{}
	if h.latest != nil {
		c.tell()
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return c
}

func (h *Hub) leave(c *client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, c)
}

func (h *Hub) current() Rows {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.latest
}

// neighbours answers who may talk to a service, and to whom that may.
func (h *Hub) neighbours(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	services, traffic := h.services, h.traffic
	h.mu.Unlock()
	out, ok := NeighboursOf(services, traffic, r.URL.Query().Get("service"))
	if !ok {
		http.Error(w, "no such service: it may have gone", http.StatusNotFound)
		return
	}
	setHeaders(w.Header(), "application/json")
	_, _ = w.Write([]byte(encode(out))) // the client may have closed the connection
}

// events sends updates until the client or the hub ends, or the client does not read.
func (h *Hub) events(w http.ResponseWriter, r *http.Request) {
	c := h.enter()
	if c == nil {
		http.Error(w, fmt.Sprintf("%d pages are open, which is the limit: close one", h.limits.Clients), http.StatusServiceUnavailable)
		return
	}
	defer h.leave(c)
	setHeaders(w.Header(), "text/event-stream")
	send := sender(w, h.limits.Write)
	if send("retry: 2000\n\n") != nil {
		return
	}
	alive := time.NewTicker(h.limits.Alive)
	defer alive.Stop()
	// Updates are at least Every apart for each client, whenever it has come.
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	var has Rows
	news := c.news
	for {
		select {
		case <-news:
			now := h.current()
			if u := Diff(has, now); len(u) > 0 {
				if send("event: update\ndata: "+encode(u)+"\n\n") != nil {
					return
				}
				news = nil
				pause.Reset(h.limits.Every)
			}
			has = now
		case <-pause.C:
			news = c.news
		case <-alive.C:
			if send("event: alive\ndata: 1\n\n") != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.done:
			return
		}
	}
}

// sender returns a function that writes a text within a limit of time.
func sender(w http.ResponseWriter, limit time.Duration) func(text string) error {
	control := http.NewResponseController(w)
	return func(text string) error {
		if err := control.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		return control.Flush()
	}
}
