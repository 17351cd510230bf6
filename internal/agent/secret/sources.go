package secret

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync/atomic"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// Sources obtains the workload's secret from another source until the files of a mounted identity appear. From then on the files
// have it, as they would have had it from the start; what was published before is used until they can be read. [agent S3, S16]
type Sources struct {
	value      *Value
	candidates []FilePaths
	other      func(context.Context) error
	follower   *filewatch.Follower
	log        *slog.Logger
	mounted    atomic.Pointer[FilePaths]
}

// NewSources makes a Sources that publishes into v. The first of the candidates whose three files exist is used; other is run until then,
// and must publish into v too.
func NewSources(v *Value, candidates []FilePaths, other func(context.Context) error, follower *filewatch.Follower, log *slog.Logger) *Sources {
	return &Sources{value: v, candidates: candidates, other: other, follower: follower, log: log}
}

// Run runs until ctx ends, then returns nil, or returns the error of the other source. Call it once.
func (s *Sources) Run(ctx context.Context) error {
	other, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.other(other) }()
	files, err := s.await(ctx, ended)
	cancel()
	if files == nil {
		return err
	}
	if err := <-ended; err != nil { // it must not publish any more
		return err
	}
	s.mounted.Store(&files.paths)
	s.log.Warn("a certificate was mounted and is used from now on", "chain", files.paths.Chain)
	return files.Run(ctx)
}

// Mounted returns the files that have taken over, nil before. It does so before their first secret is published. Any goroutine may call
// it; a nil Sources has none.
func (s *Sources) Mounted() *FilePaths {
	if s == nil {
		return nil
	}
	return s.mounted.Load()
}

// await returns the files when they appear, or nil when the other source or ctx has ended.
func (s *Sources) await(ctx context.Context, ended <-chan error) (*Files, error) {
	var paths []string
	for _, c := range s.candidates {
		paths = append(paths, c.Chain, c.Key, c.Roots)
	}
	wake := make(chan struct{}, 1)
	set := s.follower.Follow(wake, paths...)
	set.ByContent()
	defer set.Close()
	logged := ""
	for {
		if set.Due() {
			var found *Files
			err := set.Read(func() (err error) {
				found, err = s.find()
				return err
			})
			switch {
			case errors.Is(err, filewatch.ErrMoving):
			case err == nil && found != nil:
				return found, nil
			case err != nil && err.Error() != logged:
				logged = err.Error()
				s.log.Warn("a certificate was mounted and cannot be used", "reason", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, <-ended
		case err := <-ended:
			return nil, err
		case <-wake:
		}
	}
}

// find returns the files of the first complete candidate, nil if none is complete. The error says why they cannot be used yet.
func (s *Sources) find() (*Files, error) {
	for _, c := range s.candidates {
		f := NewFiles(s.value, c, s.follower, s.log)
		_, err := f.read()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return f, err
	}
	return nil, nil
}
