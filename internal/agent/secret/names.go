package secret

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Prefixes of the names of secrets in files. [agent S2]
const (
	// CertPrefix is followed by "<chain's path>~<key's path>".
	CertPrefix = mesh.SecretFileCert
	// RootPrefix is followed by the path of a bundle, or by "system".
	RootPrefix = mesh.SecretFileRoot
	systemName = mesh.SecretSystemRoot
)

// maxPath is the longest path that the kernel accepts, in bytes.
const maxPath = 4096

// IsFileName reports whether name is the name of a secret in files.
func IsFileName(name string) bool {
	return strings.HasPrefix(name, CertPrefix) || strings.HasPrefix(name, RootPrefix)
}

// source is the files of a named secret: chain and key, or the first of several
// bundles that exists.
type source struct {
	chain, key string
	bundles    []string
	// lenient skips certificates that cannot be parsed, because the bundles of operating systems
	// contain some.
	lenient bool
}

// files returns all files that can determine the secret.
func (s source) files() []string {
	if s.key != "" {
		return []string{s.chain, s.key}
	}
	return s.bundles
}

// parseName parses a name. Paths are absolute, or relative to the working directory and within it.
func parseName(name string, system []string) (source, error) {
	if name == systemName {
		return source{bundles: system, lenient: true}, nil
	}
	var s source
	var err error
	if rest, ok := strings.CutPrefix(name, CertPrefix); ok {
		chain, key, ok := strings.Cut(rest, "~")
		if !ok || strings.Contains(key, "~") {
			return s, fmt.Errorf("secret %.200q: want %s<certificate's path>~<key's path>", name, CertPrefix)
		}
		s.chain, s.key = chain, key
		err = errors.Join(checkPath(chain), checkPath(key))
	} else if rest, ok := strings.CutPrefix(name, RootPrefix); ok {
		s.bundles = []string{rest}
		err = checkPath(rest)
	} else {
		return s, fmt.Errorf("secret %.200q: want a name that begins with %s or %s", name, CertPrefix, RootPrefix)
	}
	if err != nil {
		return source{}, fmt.Errorf("secret %.200q: %w", name, err)
	}
	return s, nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("a path is empty")
	case len(path) > maxPath || strings.ContainsRune(path, 0):
		return fmt.Errorf("invalid path %.100q: want at most %d bytes and no zero byte", path, maxPath)
	case !filepath.IsAbs(path) && !filepath.IsLocal(path):
		return fmt.Errorf("invalid path %q: want an absolute path, or one within the working directory", path)
	}
	return nil
}
