package discovery

import (
	"context"
	"maps"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/object"
)

// followSecrets has the statuses of Gateways of the Gateway API say which of the Secrets that they name cannot be used, until ctx ends.
func (s *Server) followSecrets(ctx context.Context) error {
	select {
	case <-s.loop.opened: // before, what the source has is not complete
	case <-ctx.Done():
		return nil
	}
	for {
		changed := s.loop.secrets.Changed()
		s.loop.ask(s.loop.judgeSecrets)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// judgeSecrets finds out what is wrong with the Secrets that Gateways may use. Call it through ask.
func (l *loop) judgeSecrets() {
	refs := l.references.Want(struct{}{})
	l.references.Unwant(struct{}{})
	now := map[credentials.Reference]string{}
	for r := range refs {
		of := credentials.Reference{Namespace: r.Namespace, Secret: r.Secret} // whoever names it
		if why := l.secrets.Fault(r.Namespace, r.Secret); why != "" {
			now[of] = why
		}
	}
	if maps.Equal(now, l.faults) {
		return
	}
	for r := range l.faults {
		if now[r] == "" {
			l.model.SetSecretFault(r.Namespace, r.Secret, "")
		}
	}
	for r, why := range now {
		l.model.SetSecretFault(r.Namespace, r.Secret, why)
	}
	l.faults = now
	l.commit(object.Batch{})
}
