package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// profiler writes profiles of pilot-discovery: CPU, and the heap as it was at the last garbage collection. The zero value writes none.
type profiler struct {
	dir  string
	time time.Duration // of each profile
}

// check returns an error if pilot-discovery cannot be profiled.
func (p profiler) check(ctx context.Context, d *discovery) error {
	if p.dir == "" {
		return nil
	}
	if _, err := get(ctx, "http://"+d.http+"/debug/pprof/cmdline"); err != nil {
		return fmt.Errorf("-cpuprofile needs a pilot-discovery that serves /debug/pprof: %w", err)
	}
	return os.MkdirAll(p.dir, 0o755)
}

// during calls f and takes a profile from its start on, for the time of p even if f takes less: a profile cannot be
// ended early.
func (p profiler) during(ctx context.Context, d *discovery, step string, f func() error) error {
	if p.dir == "" {
		return f()
	}
	taken := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		text, err := get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", d.http, int(p.time.Seconds())))
		if err == nil {
			err = p.write(step, text)
		}
		taken <- err
	}()
	err := f()
	if err != nil {
		cancel()
		return errors.Join(err, <-taken)
	}
	text, err := get(ctx, "http://"+d.http+"/debug/pprof/heap")
	if err == nil {
		err = p.write(step+" heap", text)
	}
	return errors.Join(err, <-taken)
}

func (p profiler) write(step, text string) error {
	name := strings.NewReplacer(" ", "-", ",", "").Replace(step) + ".pprof"
	return os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644)
}
