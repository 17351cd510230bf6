package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/trust"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
)

// requests are the parts that request the certificate from the CA.
type requests struct {
	// token authenticates this workload until it has a certificate.
	token tokens
	// keeper and ca are nil if the certificate is mounted, copy also if none is kept.
	keeper *secret.Keeper
	ca     *secret.CA
	copy   *secret.Copy
}

// tokens is the source of tokens.
type tokens struct {
	get func(context.Context) (string, error)
	// gce is nil if the token is a file's.
	gce *upstream.GCE
}

func newTokens(s *spec.Spec) tokens {
	if host := s.Upstream.MetadataServer; host != "" {
		gce := upstream.NewGCE(host, s.Node.Identity.TrustDomain)
		return tokens{get: gce.Token, gce: gce}
	}
	return tokens{get: upstream.TokenFile(s.Upstream.TokenFile)}
}

// newRequests makes the parts. The keeper publishes into value.
func newRequests(s *spec.Spec, plan identity.Plan, value *secret.Value, roots *trust.Store, log *slog.Logger) (*requests, error) {
	r := &requests{token: newTokens(s)}
	if plan.Mounted != nil {
		return r, nil
	}
	var upstreams []secret.Upstream
	for _, address := range s.Upstream.CA {
		u, err := connectTo(s, value, r.token, upstream.Options{
			Name: "CA", Address: address, RootFile: plan.CARoot, Trust: roots.ControlPlane, Headers: s.Upstream.CAHeaders, PlaintextToken: true,
		})
		if err != nil {
			return nil, err
		}
		upstreams = append(upstreams, u)
	}
	o := s.Certificates
	r.ca = secret.NewCA(upstreams, o.Signer)
	if o.CopyDir != "" {
		var err error
		r.copy, err = secret.OpenCopy(secret.CopyOptions{Dir: o.CopyDir, KeyFile: o.CopyKeyFile, Optional: o.CopyOptional, Log: log})
		if err != nil {
			return nil, fmt.Errorf("%w: set IDENTITY_COPY_KEY_FILE to a file on another volume, or IDENTITY_COPY_DIR to a folder in memory, or to none", err)
		}
	}
	r.keeper = secret.NewKeeper(value, secret.Options{
		Identity: s.Node.Identity, KeyKind: o.Key, PKCS8: o.PKCS8, TTL: o.TTL, Ratio: o.RenewalRatio, Jitter: o.Jitter,
		Source: strings.Join(s.Upstream.CA, ","), Copy: r.copy,
	}, r.ca, log)
	return r, nil
}
