package authn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/statefile"
)

// Redeem counts the use of a join token by the public key of a request. Errors are gRPC statuses.
type Redeem = func(ctx context.Context, publicKey []byte) error

// Used remembers the use of join tokens. It must be safe for concurrent use, also by several processes.
type Used interface {
	// Use remembers a use, as Ledger.Use does, before it returns nil. Other errors than those of a Ledger mean that the use
	// could not be remembered: then nothing is signed.
	Use(ctx context.Context, u Use, now time.Time) error
}

// WithJoinTokens accepts join tokens for certificates, and remembers in used which were used. Without it none are accepted.
func WithJoinTokens(used Used, log *slog.Logger) Option {
	return func(a *Authenticator) { a.used, a.log = used, log }
}

// redeem returns the function that counts the use of the caller's join token; nil if it has none.
func (a *Authenticator) redeem(c caller) (Redeem, error) {
	if c.join == nil {
		return nil, nil
	}
	if a.used == nil {
		return nil, statusOf(rejected(WrongAudience, "join tokens are not accepted by this control plane"))
	}
	return func(ctx context.Context, publicKey []byte) error {
		u := Use{Token: hashOf([]byte(c.join.ID)), Key: hashOf(publicKey), Uses: c.join.Uses, Until: c.join.Until}
		err := a.used.Use(ctx, u, time.Now())
		switch {
		case err == nil:
			a.log.Info("join token used", "identity", c.id, "token", u.Token[:16], "until", formatTime(u.Until))
			return nil
		case errors.Is(err, errUsedUp):
			return status.Errorf(codes.PermissionDenied, "join token: %v: get another one by pilotctl vm join-token %s/%s", err, c.id.Namespace, c.id.ServiceAccount)
		case errors.Is(err, errFull):
			return status.Errorf(codes.ResourceExhausted, "join token: %v: some must end first", err)
		}
		a.log.Error("join token refused, because its use cannot be remembered", "identity", c.id, "error", err)
		return status.Error(codes.Unavailable, "join token: its use cannot be remembered now; the log of pilot-discovery says why")
	}, nil
}

// hashOf identifies a credential without giving it away.
func hashOf(text []byte) string {
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}

// usedFile is the file of a ledger, in the state folder; usedLock is locked while it is replaced.
const (
	usedFile = "join-tokens.json"
	usedLock = "join-tokens.lock"
)

// UsedFile remembers join tokens in a file of the state folder, which several processes may share.
type UsedFile struct {
	dir string
	mu  sync.Mutex
}

// NewUsedFile remembers join tokens in a file of the folder.
func NewUsedFile(stateDir string) *UsedFile { return &UsedFile{dir: stateDir} }

// Use implements Used. The file is on disk before Use returns.
func (f *UsedFile) Use(_ context.Context, u Use, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(f.dir, usedLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock the used join tokens: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := lockFile(lock); err != nil {
		return fmt.Errorf("lock the used join tokens: %w", err)
	}
	path := filepath.Join(f.dir, usedFile)
	text, err := statefile.ReadOwn(path, MaxLedger)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the used join tokens: %w", err)
	}
	ledger, err := DecodeLedger(text)
	if err != nil {
		return fmt.Errorf("%s: %w: remove the file, which lets tokens be used again that have not ended", path, err)
	}
	next, changed, err := ledger.Use(u, now)
	if err != nil || !changed {
		return err
	}
	if text, err = next.Encode(); err != nil {
		return err
	}
	return statefile.Replace(path, text)
}

// lockFile waits for the lock, which the end of the process releases.
func lockFile(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
