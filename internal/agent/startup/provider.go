package startup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/claim"
)

// External reports whether another server, such as a SPIRE agent, has the workload's certificate. The answer holds for as long as
// the agent runs, so that the workload does not change its identity unnoticed. It is an error if the policy demands a server that
// must exist and does not, or if the server's user is not one of those who are trusted with the workload's identity: in a folder that every
// user may write to, any process of the Pod can serve the socket. [agent S19]
func External(ctx context.Context, s *spec.Spec, log *slog.Logger) (bool, error) {
	path := s.Paths.SDSSocket
	if s.SDS.Policy == spec.IgnoreExternal {
		return false, nil
	}
	uid, err := claim.Server(path)
	answers := err == nil
	switch {
	case answers && s.SDS.Policy == spec.PreferExternal && isAgents(ctx, path):
		return false, nil // Take waits for the end of that agent, or reports it
	case answers && !s.SDS.AllUsers && !slices.Contains(s.SDS.Users, uid):
		return false, fmt.Errorf("use the SDS server at %s: it runs as user %d, want one of %v: end that process, or add its user to WORKLOAD_IDENTITY_SOCKET_UIDS", path, uid, s.SDS.Users)
	case answers:
		log.Info("another server has the workload's certificate", "socket", path, "uid", uid, "policy", string(s.SDS.Policy))
		return true, nil
	case s.SDS.MustExist && !errors.Is(err, unix.ECONNREFUSED):
		return false, fmt.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE: find the socket %s: start its server first, or set WORKLOAD_IDENTITY_SOCKET_POLICY=require to wait for it: %w", path, err)
	case s.SDS.Policy == spec.RequireExternal:
		log.Warn("another server is to have the workload's certificate and does not answer yet; Envoy waits for it", "socket", path, "reason", err)
		return true, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, claim.ErrNotSocket):
		return false, nil // what is at the path is replaced, or the reason why it is not is given, when the agent listens
	}
	// It may be a server that has no time to answer now: to replace it would change the workload's identity.
	return false, fmt.Errorf("find out whether another SDS server is at %s: %w", path, err)
}

// isAgents reports whether another Pilothouse agent has the socket: it has locked the folder.
func isAgents(ctx context.Context, socket string) bool {
	lock, err := claim.Folder(ctx, filepath.Dir(socket), 0, nil)
	if err == nil {
		err = lock.Release()
	}
	var taken *claim.TakenError
	return errors.As(err, &taken)
}
