package mesh

import "strings"

// MaxSocketPath is the length of the longest path of a Unix socket on Linux, in bytes.
const MaxSocketPath = 107

// IsSocketPath reports whether Envoy can listen at or connect to what follows UnixSocket in an address: an absolute path, or "@" and a
// name in the abstract namespace of Linux, which the containers of a Pod share. [control-plane 1.9.4, 1.9.22]
func IsSocketPath(path string) bool {
	return (strings.HasPrefix(path, "/") || IsAbstractSocket(path) && len(path) > 1) && len(path) <= MaxSocketPath && !strings.Contains(path, "\x00")
}

// IsAbstractSocket reports whether what follows UnixSocket in an address is a name in the abstract namespace, which no file has, nor its
// permissions.
func IsAbstractSocket(path string) bool { return strings.HasPrefix(path, "@") }
