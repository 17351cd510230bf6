package model

import "github.com/pilothouse/pilothouse/internal/incr"

// ServiceRows returns all services, in the order of their keys. A rule that reads them is rerun after
// every change of a service.
func (m *Model) ServiceRows(r *incr.Reader) []*Service {
	var out []*Service
	for _, s := range incr.In(r, m.tables.services, all) {
		out = append(out, s)
	}
	return out
}
