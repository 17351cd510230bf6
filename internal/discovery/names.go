package discovery

import (
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// publishedNames is the name table of a scope, and the classes that have it.
type publishedNames struct {
	table   *xds.NameTable
	classes map[*publishedClass]struct{}
}

// enterNames gives a class its name table, if the agents of its proxies answer DNS queries.
func (p *publisher) enterNames(c *publishedClass) {
	if !c.class.Scope.Caps.Has(mesh.DNSCapture) {
		return
	}
	n := p.names[c.class.Scope]
	if n == nil {
		n = &publishedNames{classes: map[*publishedClass]struct{}{}}
		n.table = p.tableOf(p.compiler.NameTables().Want(compile.NamesKey{Scope: c.class.Scope.ID()}))
		p.names[c.class.Scope] = n
	}
	n.classes[c] = struct{}{}
	c.names = n
}

// exitNames takes a name table from a class that is dropped.
func (p *publisher) exitNames(c *publishedClass) {
	if c.names == nil {
		return
	}
	if delete(c.names.classes, c); len(c.names.classes) == 0 {
		p.compiler.NameTables().Unwant(compile.NamesKey{Scope: c.class.Scope.ID()})
		delete(p.names, c.class.Scope)
	}
}

// updateNames applies what moved in the graph to the name tables, and adds the classes that have another one.
func (p *publisher) updateNames(moved []incr.Moved, changed map[*publishedClass]struct{}) {
	var tables map[string]*xds.NameTable // by version
	for _, m := range moved {
		key, ok := m.Key.(compile.NamesKey)
		if !ok {
			continue
		}
		n := p.names[key.Scope.Value()]
		t, _ := p.compiler.NameTables().Value(key)
		if n == nil || n.table.Version == t.Version {
			continue
		}
		if tables == nil {
			tables = map[string]*xds.NameTable{}
			for _, other := range p.names {
				tables[other.table.Version] = other.table
			}
		}
		if tables[t.Version] == nil {
			tables[t.Version] = xds.NewNameTable(t.Version, t.Body)
		}
		n.table = tables[t.Version]
		for c := range n.classes {
			changed[c] = struct{}{}
		}
	}
}

// tableOf returns a table for the wire. Scopes with equal tables share one.
func (p *publisher) tableOf(t *compile.NameTable) *xds.NameTable {
	for _, n := range p.names {
		if n.table != nil && n.table.Version == t.Version {
			return n.table
		}
	}
	return xds.NewNameTable(t.Version, t.Body)
}
