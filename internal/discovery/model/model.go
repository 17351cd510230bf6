// Package model holds what the mesh consists of, as tables that rules read, and the rules that give meaning to them.
//
// Apply, called by the one writer, stores validated objects as rows. All
// reading goes through an *incr.Reader, so that every answer is recorded: which services
// a scope sees, which VirtualService and DestinationRule hold for a host, which
// instances a service has, which policies select a workload, and into which class a
// proxy falls. The rules here use levels 1 to 9 of the graph; compile's stand above.
//
// Rows are immutable. A Model belongs to the goroutine that owns its graph.
package model

import (
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
)

// Levels of the rules; a rule reads only rules of lower levels.
const (
	levelRow      = 1
	levelIndex    = 2
	levelScope    = 3
	levelHost     = 4
	levelClassify = 5
	// LevelCompile is the lowest level that compile's rules may use.
	LevelCompile = 10
)

// The name of the bucket that holds every row of a table.
const all = "*"

// Model is the tables and their rules. Make one with New.
type Model struct {
	domain  string
	tables  tables
	rules   rules
	denials map[Denial]bool // rows of tables.peers too
}

type tables struct {
	services *incr.Table[*Service]
	pods     *incr.Table[*Pod]
	entries  *incr.Table[*WorkloadEntry]
	slices   *incr.Table[*Slice]
	virtuals *incr.Table[*VirtualService]
	dests    *incr.Table[*DestinationRule]
	peers    *incr.Table[*PeerAuthentication]
	sidecars *incr.Table[*Sidecar]
	mesh     *incr.Table[*meshv1.MeshConfig]
	// owned lists the service rows that an object gave, so that they go with it.
	owned map[object.Key][]string
}

// Row is what every configuration row carries of its object.
type Row struct {
	Namespace, Name string
	// Age orders objects: the older wins where only one can. It is the creation time in
	// nanoseconds since 1970, 0 where unknown.
	Age int64
}

// Key is "namespace/name".
func (r Row) Key() string { return r.Namespace + "/" + r.Name }

// Older says whether r wins over other where only one can: the older, then the lesser name.
func (r Row) Older(other Row) bool {
	if r.Age != other.Age {
		return r.Age < other.Age
	}
	return r.Key() < other.Key()
}

// VirtualService is a row; Hosts are spec.hosts as full names.
type VirtualService struct {
	Row
	Hosts []string
	Spec  *networking.VirtualService
}

// DestinationRule is a row; Host is spec.host as a full name.
type DestinationRule struct {
	Row
	Host string
	Spec *networking.DestinationRule
}

// PeerAuthentication is a row, or a denial that stands in the place of one.
type PeerAuthentication struct {
	Row
	Spec *security.PeerAuthentication
	deny deny
}

// Sidecar is a row.
type Sidecar struct {
	Row
	Spec *networking.Sidecar
}

// New adds an empty model to g. domain is the cluster's DNS suffix, "cluster.local".
func New(g *incr.Graph, domain string) *Model {
	m := &Model{domain: mesh.HostName(domain), tables: tables{
		services: incr.NewTable[*Service](g, "services"),
		pods:     incr.NewTable[*Pod](g, "pods"),
		entries:  incr.NewTable[*WorkloadEntry](g, "workload entries"),
		slices:   incr.NewTable[*Slice](g, "endpoint slices"),
		virtuals: incr.NewTable[*VirtualService](g, "virtual services"),
		dests:    incr.NewTable[*DestinationRule](g, "destination rules"),
		peers:    incr.NewTable[*PeerAuthentication](g, "peer authentications"),
		sidecars: incr.NewTable[*Sidecar](g, "sidecars"),
		mesh:     incr.NewTable[*meshv1.MeshConfig](g, "mesh"),
		owned:    map[object.Key][]string{},
	}}
	m.tables.mesh.Put("mesh", mesh.DefaultMeshConfig())
	m.derive(g)
	return m
}

// SetMesh replaces the mesh configuration.
func (m *Model) SetMesh(c *meshv1.MeshConfig) { m.tables.mesh.Put("mesh", c) }

// Mesh reads the mesh configuration. Do not change it.
func (m *Model) Mesh(r *incr.Reader) *meshv1.MeshConfig {
	c, _ := incr.Get(r, m.tables.mesh, "mesh")
	return c
}

// Domain is the cluster's DNS suffix.
func (m *Model) Domain() string { return m.domain }

// Counts says how many rows each table holds, for metrics.
func (m *Model) Counts() map[string]int {
	t := &m.tables
	return map[string]int{
		"services": t.services.Len(), "pods": t.pods.Len(), "workload_entries": t.entries.Len(),
		"virtual_services": t.virtuals.Len(), "destination_rules": t.dests.Len(),
		"peer_authentications": t.peers.Len() - len(m.denials), "sidecars": t.sidecars.Len(), "endpoint_slices": t.slices.Len(),
	}
}

// Apply stores changed objects, which must be valid. It panics for a kind without a row in
// kinds. Nothing is rerun until the graph runs.
func (m *Model) Apply(changes []object.Change) {
	for _, c := range changes {
		row, ok := kinds[c.Key.Kind]
		switch {
		case !ok:
			panic("model: unknown kind of object: " + c.Key.String())
		case c.Object == nil:
			row.remove(m, c.Key)
		default:
			row.put(m, c.Object)
		}
	}
}
