package ca

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// maxFile limits each file of a plugged-in CA, in bytes.
const maxFile = 1 << 20

// maxMoving is how often the files are read again at the start if they change meanwhile.
const maxMoving = 50

// Directory is a directory with the files of a CA, such as the mounted Secret cacerts. Run follows it.
// The files are read as they are: mounted Secrets are symbolic links and readable by a group.
type Directory struct {
	path     string
	limits   policy.Limits
	log      *slog.Logger
	follower *filewatch.Follower
	set      *filewatch.Set
	wake     chan struct{}
	plugged  *policy.Plugged // the CA that was read last
	// rejected says that the files cannot be used now.
	rejected atomic.Bool
}

// OpenDirectory reads the CA of a directory, which need not exist. If there is no CA in it, the second
// result is nil, and Run finds a later one. The error says why the files cannot be used.
func OpenDirectory(path string, limits policy.Limits, log *slog.Logger) (*Directory, *policy.Plugged, error) {
	d := &Directory{path: path, limits: limits, log: log, follower: filewatch.NewFollower(filewatch.FollowerOptions{Log: log}), wake: make(chan struct{}, 1)}
	var paths []string
	for _, name := range slices.Concat(policy.TLSNames.All(), policy.IstioNames.All()) {
		paths = append(paths, filepath.Join(path, name))
	}
	d.set = d.follower.Follow(d.wake, paths...)
	for try := 1; ; try++ {
		plugged, err := d.read()
		if errors.Is(err, filewatch.ErrMoving) && try < maxMoving {
			continue
		}
		if err != nil {
			d.set.Close()
			return nil, nil, err
		}
		return d, plugged, nil
	}
}

// Plugged returns the CA that was read last, nil if there was none; d may be nil. Call it before Run.
func (d *Directory) Plugged() *policy.Plugged {
	if d == nil {
		return nil
	}
	return d.plugged
}

// read reads the files, nil if there are none.
func (d *Directory) read() (*policy.Plugged, error) {
	var out *policy.Plugged
	err := d.set.Read(func() (err error) {
		out, err = d.load(time.Now())
		return err
	})
	if err == nil && out != nil {
		d.plugged = out
	}
	return out, err
}

func (d *Directory) load(now time.Time) (*policy.Plugged, error) {
	names, ok := policy.ChooseNames(func(name string) bool {
		_, err := os.Stat(filepath.Join(d.path, name))
		return !errors.Is(err, fs.ErrNotExist) // others are reported when the file is read
	})
	if !ok {
		return nil, nil
	}
	var files policy.Files
	for _, f := range []struct {
		name     string
		to       *[]byte
		optional bool
	}{{names.Cert, &files.Cert, false}, {names.Key, &files.Key, false}, {names.Chain, &files.Chain, true}, {names.Roots, &files.Roots, false}} {
		if f.name == "" {
			continue
		}
		text, _, err := filewatch.Read(filepath.Join(d.path, f.name), maxFile)
		if errors.Is(err, fs.ErrNotExist) && f.optional {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("CA in %s: file %s is missing: a CA needs %v, or none of them", d.path, f.name, names.All())
		}
		if err != nil {
			return nil, fmt.Errorf("CA in %s: %w", d.path, err)
		}
		*f.to = text
	}
	plugged, err := policy.LoadFiles(files, names, d.limits, now)
	if err != nil {
		return nil, fmt.Errorf("CA in %s: %w", d.path, err)
	}
	return &plugged, nil
}

// Run follows the files until ctx ends, and calls plug with each CA that they change to. Files that cannot be used, also by
// plug, are logged.
func (d *Directory) Run(ctx context.Context, plug func(context.Context, policy.Plugged) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.follower.Run(ctx) // it returns nil
	}()
	defer func() {
		cancel()
		<-done
	}()
	failure := "" // that was logged last
	for {
		if d.set.Due() {
			failure = d.reload(ctx, plug, failure)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		}
	}
}

// reload reads the files after a change, and returns why they cannot be used. before is what it returned last.
func (d *Directory) reload(ctx context.Context, plug func(context.Context, policy.Plugged) error, before string) string {
	had := d.plugged != nil
	plugged, err := d.read()
	switch {
	case errors.Is(err, filewatch.ErrMoving):
		return before // the set will be due again
	case err == nil && plugged != nil:
		d.rejected.Store(false)
		err = plug(ctx, *plugged)
	case err == nil && had:
		err = fmt.Errorf("CA in %s: all its files are gone", d.path)
	}
	d.rejected.Store(err != nil)
	if err == nil {
		return ""
	}
	if err.Error() != before {
		d.log.Error("changed CA files cannot be used; certificates are signed as before", "error", err)
	}
	return err.Error()
}

// Rejected reports whether the files have been changed to ones that cannot be used. It is safe for
// concurrent use, and false for nil.
func (d *Directory) Rejected() bool { return d != nil && d.rejected.Load() }

// Metrics returns the metrics of the directory, which may be nil.
func (d *Directory) Metrics() []Metric {
	value := 0.0
	if d.Rejected() {
		value = 1
	}
	return []Metric{{Name: "pilothouse_ca_files_rejected", Help: "1 while the files of ROOT_CA_DIR cannot be used, so that certificates are signed as before, else 0.", Value: value}}
}
