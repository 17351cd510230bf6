package node

import (
	"context"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/pilothouse/pilothouse/test/kube/node/podnet"
)

// serveDNS serves the cluster's DNS at the gateway, by UDP and TCP.
func (n *Network) serveDNS(ctx context.Context) error {
	at := netip.AddrPortFrom(n.Gateway(), 53).String()
	packets, err := n.Mesh.Host().ListenPacket("udp", at)
	if err != nil {
		return err
	}
	listener, err := n.Mesh.Host().Listen("tcp", at)
	if err != nil {
		_ = packets.Close()
		return err
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		// A client that is gone gets no answer.
		_ = w.WriteMsg(answer(n.tables(), q))
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: listener, Handler: handler}} {
		n.group.Go(func() {
			if err := s.ActivateAndServe(); err != nil && ctx.Err() == nil {
				n.o.Log.Debug("serve DNS", "error", err)
			}
		})
		n.group.Go(func() {
			<-ctx.Done()
			_ = packets.Close()
			_ = listener.Close()
			// It may not have been activated yet, and is not then.
			_ = s.Shutdown()
		})
	}
	return nil
}

// ttl is how long answers may be kept, in seconds.
const ttl = 5

// answer answers one query. Names outside of the cluster do not exist.
func answer(tables podnet.Tables, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	if len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		m.Rcode = dns.RcodeNotImplemented
		return m
	}
	question := q.Question[0]
	m.Authoritative = dns.IsSubDomain(Domain+".", strings.ToLower(question.Name))
	name := question.Name
	a := tables.Lookup(name, Domain)
	if a.Alias != "" {
		target := dns.Fqdn(a.Alias)
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: target})
		if name = target; dns.IsSubDomain(Domain+".", target) {
			a = tables.Lookup(target, Domain)
		}
	}
	if !a.Exists {
		m.Rcode = dns.RcodeNameError
		return m
	}
	switch question.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		m.Answer = append(m.Answer, addressRecords(name, question.Qtype, a.Addrs)...)
	case dns.TypeSRV:
		for _, s := range a.Servers {
			target := dns.Fqdn(s.Target)
			m.Answer = append(m.Answer, &dns.SRV{Hdr: header(name, dns.TypeSRV), Weight: 1, Port: s.Port, Target: target})
			m.Extra = append(m.Extra, addressRecords(target, dns.TypeA, s.Addrs)...)
		}
	}
	return m
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

func addressRecords(name string, kind uint16, addrs []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, a := range addrs {
		switch {
		case a.Is4() && kind == dns.TypeA:
			out = append(out, &dns.A{Hdr: header(name, kind), A: a.AsSlice()})
		case a.Is6() && kind == dns.TypeAAAA:
			out = append(out, &dns.AAAA{Hdr: header(name, kind), AAAA: a.AsSlice()})
		}
	}
	return out
}
