package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"
)

// SocketPolicy says who serves the workload's certificate to Envoy.
type SocketPolicy string

// The policies. [agent S19]
const (
	// RequireExternal leaves it to another server, such as a SPIRE agent, and waits for it.
	RequireExternal SocketPolicy = "require"
	// PreferExternal uses another server if one answers when the agent starts, for as long as the agent runs.
	PreferExternal SocketPolicy = "prefer"
	// IgnoreExternal has the agent serve it; another server's socket at the path is an error.
	IgnoreExternal SocketPolicy = "ignore"
)

// SDS says how secrets are served to Envoy. [agent D10, P15]
type SDS struct {
	Policy SocketPolicy
	// MustExist says that another server's socket must exist when the agent starts. [agent E17]
	MustExist bool
	// Mode is the mode of the agent's socket, UID and GID its owner; -1 is the agent's own.
	Mode     fs.FileMode
	UID, GID int
	// AllUsers serves every user, otherwise Users are those who are served and who may be the other server: root, the agent's user,
	// Envoy's, and those of WORKLOAD_IDENTITY_SOCKET_UIDS.
	AllUsers bool
	Users    []uint32
	// CRL is the file of the revocation list that goes with the roots, which may be missing; empty for none. [agent S21]
	CRL string
	// KeyProvider is the extension of Envoy that uses the private key; nil for none. [agent S23]
	KeyProvider *KeyProvider
}

// KeyProvider is an extension of Envoy that uses the private key in its stead.
type KeyProvider struct {
	// Name is cryptomb or qat.
	Name string
	// PollDelay is at least a millisecond.
	PollDelay time.Duration
	// Fallback has Envoy use the key itself if the extension's hardware is missing.
	Fallback bool
}

// crlFile is where the revocation list is mounted. [agent P21]
const crlFile = "./var/run/secrets/istio/crl/ca-crl.pem"

// sds needs the user of Envoy.
func (b *builder) sds() (SDS, error) {
	s := SDS{Policy: SocketPolicy(b.set.Enum("WORKLOAD_IDENTITY_SOCKET_POLICY")), UID: -1, GID: -1}
	if s.Policy == "" {
		s.Policy = PreferExternal
		if b.set.Text("WORKLOAD_IDENTITY_SOCKET_FILE") != ownSocket {
			s.Policy, s.MustExist = RequireExternal, true
		}
	}
	mode, err := strconv.ParseUint(b.set.Text("WORKLOAD_IDENTITY_SOCKET_MODE"), 8, 32)
	if s.Mode = fs.FileMode(mode); err != nil || s.Mode > fs.ModePerm {
		b.set.Fail("WORKLOAD_IDENTITY_SOCKET_MODE", "invalid mode %q: want octal digits, 0–0777", b.set.Text("WORKLOAD_IDENTITY_SOCKET_MODE"))
	}
	if owner := b.set.Text("WORKLOAD_IDENTITY_SOCKET_OWNER"); owner != "" {
		if s.UID, s.GID, err = parseOwner(owner); err != nil {
			b.set.Fail("WORKLOAD_IDENTITY_SOCKET_OWNER", "%w", err)
		}
	}
	s.Users = []uint32{0, uint32(b.in.Host.UID)}
	if user := b.s.Envoy.RunAs; user != nil {
		s.Users = append(s.Users, user.UID)
	}
	for _, text := range b.set.List("WORKLOAD_IDENTITY_SOCKET_UIDS") {
		uid, err := strconv.ParseUint(text, 10, 32)
		switch {
		case text == "*":
			s.AllUsers = true
		case err != nil:
			b.set.Fail("WORKLOAD_IDENTITY_SOCKET_UIDS", "invalid user %q: want numbers, or * for every user", text)
		default:
			s.Users = append(s.Users, uint32(uid))
		}
	}
	slices.Sort(s.Users)
	s.Users = slices.Compact(s.Users)
	if b.set.Bool("PILOT_ENABLE_CA_CRL") {
		s.CRL = crlFile
	}
	s.KeyProvider, err = keyProvider(b.s.Config.GetPrivateKeyProvider())
	return s, err
}

func parseOwner(text string) (uid, gid int, err error) {
	user, group, ok := strings.Cut(text, ":")
	u, err1 := strconv.ParseUint(user, 10, 31)
	g, err2 := strconv.ParseUint(group, 10, 31)
	if !ok || err1 != nil || err2 != nil {
		return -1, -1, fmt.Errorf("invalid owner %q: want the numbers of a user and a group, UID:GID", text)
	}
	return int(u), int(g), nil
}

// keyProvider returns nil if p has none.
func keyProvider(p *meshv1.PrivateKeyProvider) (*KeyProvider, error) {
	var out KeyProvider
	switch {
	case p == nil:
		return nil, nil
	case p.GetCryptomb() != nil:
		out = KeyProvider{"cryptomb", p.GetCryptomb().GetPollDelay().AsDuration(), p.GetCryptomb().GetFallback().GetValue()}
	case p.GetQat() != nil:
		out = KeyProvider{"qat", p.GetQat().GetPollDelay().AsDuration(), p.GetQat().GetFallback().GetValue()}
	default:
		return nil, errors.New("proxy configuration privateKeyProvider: want cryptomb or qat")
	}
	if out.PollDelay < time.Millisecond {
		return nil, fmt.Errorf("proxy configuration privateKeyProvider.%s.pollDelay: invalid duration %s: want at least 1ms", out.Name, out.PollDelay)
	}
	return &out, nil
}
