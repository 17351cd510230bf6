package proxy

import (
	"context"
	"net/netip"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// DefaultMeshConfig returns a new mesh configuration with the default values.
func DefaultMeshConfig() *meshv1.MeshConfig { return mesh.DefaultMeshConfig() }

// Environment combines the sources of a proxy's configuration.
type Environment struct {
	ServiceDiscovery
	ServiceAccounts
	ConfigStore
	Secrets
	Mesh
}

// ServiceDiscovery lists services and their endpoints.
type ServiceDiscovery interface {
	// Services lists all services, by host name.
	Services(ctx context.Context) ([]Service, error)
	// Endpoints lists the endpoints of a service's port, by address; none for an unknown service.
	Endpoints(ctx context.Context, host, port string) ([]Endpoint, error)
}

// ServiceAccounts lists the accounts of services.
type ServiceAccounts interface {
	// Accounts lists the accounts that a service's endpoints run as, sorted, each as
	// "namespace/name".
	Accounts(ctx context.Context, host string) ([]string, error)
}

// ConfigStore reads configuration objects.
type ConfigStore interface {
	// Get returns one object; ok is false if it does not exist.
	Get(ctx context.Context, kind, namespace, name string) (c Config, ok bool, err error)
	// List lists the objects of a kind, by namespace and name; namespace "" means all.
	List(ctx context.Context, kind, namespace string) ([]Config, error)
}

// Secrets reads the secrets of gateways.
type Secrets interface {
	// TLSSecret returns the key pair of a secret; ok is false if it does not exist.
	TLSSecret(ctx context.Context, namespace, name string) (s TLSSecret, ok bool, err error)
}

// Mesh reads the configuration of the mesh.
type Mesh interface {
	// MeshConfig returns the mesh configuration merged over the defaults. The caller owns it.
	MeshConfig(ctx context.Context) (*meshv1.MeshConfig, error)
}

// Service is one service of the mesh.
type Service struct {
	// Host is its fully qualified name, name.namespace.svc.domain.
	Host string
	// Addresses are its virtual addresses; none for a headless service.
	Addresses []netip.Addr
	Ports     []Port
}

// Port is one port of a service. Number is 1–65535. Protocol is the declared one ("http", "grpc",
// "tcp" …).
type Port struct {
	Name     string
	Number   uint32
	Protocol string
}

// Endpoint is one address of a service's port.
type Endpoint struct {
	Address netip.AddrPort
	// Ready says that it may receive requests.
	Ready bool
}

// Config is one configuration object. Spec is its message of istio.io/api; do not modify it.
type Config struct {
	Kind, Namespace, Name string
	Labels, Annotations   map[string]string
	Spec                  any
}

// TLSSecret is a key pair in PEM form. Never log it.
type TLSSecret struct {
	Certificate, PrivateKey []byte
}
