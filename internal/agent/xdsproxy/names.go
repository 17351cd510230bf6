package xdsproxy

import (
	"google.golang.org/grpc/mem"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Names gets the name tables of the control plane; dns.Server does. An error rejects the table.
type Names interface {
	// SetNames replaces the table, an encoded message of mesh.NameTableType.
	SetNames(text []byte) error
}

// takeNames applies and answers a response with a name table; false if it is another response. [agent X6, N2]
func (p *Proxy) takeNames(up *upstreamStream, data mem.BufferSlice) (bool, error) {
	if p.config.Names == nil || topType(data, len(mesh.NameTableType)) != mesh.NameTableType {
		return false, nil
	}
	b, table, ok := readOwn(data.Materialize(), up.delta)
	var err error
	if ok { // else there is nothing new
		err = p.config.Names.SetNames(table)
	}
	if err != nil {
		p.config.Log.Warn("name table rejected", "reason", err, "version", b.version)
	} else {
		p.config.Log.Debug("name table received", "bytes", len(table), "version", b.version)
	}
	return true, up.answer(mesh.NameTableType, b, err)
}
