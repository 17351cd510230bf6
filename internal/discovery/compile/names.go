package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// NameTable is what the agents of a scope resolve. It is immutable.
type NameTable struct {
	// Version identifies the contents.
	Version string
	// Body is the encoded table, of mesh.NameTableType.
	Body []byte
}

// NamesKey is the key of the rule of name tables.
type NamesKey struct{ Scope mesh.ScopeID }

// NameTables returns the rule that computes name tables. Scopes of which the services have the same addresses have the same
// table.
func (c *Compiler) NameTables() *incr.Rule[NamesKey, *NameTable] { return c.nameTables }

// namedHost is the encoded entries of one service.
type namedHost struct {
	host string
	text []byte
}

// hostNames returns the encoded entries of one service in a scope; nil if it has no address that is known, so that agents ask
// other servers. [control-plane 1.6.6]
func (c *Compiler) hostNames(r *incr.Reader, k scopeHost) []byte {
	s := c.model.Service(r, k.scope, k.host)
	if s == nil {
		return nil
	}
	n := mesh.NameInfo{Host: s.Host, Registry: mesh.ExternalRegistry, IPs: c.model.VIPs(r, k.scope, s)}
	if s.Source.Kubernetes {
		n.Registry, n.Short, n.Namespace = mesh.KubernetesRegistry, s.Name, s.Namespace
	}
	pods := map[string][]netip.Addr{}
	if len(n.IPs) == 0 {
		for _, e := range c.model.Named(r, k.scope, s) {
			if !slices.Contains(n.IPs, e.Address) {
				n.IPs = append(n.IPs, e.Address)
			}
			if e.Hostname != "" {
				pods[e.Hostname] = append(pods[e.Hostname], e.Address)
			}
		}
	}
	if len(n.IPs) == 0 {
		return nil
	}
	text := mesh.AppendNameInfo(nil, n)
	_, domain, _ := strings.Cut(s.Host, ".")
	for _, hostname := range sortedKeys(pods) {
		short := hostname + "." + s.Name
		text = mesh.AppendNameInfo(text, mesh.NameInfo{
			Host: mesh.HostName(short + "." + domain), IPs: pods[hostname], Registry: n.Registry, Short: short, Namespace: s.Namespace,
		})
	}
	return text
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// hostList lists the entries of the services of a scope without base, by host.
func (c *Compiler) hostList(r *incr.Reader, s mesh.ScopeID) []namedHost {
	hosts := scopeHosts(s, c.model.Visible(r, s))
	var out []namedHost
	for i, text := range c.inner.hostNames.OfAll(r, hosts) {
		if text != nil {
			out = append(out, namedHost{hosts[i].host, text})
		}
	}
	return out
}

// baseNames returns the name table of a scope without base.
func (c *Compiler) baseNames(r *incr.Reader, s mesh.ScopeID) *NameTable {
	return nameTable(c.inner.hostList.Of(r, s))
}

// nameTableOf returns the name table of a scope. That of a derived scope is its base's unless one of its services has other entries.
func (c *Compiler) nameTableOf(r *incr.Reader, k NamesKey) *NameTable {
	k.Scope = bareScope(k.Scope)
	base, derived := c.model.Base(k.Scope)
	if !derived {
		return c.inner.baseNames.Of(r, k.Scope)
	}
	d := c.model.Difference(r, k.Scope)
	own := make(map[string][]byte, len(d.Services))
	differ := false
	for _, host := range d.Services {
		own[host] = c.inner.hostNames.Of(r, scopeHost{k.Scope, host})
		differ = differ || string(own[host]) != string(c.inner.hostNames.Of(r, scopeHost{base, host}))
	}
	if !differ {
		return c.inner.baseNames.Of(r, base)
	}
	var list []namedHost
	for _, h := range c.inner.hostList.Of(r, base) {
		if _, replaced := own[h.host]; !replaced {
			list = append(list, h)
		}
	}
	for host, text := range own {
		if text != nil {
			list = append(list, namedHost{host, text})
		}
	}
	slices.SortFunc(list, func(a, b namedHost) int { return cmp.Compare(a.host, b.host) })
	return nameTable(list)
}

// nameTable joins entries.
func nameTable(list []namedHost) *NameTable {
	size := 0
	for _, h := range list {
		size += len(h.text)
	}
	t := &NameTable{Body: make([]byte, 0, size)}
	for _, h := range list {
		t.Body = append(t.Body, h.text...)
	}
	sum := sha256.Sum256(t.Body)
	t.Version = hex.EncodeToString(sum[:16])
	return t
}
