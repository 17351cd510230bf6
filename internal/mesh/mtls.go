package mesh

// MTLSMode is what a workload's port accepts, as PeerAuthentication says it.
type MTLSMode uint8

// The modes. Permissive takes plaintext and mutual TLS alike.
const (
	Permissive MTLSMode = iota
	Strict
	Disable
)

// String is the mode's name in PeerAuthentication.
func (m MTLSMode) String() string { return [...]string{"PERMISSIVE", "STRICT", "DISABLE"}[m] }
