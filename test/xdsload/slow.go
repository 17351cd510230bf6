package main

import (
	"context"
	"errors"
	"fmt"
)

// maxSlowReaders bounds -slow-readers: pilot-discovery gives no client more than a quarter of its streams.
const maxSlowReaders = 500

// slowSuffix is the end of the names of steps in which some streams read nothing.
func (o options) slowSuffix() string { return fmt.Sprintf(", %d slow readers", o.SlowReaders) }

// withSlowReaders makes the changes once more while further streams, which ask for everything, read nothing, and
// measures what the server holds for each of these.
func (m *meter) withSlowReaders(ctx context.Context) error {
	l, f := m.load, m.fleet
	before, err := m.memory(ctx)
	if err != nil {
		return fmt.Errorf("memory before slow readers: %w", err)
	}
	// The first stream knows what there is.
	var asked [numTypes]bool
	var names [numTypes][]string
	for typ := range names {
		asked[typ], names[typ] = f.streams[0].types[typ].asked, f.streams[0].wanted(typ)
	}
	slow := make([]*stream, l.SlowReaders)
	defer func() {
		for _, s := range slow {
			if s != nil && s.conn != nil {
				_ = s.conn.Close() // nothing is in flight that anybody waits for
			}
		}
	}()
	for n := range slow {
		p := l.proxies[n%len(l.proxies)]
		slow[n] = &stream{fleet: f, number: -1, proxy: p, creds: m.creds(n % len(l.proxies))}
		if err := slow[n].openUnread(ctx, asked, names); err != nil {
			return err
		}
	}
	if err := m.bounded(ctx, func(ctx context.Context) error { return m.connected(ctx, len(f.streams)+len(slow)) }); err != nil {
		return fmt.Errorf("slow readers: %w", err)
	}
	if err := m.allChanges(ctx, l.slowSuffix(), l.Repeat); err != nil {
		return err
	}
	with, err := m.memory(ctx)
	if err != nil {
		return fmt.Errorf("memory with slow readers: %w", err)
	}
	side := &l.report.Discovery
	if m.replay {
		side = &l.report.Wire
	}
	side.Slow = (with - before) / int64(len(slow))
	return nil
}

// connected waits until pilot-discovery counts so many streams.
func (m *meter) connected(ctx context.Context, streams int) error {
	if m.replay {
		return nil
	}
	return poll(ctx, func() error {
		n, err := m.load.discovery.streams(ctx)
		if err == nil && n < streams {
			err = fmt.Errorf("%d of %d streams are connected", n, streams)
		}
		return err
	})
}

// openUnread opens a stream that asks for these types and names and reads nothing.
func (s *stream) openUnread(ctx context.Context, asked [numTypes]bool, names [numTypes][]string) error {
	if err := s.dial(ctx); err != nil {
		return err
	}
	for typ := range numTypes {
		if !asked[typ] {
			continue
		}
		q := request{typ: typ, names: names[typ]}
		if typ == clusters {
			q.node = s.proxy.node
		}
		if err := s.send(q); err != nil {
			return errors.Join(fmt.Errorf("slow reader %s: %w", s.proxy.id, err), s.conn.Close())
		}
	}
	return nil
}
