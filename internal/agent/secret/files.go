package secret

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// pollFiles is how often mounted files are looked at. Kubernetes takes a minute to bring
// a new one, so there is nothing to win by being faster.
const pollFiles = time.Second

// FilePaths name the three files of a mounted identity.
type FilePaths struct{ Chain, Key, Roots string }

// Files takes the secret from mounted files, which somebody else renews. [agent S16]
type Files struct {
	*Value
	paths FilePaths
	log   *slog.Logger
}

// NewFiles makes a source that publishes into v; nothing is read before Run.
func NewFiles(v *Value, paths FilePaths, log *slog.Logger) *Files {
	return &Files{Value: v, paths: paths, log: log}
}

// Run follows the files until ctx ends, then returns nil. Files that do not belong
// together, as they are in the midst of being replaced, change nothing. One that shrank in
// place is read once it has been still: a part of a bundle of roots is a bundle too.
func (f *Files) Run(ctx context.Context) error {
	tick := time.NewTicker(pollFiles)
	defer tick.Stop()
	var seen map[string]filewatch.Sig
	var shrunk filewatch.Shrunk
	said := ""
	for {
		now := look([]string{f.paths.Chain, f.paths.Key, f.paths.Roots})
		if !maps.Equal(now, seen) && shrunk.Wait(time.Now(), seen, now) == 0 {
			s, err := f.read()
			if err == nil {
				seen, said = now, ""
				f.publish(s)
				f.log.Info("certificate read", "file", f.paths.Chain, "version", s.Version, "until", s.NotAfter)
			} else if f.fail(err); err.Error() != said {
				said = err.Error()
				f.log.Warn("certificate not read", "reason", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (f *Files) read() (*pki.Secret, error) {
	var texts [3][]byte
	for i, path := range []string{f.paths.Key, f.paths.Chain, f.paths.Roots} {
		text, err := os.ReadFile(path)
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
