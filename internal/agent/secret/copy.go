package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

const (
	// copyName is the name of the copy in its folder.
	copyName = "identity-copy"
	// sealedPrefix begins an encrypted copy. It is authenticated with it.
	sealedPrefix = "pilothouse identity copy 1\n"
	// sealKeySize is the size of the key that encrypts copies, in bytes (AES-256).
	sealKeySize = 32
	// maxCopy bounds a copy, in bytes: key, chain and roots, with their encoding.
	maxCopy = 12 << 20
)

// Types of file systems in memory, from statfs(2).
const (
	tmpfsMagic = 0x01021994
	ramfsMagic = 0x858458f6
)

// errNotMemory says that a folder is not in memory and that there is no key.
var errNotMemory = errors.New("not a tmpfs, and no key to encrypt the copy is configured")

// Copy is a file with the current certificate and its key, which the next agent reads, so that it can serve
// while the CA is away. A folder in memory (tmpfs) has it in plain text, with mode 0600; another folder has it
// only encrypted, with a random key on another volume. Errors of the disk are logged and have no other
// effect. Its methods may be called by several goroutines.
type Copy struct {
	path string
	aead cipher.AEAD // nil: plain text
	log  *slog.Logger

	mu      sync.Mutex
	problem error
	written time.Time
}

// CopyOptions say where a copy is kept. Dir and Log are required.
type CopyOptions struct {
	// Dir is the folder, which is created if missing.
	Dir string
	// KeyFile is the file of the key that encrypts the copy, which is created if missing. It is required,
	// and must be on another volume, if Dir is not in memory.
	KeyFile string
	// Optional makes it no error if a KeyFile is required and missing: no copy is kept then.
	Optional bool
	Log      *slog.Logger
}

// OpenCopy prepares a copy. The error says why the options would expose the key. Folders and files that
// cannot be used are logged, and the result is nil then.
func OpenCopy(o CopyOptions) (*Copy, error) {
	without := func(reason error) (*Copy, error) {
		o.Log.Warn("no copy of the certificate is kept: a restarted agent cannot serve while the CA is away", "folder", o.Dir, "reason", reason)
		return nil, nil
	}
	c := &Copy{path: filepath.Join(o.Dir, copyName), log: o.Log}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return without(err)
	}
	memory, err := inMemory(o.Dir)
	switch {
	case err != nil:
		return without(err)
	case o.KeyFile == "" && memory:
		return c, nil
	case o.KeyFile == "" && o.Optional:
		o.Log.Info("no copy of the certificate is kept: a restarted agent cannot serve while the CA is away", "folder", o.Dir, "reason", errNotMemory)
		return nil, nil
	case o.KeyFile == "":
		return nil, fmt.Errorf("keep a copy of the certificate in %s: %w", o.Dir, errNotMemory)
	}
	key, err := sealKey(o.KeyFile)
	if err != nil {
		return without(err)
	}
	same, err := sameVolume(o.Dir, o.KeyFile)
	switch {
	case err != nil:
		return without(err)
	case same && !memory:
		return nil, fmt.Errorf("keep a copy of the certificate in %s: the key %s is on the same volume: want another one", o.Dir, o.KeyFile)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return without(err)
	}
	if c.aead, err = cipher.NewGCM(block); err != nil {
		return without(err)
	}
	return c, nil
}

// Path is the path of the file.
func (c *Copy) Path() string { return c.path }

// State returns when the copy was last written, zero if it was not, and why it could not be written since.
func (c *Copy) State() (written time.Time, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written, c.problem
}

// saved is the content of a copy.
type saved struct {
	// Source is Options.Source.
	Source string `json:"source"`
	// Received is when the certificate was requested.
	Received time.Time `json:"received"`
	Key      []byte    `json:"key"`
	Chain    []byte    `json:"chain"`
	Roots    []byte    `json:"roots"`
}

// secret returns the saved secret and the kind of its key, or an error if it is not valid now, or not what
// the options ask for.
func (c *saved) secret(o Options, now time.Time) (*pki.Secret, pki.KeyKind, error) {
	if c.Source != o.Source {
		return nil, "", fmt.Errorf("it is from the CA %s, not from %s", c.Source, o.Source)
	}
	s, err := pki.NewSecret(c.Key, c.Chain, c.Roots, validTime(c.Chain, now))
	if err != nil {
		return nil, "", err
	}
	key, err := pki.ParseKey(s.Key)
	if err != nil {
		return nil, "", err
	}
	certs, err := pki.ParseBundle(s.Chain)
	if err != nil {
		return nil, "", err
	}
	// The trust domain is the CA's decision.
	if id, err := pki.IdentityOf(certs[0]); err == nil && (id.Namespace != o.Identity.Namespace || id.ServiceAccount != o.Identity.ServiceAccount) {
		return nil, "", fmt.Errorf("it is of %s, not of %s", id.SPIFFE(), o.Identity.SPIFFE())
	}
	return s, pki.KindOf(key), nil
}

// save writes the copy. The old one stays if that fails.
func (c *Copy) save(s saved) {
	text, err := json.Marshal(s)
	if err == nil && c.aead != nil {
		nonce := make([]byte, c.aead.NonceSize())
		if _, err = rand.Read(nonce); err == nil {
			text = append([]byte(sealedPrefix), c.aead.Seal(nonce, nonce, text, []byte(sealedPrefix))...)
		}
	}
	if err == nil {
		err = statefile.Replace(c.path, text)
	}
	c.mu.Lock()
	told := c.problem != nil
	c.problem = err
	if err == nil {
		c.written = time.Now()
	}
	c.mu.Unlock()
	if err != nil && !told {
		c.log.Warn("the copy of the certificate is not written: a restarted agent may not be able to serve while the CA is away", "reason", err)
	}
}

// load returns the content of the copy, nil if there is none.
func (c *Copy) load() (*saved, error) {
	text, err := statefile.ReadMine(c.path, maxCopy)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if c.aead != nil {
		rest := len(sealedPrefix) + c.aead.NonceSize()
		if len(text) < rest || string(text[:len(sealedPrefix)]) != sealedPrefix {
			return nil, fmt.Errorf("%s: not encrypted, although there is a key", c.path)
		}
		if text, err = c.aead.Open(nil, text[len(sealedPrefix):rest], text[rest:], []byte(sealedPrefix)); err != nil {
			return nil, fmt.Errorf("%s: it was not encrypted with this key, or was changed", c.path)
		}
	}
	s := &saved{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: invalid content", c.path) // the error could quote the key
	}
	return s, nil
}

// sealKey reads the key that encrypts copies, or creates it.
func sealKey(path string) ([]byte, error) {
	key, err := statefile.ReadMine(path, sealKeySize)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, sealKeySize)
		if _, err := rand.Read(key); err != nil {
			return nil, fmt.Errorf("generate key: %w", err)
		}
		if err := statefile.Replace(path, key); err != nil {
			return nil, err
		}
		return key, nil
	}
	if err == nil && len(key) != sealKeySize {
		err = fmt.Errorf("%s: %d bytes, want %d random ones", path, len(key), sealKeySize)
	}
	return key, err
}

// inMemory reports whether a folder is on a file system in memory.
func inMemory(dir string) (bool, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return false, err
	}
	kind := int64(st.Type) //nolint:unconvert // it has another type on other architectures
	return kind == tmpfsMagic || kind == ramfsMagic, nil
}

// sameVolume reports whether two files are on the same file system.
func sameVolume(a, b string) (bool, error) {
	var x, y syscall.Stat_t
	if err := errors.Join(syscall.Stat(a, &x), syscall.Stat(b, &y)); err != nil {
		return false, err
	}
	return x.Dev == y.Dev, nil
}
