package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/dns"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/run"
)

const (
	resolvConf = "/etc/resolv.conf"
	// originalConf is the copy of resolv.conf from before it was changed to name the agent. [agent P25]
	originalConf = "/var/lib/istio/resolv.conf"
	// savedNames is the name of the file with the names of the mesh for the next agent.
	savedNames = "names.saved"
)

// dnsPart is the server of captured DNS requests.
type dnsPart struct {
	server *dns.Server // nil if DNS is not captured
	tasks  []run.Task
	close  func() error
}

// newDNS opens the sockets that captured DNS requests are sent to. Without
// a server there the application could resolve no name, so a port in use is an error.
func newDNS(s *spec.Spec, log *slog.Logger) (dnsPart, error) {
	o := s.DNS
	if !o.Serve {
		return dnsPart{close: func() error { return nil }}, nil
	}
	server, err := dns.New(dns.Options{Address: o.Address, Conf: confOf(o.Address, os.Getuid() == 0, isFile(originalConf)), Timeout: o.Timeout, Parallel: o.Parallel, Log: log.With("scope", "dns"),
		Saved: filepath.Join(s.Paths.ConfigDir, savedNames), Self: dns.Self{Namespace: s.Node.Identity.Namespace, Domain: strings.TrimPrefix(s.Node.ID.Domain, s.Node.Identity.Namespace+".")}})
	if err != nil {
		return dnsPart{}, err
	}
	return dnsPart{server: server, tasks: []run.Task{{Name: "dns", Run: server.Run}}, close: server.Close}, nil
}

// confOf returns the file with the servers that are asked for other names. An agent at port 53, which is in resolv.conf itself,
// would ask itself. [agent P25]
func confOf(address string, root, original bool) string {
	if strings.HasSuffix(address, ":53") && root && original {
		return originalConf
	}
	return resolvConf
}
