package discovery

import (
	"fmt"
	"net/http"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
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
		http.Error(w, "You must provide a proxyID in the query string: want proxyID=POD.NAMESPACE&type=cds&name=NAME, with cds, eds, lds, rds or vhds", http.StatusBadRequest)
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
		views := s.loop.views
		p := views.proxies[c.ID]
		if p == nil {
			return
		}
		var k compile.Key
		if k, found = views.keyOf(views.classes[p.class], resourceID{typ, name}); !found {
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
