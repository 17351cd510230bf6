package proxy

import (
	"context"
	"net/netip"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// DefaultMeshConfig is a fresh mesh configuration with the defaults that hold where a mesh says nothing.
func DefaultMeshConfig() *meshv1.MeshConfig { return mesh.DefaultMeshConfig() }

// Environment gathers what proxies are configured from. Each part may come from another source.
type Environment struct {
	ServiceDiscovery
	ServiceAccounts
	ConfigStore
	Secrets
	Mesh
}

// ServiceDiscovery tells of services and their endpoints.
type ServiceDiscovery interface {
	// Services lists all services, by host name.
	Services(ctx context.Context) ([]Service, error)
	// Endpoints lists the endpoints of a service's port, by address; none for a service that is not known.
	Endpoints(ctx context.Context, host, port string) ([]Endpoint, error)
}

// ServiceAccounts tells who answers for a service.
type ServiceAccounts interface {
	// Accounts lists the accounts that a service's endpoints run as, sorted, each as
	// "namespace/name".
	Accounts(ctx context.Context, host string) ([]string, error)
}

// ConfigStore tells what the mesh is told to do.
type ConfigStore interface {
	// Get finds one object; ok says that there is one.
	Get(ctx context.Context, kind, namespace, name string) (c Config, ok bool, err error)
	// List lists the objects of a kind, by namespace and name; namespace "" stands for all.
	List(ctx context.Context, kind, namespace string) ([]Config, error)
}

// Secrets tells what a gateway presents.
type Secrets interface {
	// TLSSecret finds the key pair of a secret; ok says that there is one.
	TLSSecret(ctx context.Context, namespace, name string) (s TLSSecret, ok bool, err error)
}

// Mesh tells what holds for the whole mesh.
type Mesh interface {
	// MeshConfig is the mesh's configuration over the defaults. It is the caller's.
	MeshConfig(ctx context.Context) (*meshv1.MeshConfig, error)
}

// Service is one service of the mesh.
type Service struct {
	// Host is its full name, name.namespace.svc.domain.
	Host string
	// Addresses are its virtual addresses; none for a headless service.
	Addresses []netip.Addr
	Ports     []Port
}

// Port is one port of a service. Protocol is the one that is spoken on it ("http", "grpc",
// "tcp" …), as far as its declaration tells.
type Port struct {
	Name     string
	Number   uint32
	Protocol string
}

// Endpoint is one address of a service's port.
type Endpoint struct {
	Address netip.AddrPort
	// Ready says that it may be sent requests.
	Ready bool
}

// Config is one object of the mesh's configuration. Spec is its message of istio.io/api; share it, never
// change it.
type Config struct {
	Kind, Namespace, Name string
	Labels, Annotations   map[string]string
	Spec                  any
}

// TLSSecret is a key pair in PEM form. Never log it.
type TLSSecret struct {
	Certificate, PrivateKey []byte
}
