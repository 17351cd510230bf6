package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// EnvoyUser is the user that Envoy runs as if it is not the agent's own.
type EnvoyUser struct {
	UID, GID uint32
	// BindPorts says that Envoy gets the capability to bind ports below 1024.
	BindPorts bool
}

// RunAsInput is the input of RunAs.
type RunAsInput struct {
	// AgentUID is the user that the agent runs as.
	AgentUID int
	// ServesDNS says that the agent answers DNS, at DNSAddress (host:port).
	ServesDNS  bool
	DNSAddress string
	// TPROXY says that inbound traffic is intercepted by TPROXY.
	TPROXY bool
	// UID and GID are those of the user that $ENVOY_USER names, or 1337 if there is no such user.
	UID, GID uint32
	// Capabilities are those that the agent may use (permitted), a bit for each as in capabilities(7).
	Capabilities uint64
}

// runAs decides which user Envoy runs as.
func (b *builder) runAs() (*EnvoyUser, error) {
	in := RunAsInput{
		AgentUID: b.in.Host.UID, ServesDNS: b.s.DNS.Serve, DNSAddress: b.s.DNS.Address, TPROXY: b.transparent(),
		UID: mesh.ProxyUID, GID: mesh.ProxyUID, Capabilities: b.in.Host.Capabilities,
	}
	// Capture uses the same user, whose traffic it excludes. [agent I4]
	if name := b.set.Text("ENVOY_USER"); b.in.LookupUser != nil {
		uid, gid, err := b.in.LookupUser(name)
		switch {
		case err == nil:
			in.UID, in.GID = uid, gid
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("look up Envoy's user %s (ENVOY_USER): %w", name, err)
		}
	}
	return RunAs(in)
}

// transparent reports whether inbound connections are intercepted by TPROXY, according to any setting that the agent reads.
func (b *builder) transparent() bool {
	n := b.s.Node
	for _, mode := range []string{
		mesh.Text(n.Metadata["INTERCEPTION_MODE"]), b.set.Text("INBOUND_INTERCEPTION_MODE"),
		n.Annotations["sidecar.istio.io/interceptionMode"], b.s.Config.GetInterceptionMode().String(),
	} {
		if strings.EqualFold(mode, "TPROXY") {
			return true
		}
	}
	return b.in.Capture.TPROXY
}

// Bits of capabilities(7).
const (
	capKill           = 5
	capSetGID         = 6
	capSetUID         = 7
	capNetBindService = 10
)

// RunAs decides which user Envoy runs as; nil means the agent's own user. An agent that is
// root to answer DNS on port 53 runs Envoy as the proxy's user, whose traffic is not
// captured. Under TPROXY Envoy needs CAP_NET_ADMIN and stays root. [agent L13]
//
// The error names a capability that the agent lacks: without it, it could not start that
// Envoy or could not end it.
func RunAs(in RunAsInput) (*EnvoyUser, error) {
	if in.AgentUID != 0 || !in.ServesDNS || !strings.HasSuffix(in.DNSAddress, ":53") || in.TPROXY || in.UID == 0 {
		return nil, nil
	}
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{capSetUID, "CAP_SETUID"}, {capSetGID, "CAP_SETGID"}, {capKill, "CAP_KILL"}} {
		if in.Capabilities&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("run Envoy as user %d, because the agent is root and serves DNS on port 53 (DNS_PROXY_ADDR): the agent lacks %s: "+
			"add that to the container's capabilities, or serve DNS on another port as user %d", in.UID, strings.Join(missing, ", "), in.UID)
	}
	return &EnvoyUser{UID: in.UID, GID: in.GID, BindPorts: in.Capabilities&(1<<capNetBindService) != 0}, nil
}
