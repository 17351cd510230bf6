package discovery

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// maxWhy bounds the objects that are listed for one resource.
const maxWhy = 1000

// why writes the objects that a resource of a proxy was made from.
func (s *Server) why(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	id, name := q.Get("proxyID"), q.Get("name")
	typ, ok := typeNamed(q.Get("type"))
	if id == "" || name == "" || !ok {
		http.Error(w, "You must provide a proxyID in the query string: want proxyID=POD.NAMESPACE&type=cds&name=NAME, with cds, eds, lds or rds", http.StatusBadRequest)
		return
	}
	c, ok := s.xds.Find(id)
	if !ok {
		notConnected(w, id)
		return
	}
	out := struct {
		Proxy   string   `json:"proxy"`
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Objects []string `json:"objects"`
	}{c.Node.ID, typ.String(), name, []string{}}
	found := false
	if !s.loop.ask(func() {
		var k compile.Key
		if k, found = s.loop.keyOf(c.ID, typ, name); !found {
			return
		}
		for _, o := range s.loop.views.compiler.Why(k, maxWhy) {
			out.Objects = append(out.Objects, o.String())
		}
	}) {
		unanswered(w)
		return
	}
	if !found {
		http.Error(w, fmt.Sprintf("proxy %s has no resource %s of %s; see /debug/config_dump", c.Node.ID, printable.Quote(name, 300), typ), http.StatusNotFound)
		return
	}
	writeJSON(w, out)
}

// keyOf finds the key of a resource of a connection, on the loop's goroutine.
func (l *loop) keyOf(connection string, typ xds.Type, name string) (compile.Key, bool) {
	p := l.views.proxies[connection]
	if p == nil {
		return compile.Key{}, false
	}
	for _, layer := range compile.Layers(p.class) {
		contents, _ := l.views.compiler.Names().Value(layer)
		keys := contents.Keys
		if contents.Derived {
			base, _ := l.views.compiler.Names().Value(contents.Base)
			keys = slices.Concat(keys, base.Keys) // the layer's own first
		}
		for _, k := range keys {
			if k.Name == name && l.views.layers.typeOf(k.Kind) == typ {
				return k, true
			}
		}
	}
	return compile.Key{}, false
}
