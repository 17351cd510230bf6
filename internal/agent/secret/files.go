package secret

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// FilePaths are the paths of the three files of a mounted identity.
type FilePaths struct{ Chain, Key, Roots string }

// Files publishes the secret of mounted files, which the platform renews. [agent S16]
type Files struct {
	*Value
	paths    FilePaths
	follower *filewatch.Follower
	log      *slog.Logger
}

// NewFiles makes a source that publishes into v. Run reads the files. Later
// contents are found only while the follower runs.
func NewFiles(v *Value, paths FilePaths, follower *filewatch.Follower, log *slog.Logger) *Files {
	return &Files{Value: v, paths: paths, follower: follower, log: log}
}

// Run follows the files until ctx ends, then returns nil. Files that do not match,
// because they are being replaced, change nothing. A file that shrank in place is
// read after it has not changed for a while: a part of a bundle of roots is a valid bundle too.
func (f *Files) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	set := f.follower.Follow(wake, f.paths.Chain, f.paths.Key, f.paths.Roots)
	set.ByContent()
	defer set.Close()
	logged := ""
	for {
		if set.Due() {
			logged = f.update(set, logged)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}

// update reads the files and publishes them. It logs an error that is not logged already
// and returns its text, empty for none.
func (f *Files) update(set *filewatch.Set, logged string) string {
	var s *pki.Secret
	err := set.Read(func() (err error) {
		s, err = f.read()
		return err
	})
	switch {
	case errors.Is(err, filewatch.ErrMoving):
		return logged
	case err != nil:
		f.fail(err)
		if err.Error() != logged {
			f.log.Warn("certificate not read", "reason", err)
		}
		return err.Error()
	}
	f.publish(s)
	f.log.Info("certificate read", "file", f.paths.Chain, "version", s.Version, "until", s.NotAfter)
	return ""
}

func (f *Files) read() (*pki.Secret, error) {
	var texts [3][]byte
	for i, path := range []string{f.paths.Key, f.paths.Chain, f.paths.Roots} {
		text, err := filewatch.ReadFile(path, maxFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate files: %w", err)
		}
		texts[i] = text
	}
	s, err := pki.NewSecret(texts[0], texts[1], texts[2], time.Now())
	if err != nil {
		return nil, fmt.Errorf("read certificate files of %s: %w", filepath.Dir(f.paths.Chain), err)
	}
	return s, nil
}
