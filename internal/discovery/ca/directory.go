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
	"github.com/pilothouse/pilothouse/internal/pki"
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
	found    bool // a CA has been read
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

// Found reports whether a CA was in the directory when it was opened or since; d may be nil. Call it before Run.
func (d *Directory) Found() bool { return d != nil && d.found }

// read reads the files, nil if there are none.
func (d *Directory) read() (*policy.Plugged, error) {
	var out *policy.Plugged
	err := d.set.Read(func() (err error) {
		out, err = d.load(time.Now())
		return err
	})
	if err == nil && out != nil {
		d.found = true
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

// Run follows the files until ctx ends, and changes the authority accordingly. Files that cannot be used
// are logged, and the authority keeps what it has. A new root is distributed before it signs, and the old
// one remains trusted until the certificates that it signed have ended.
func (d *Directory) Run(ctx context.Context, authority *Authority) error {
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
	f := following{Directory: d, authority: authority}
	if d.found { // and the authority has it
		f.begin()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-timer.C:
		}
		if d.set.Due() {
			f.reload()
		}
		if at := f.step(time.Now()); !at.IsZero() {
			timer.Reset(max(time.Until(at), 0))
		}
	}
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

// following is the state of Directory.Run.
type following struct {
	*Directory
	authority  *Authority
	succession policy.Succession // once a CA was found; until then the authority has its own root
	begun      bool
	failure    string // that was logged last
	waits      bool
}

// begin makes the authority's state the first of the succession.
func (f *following) begin() {
	state := f.authority.State()
	f.succession, f.begun = policy.NewSuccession(state.Issuer, state.Roots), true
}

// reload reads the files after a change.
func (f *following) reload() {
	plugged, err := f.read()
	if errors.Is(err, filewatch.ErrMoving) {
		return // the set will be due again
	}
	if err == nil && plugged == nil {
		if !f.begun {
			return
		}
		err = fmt.Errorf("CA in %s: all its files are gone", f.path)
	}
	f.rejected.Store(err != nil)
	if err != nil {
		if err.Error() != f.failure {
			f.failure = err.Error()
			f.log.Error("changed CA files cannot be used; certificates are signed as before", "error", err)
		}
		return
	}
	f.failure = ""
	if !f.begun {
		f.begin()
	}
	f.succession = f.succession.Plug(*plugged)
}

// step makes the authority what the succession says, and returns when to call it again.
func (f *following) step(now time.Time) time.Time {
	if !f.begun {
		return time.Time{}
	}
	before := f.authority.State()
	var next policy.Next
	f.succession, next = f.succession.Step(f.authority.longestLifetime(f.limits), now)
	if err := f.authority.Replace(next.Issuer, next.Roots); err != nil {
		f.rejected.Store(true)
		f.log.Error("changed CA files cannot be used; certificates are signed as before", "error", fmt.Errorf("CA in %s: %w", f.path, err))
		return time.Time{}
	}
	if next.Waits && !f.waits {
		f.log.Warn("a CA with a new root was plugged in: the root is distributed, and the CA signs when all workloads have it", "root", pki.Fingerprint(f.succession.Plugged().Issuer.Root())[:16], "at", next.At)
	}
	f.waits = next.Waits
	if next.Issuer != before.Issuer {
		c := next.Issuer.Certificate()
		f.log.Info("certificates are signed by another CA certificate", "issuer", c.Subject, "serial", c.SerialNumber, "until", next.Issuer.Validity().NotAfter, "root", pki.Fingerprint(next.Issuer.Root())[:16])
	}
	return next.At
}
