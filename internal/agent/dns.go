package agent

import (
	"os"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/dns"
	"github.com/pilothouse/pilothouse/internal/agent/status"
)

const (
	resolvConf = "/etc/resolv.conf"
	// originalConf holds what resolv.conf held before it was made to name the agent. [agent P25]
	originalConf = "/var/lib/istio/resolv.conf"
)

// listenDNS takes the sockets that capture sends DNS to, where somebody says that it does: without
// an answer there the application would find no name at all, so that a port in use ends the start.
func (a *Agent) listenDNS() error {
	o := a.o.Settings.DNS
	if !o.Serve {
		return nil
	}
	conf := resolvConf
	if strings.HasSuffix(o.Address, ":53") && os.Getuid() == 0 && isFile(originalConf) {
		conf = originalConf
	}
	server, err := dns.New(dns.Options{Address: o.Address, Conf: conf, Timeout: o.Timeout, Parallel: o.Parallel, Log: a.log.With("scope", "dns")})
	if err != nil {
		return err
	}
	a.undo.Add("close the sockets of DNS", server.Close)
	a.dns = server
	a.serve("dns", server.Run)
	return nil
}

// collectDNS adds the metrics of DNS. [agent N16]
func (a *Agent) collectDNS(p *status.Page) {
	if a.dns == nil {
		return
	}
	n := a.dns.Stats()
	p.Counter("dns_requests_total", "Questions of the application that were captured.", float64(n.Questions))
	p.Counter("dns_upstream_requests_total", "Questions to name servers.", float64(n.Upstream))
	p.Counter("dns_upstream_failures_total", "Questions to name servers that were not answered.", float64(n.Failures))
}
