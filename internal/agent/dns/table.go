package dns

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// answerTTL is the time for which clients may keep an answer from the table, in seconds. [agent N9]
const answerTTL = 30

// Self is what the answers depend on, apart from the table.
type Self struct {
	// Namespace is the workload's; its Services have names of one label.
	Namespace string
	// Domain is the DNS suffix of Kubernetes Services, such as "svc.cluster.local".
	Domain string
}

// Table is the names of the mesh. It is immutable.
type Table struct {
	self Self
	// parent is Domain without its first label: "cluster.local".
	parent string
	hosts  map[string]host
	// others are further names of hosts.
	others map[string]string
	v4, v6 []netip.Addr
}

// host is where the addresses of a host are in v4 and v6.
type host struct {
	at4, at6 uint32
	n4, n6   uint32
	// short is set if the host has the short names of a Kubernetes Service.
	short bool
}

// NewTable makes a table of hosts, of which each has an address. A host that is there twice has the addresses of both.
func NewTable(list []mesh.NameInfo, self Self) *Table {
	self.Namespace, self.Domain = strings.ToLower(self.Namespace), mesh.HostName(self.Domain)
	t := &Table{self: self, hosts: make(map[string]host, len(list)), others: map[string]string{}}
	_, t.parent, _ = strings.Cut(self.Domain, ".")
	for _, n := range list {
		if old, again := t.hosts[n.Host]; again {
			n.IPs = slices.Concat(t.v4[old.at4:old.at4+old.n4], t.v6[old.at6:old.at6+old.n6], n.IPs)
		}
		h := host{at4: uint32(len(t.v4)), at6: uint32(len(t.v6))}
		for _, ip := range n.IPs {
			if ip.Is4() {
				t.v4 = append(t.v4, ip)
			} else {
				t.v6 = append(t.v6, ip)
			}
		}
		h.n4, h.n6 = uint32(len(t.v4))-h.at4, uint32(len(t.v6))-h.at6
		h.short = n.Registry == mesh.KubernetesRegistry && n.Short != "" && n.Host == n.Short+"."+n.Namespace+"."+self.Domain
		t.hosts[n.Host] = h
	}
	for _, n := range list {
		if n.Registry != mesh.KubernetesRegistry {
			continue
		}
		for _, other := range n.Others {
			if _, real := t.hosts[other]; !real {
				t.others[other] = n.Host
			}
		}
	}
	return t
}

// Len is how many hosts the table has.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return len(t.hosts)
}

// Answer is the answer to a question about a name of the mesh.
type Answer struct {
	// Alias is the name in the table that the name in the question, which has a search domain appended, stands for; empty if
	// that name itself is meant.
	Alias string
	// IPs are the addresses of the family in question, none if the name has no such address. They must not be changed.
	IPs []netip.Addr
}

// Answer returns the answer to a question; false if the table does not know the name, or the type is not one of addresses. name
// is in any case and without a final dot; search are the search domains of the workload. turn selects the address that is first.
func (t *Table) Answer(name string, ipv6 bool, search []string, turn uint32) (Answer, bool) {
	if t == nil {
		return Answer{}, false
	}
	name = strings.ToLower(name)
	if h, ok := t.find(name); ok {
		return t.answer(h, "", ipv6, turn), true
	}
	bases := t.withoutSearch(name, search)
	for _, base := range bases {
		if h, ok := t.find(base); ok {
			return t.answer(h, base, ipv6, turn), true
		}
	}
	if h, ok := t.wildcard(name); ok {
		return t.answer(h, "", ipv6, turn), true
	}
	for _, base := range bases {
		if h, ok := t.wildcard(base); ok {
			return t.answer(h, base, ipv6, turn), true
		}
	}
	return Answer{}, false
}

// find looks a name up, without wildcards: hosts, further names of hosts, and short names of Kubernetes Services, which are
// NAME.NAMESPACE, NAME.NAMESPACE.svc, and NAME in its own namespace. [agent N4]
func (t *Table) find(name string) (host, bool) {
	if h, ok := t.hosts[name]; ok {
		return h, true
	}
	if real, ok := t.others[name]; ok {
		return t.hosts[real], true
	}
	if t.self.Domain == "" {
		return host{}, false
	}
	for _, suffix := range []string{t.self.Namespace + "." + t.self.Domain, t.self.Domain, t.parent} {
		if h, ok := t.hosts[name+"."+suffix]; ok && h.short && t.isShort(name, suffix) {
			return h, true
		}
	}
	return host{}, false
}

// isShort reports whether a name to which a suffix is added is a short name: one with the parent domain must end with the
// first label of the domain.
func (t *Table) isShort(name, suffix string) bool {
	if suffix != t.parent || suffix == t.self.Domain {
		return true
	}
	first, _, _ := strings.Cut(t.self.Domain, ".")
	return strings.HasSuffix(name, "."+first)
}

// withoutSearch returns what a name is without each search domain that it ends with: the first one, and others if they are of
// the cluster. An application that means a host of another search domain means one that the mesh need not know. [agent N5]
func (t *Table) withoutSearch(name string, search []string) (out []string) {
	for i, s := range search {
		s = mesh.HostName(s)
		if s == "" || i > 0 && s != t.self.Domain && s != t.parent {
			continue
		}
		if base, ok := strings.CutSuffix(name, "."+s); ok && base != "" {
			out = append(out, base)
		}
	}
	return out
}

// wildcard returns the most specific wildcard that matches a name. [agent N6]
func (t *Table) wildcard(name string) (host, bool) {
	for {
		_, rest, ok := strings.Cut(name, ".")
		if !ok {
			return host{}, false
		}
		if h, ok := t.hosts["*."+rest]; ok {
			return h, true
		}
		name = rest
	}
}

// answer returns the addresses of a host, beginning with another one each turn.
func (t *Table) answer(h host, alias string, ipv6 bool, turn uint32) Answer {
	list := t.v4[h.at4 : h.at4+h.n4]
	if ipv6 {
		list = t.v6[h.at6 : h.at6+h.n6]
	}
	if n := uint32(len(list)); n > 1 {
		list = slices.Concat(list[turn%n:], list[:turn%n])
	}
	return Answer{Alias: alias, IPs: list}
}

// question returns the name in a query in the letters in which it was asked, without the final dot, and whether it is for IPv6
// addresses; false if it is not for addresses, or if the name has a character that no host in the table has.
func (q query) question() (name string, ipv6, ok bool) {
	if q.msg[2]&maskOpcode != opQuery || q.end < headerSize+5 || q.msg[q.end-2] != 0 || q.msg[q.end-1] != byte(dnsmessage.ClassINET) || q.msg[q.end-4] != 0 {
		return "", false, false
	}
	switch dnsmessage.Type(q.msg[q.end-3]) {
	case dnsmessage.TypeA:
	case dnsmessage.TypeAAAA:
		ipv6 = true
	default:
		return "", false, false // also for names that are known [agent N7]
	}
	b := make([]byte, 0, q.end-headerSize)
	for at := headerSize; q.msg[at] != 0; {
		n := int(q.msg[at])
		for _, c := range q.msg[at+1 : at+1+n] {
			if c <= ' ' || c == '.' || c == '\\' || c >= 0x7f {
				return "", false, false
			}
		}
		b = append(append(b, q.msg[at+1:at+1+n]...), '.')
		at += 1 + n
	}
	if len(b) == 0 {
		return "", false, false
	}
	return string(b[:len(b)-1]), ipv6, true
}

// answered returns the response to a query with an answer from the table, which is authoritative. The question has the letters in
// which it was asked. What is too long for the client's UDP size is truncated. [agent N8, N9, N11, N12]
func (q query) answered(name string, ipv6 bool, a Answer, t transport) []byte {
	asked, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return q.failure(serverFailure)
	}
	typ := dnsmessage.TypeA
	if ipv6 {
		typ = dnsmessage.TypeAAAA
	}
	head := dnsmessage.Header{ID: q.id(), Response: true, Authoritative: true, RecursionDesired: q.msg[2]&flagRecursionDesired != 0, RecursionAvailable: true}
	for _, truncated := range []bool{false, true} {
		if head.Truncated = truncated; truncated {
			a = Answer{}
		}
		out, err := q.pack(head, dnsmessage.Question{Name: asked, Type: typ, Class: dnsmessage.ClassINET}, a)
		if err == nil && (len(out) <= q.size || t == overTCP && len(out) <= maxMessage) {
			return out
		}
	}
	return q.failure(serverFailure)
}

// pack encodes a response.
func (q query) pack(head dnsmessage.Header, question dnsmessage.Question, a Answer) ([]byte, error) {
	b := dnsmessage.NewBuilder(make([]byte, 0, 512), head)
	b.EnableCompression()
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(question); err != nil {
		return nil, err
	}
	if err := b.StartAnswers(); err != nil {
		return nil, err
	}
	r := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: answerTTL}
	if a.Alias != "" {
		target, err := dnsmessage.NewName(a.Alias + ".")
		if err != nil {
			return nil, err
		}
		if err := b.CNAMEResource(r, dnsmessage.CNAMEResource{CNAME: target}); err != nil {
			return nil, err
		}
		r.Name = target
	}
	for _, ip := range a.IPs {
		var err error
		if ip.Is4() {
			err = b.AResource(r, dnsmessage.AResource{A: ip.As4()})
		} else {
			err = b.AAAAResource(r, dnsmessage.AAAAResource{AAAA: ip.As16()})
		}
		if err != nil {
			return nil, err
		}
	}
	if !q.edns {
		return b.Finish()
	}
	// Who sends an OPT record gets one. [RFC 6891, 6.1.1]
	if err := b.StartAdditionals(); err != nil {
		return nil, err
	}
	var opt dnsmessage.ResourceHeader
	if err := opt.SetEDNS0(maxUDPAnswer, dnsmessage.RCodeSuccess, false); err != nil {
		return nil, err
	}
	if err := b.OPTResource(opt, dnsmessage.OPTResource{}); err != nil {
		return nil, err
	}
	return b.Finish()
}
