package config

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// workloadGroup checks what WorkloadEntries of registered proxies are made from. [control-plane 1.9.19]
func (c *check) workloadGroup(s *networking.WorkloadGroup) {
	if s.Template == nil {
		c.fail("spec.template", "is missing: want what the WorkloadEntries of the group have, such as serviceAccount")
	} else {
		if s.Template.Address != "" {
			c.warn("spec.template.address", "not applied: each WorkloadEntry has the address of its proxy; remove it")
		}
		c.workloadPorts("spec.template", s.Template, nil)
		c.labels("spec.template.labels", s.Template.Labels)
	}
	c.labels("spec.metadata.labels", s.GetMetadata().GetLabels())
	for _, name := range sorted(s.GetMetadata().GetAnnotations()) {
		if mesh.IsRegistration(name) {
			c.warn(entry("spec.metadata.annotations", name), "not applied: the control plane writes this annotation itself; remove it")
		}
	}
	if s.Probe != nil {
		c.readinessProbe("spec.probe", s.Probe)
	}
}

// readinessProbe checks a probe by the rules of the agent that runs it.
func (c *check) readinessProbe(at string, p *networking.ReadinessProbe) {
	c.notNegative(at+".initialDelaySeconds", p.InitialDelaySeconds)
	c.notNegative(at+".timeoutSeconds", p.TimeoutSeconds)
	c.notNegative(at+".periodSeconds", p.PeriodSeconds)
	c.notNegative(at+".successThreshold", p.SuccessThreshold)
	c.notNegative(at+".failureThreshold", p.FailureThreshold)
	switch m := p.HealthCheckMethod.(type) {
	case *networking.ReadinessProbe_HttpGet:
		c.port(at+".httpGet.port", m.HttpGet.GetPort(), false)
		if scheme := m.HttpGet.GetScheme(); scheme != "" && !strings.EqualFold(scheme, "HTTP") && !strings.EqualFold(scheme, "HTTPS") {
			c.fail(at+".httpGet.scheme", "invalid scheme %.100q: want HTTP or HTTPS", scheme)
		}
		c.probeHost(at+".httpGet.host", m.HttpGet.GetHost())
	case *networking.ReadinessProbe_TcpSocket:
		c.port(at+".tcpSocket.port", m.TcpSocket.GetPort(), false)
		c.probeHost(at+".tcpSocket.host", m.TcpSocket.GetHost())
	case *networking.ReadinessProbe_Grpc:
		c.port(at+".grpc.port", m.Grpc.GetPort(), false)
	case *networking.ReadinessProbe_Exec:
		if command := m.Exec.GetCommand(); len(command) == 0 || command[0] == "" {
			c.fail(at+".exec.command", "is empty: want a program and its arguments")
		}
	default:
		c.fail(at, "no probe: want httpGet, tcpSocket, grpc or exec")
	}
}

// probeHost checks where a probe connects to: agents resolve no names.
func (c *check) probeHost(at, host string) {
	if host != "" && host != "localhost" && !isIP(strings.Trim(host, "[]")) {
		c.fail(at, "invalid host %.100q: want an IP address, localhost, or none for that of the proxy", host)
	}
}
