package secret

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// The names under which clusters ask for secrets that lie in files. [agent S2]
const (
	// CertPrefix is followed by "<chain's path>~<key's path>".
	CertPrefix = "file-cert:"
	// RootPrefix is followed by the path of a bundle, or by "system".
	RootPrefix = "file-root:"
	systemName = RootPrefix + "system"
)

// maxPath bounds a path in a name, in bytes; the kernel takes no longer one.
const maxPath = 4096

// IsFileName says whether a secret of that name would come from files.
func IsFileName(name string) bool {
	return strings.HasPrefix(name, CertPrefix) || strings.HasPrefix(name, RootPrefix)
}

// source is where a named secret comes from: chain and key, or the first of several
// bundles that exists.
type source struct {
	chain, key string
	bundles    []string
	// lenient passes over certificates that cannot be read: the bundle of an operating
	// system holds some for every taste.
	lenient bool
}

// files are all that decide the secret.
func (s source) files() []string {
	if s.key != "" {
		return []string{s.chain, s.key}
	}
	return s.bundles
}

// parseName reads a name. Paths are absolute, or lie in the working directory.
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
		return s, fmt.Errorf("secret %.200q: no name of files", name)
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
		return fmt.Errorf("path %.100q is no path", path)
	case !filepath.IsAbs(path) && !filepath.IsLocal(path):
		return fmt.Errorf("path %q leads out of the working directory: write it from the root", path)
	}
	return nil
}
