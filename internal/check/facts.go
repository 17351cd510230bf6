package check

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/finding"
)

type (
	// Known is a fact, or why it is not known.
	Known[T any] = finding.Known[T]
	// Clock is the time of another machine.
	Clock = finding.Clock
)

// Facts is what was found out. What a situation does not need stays zero.
type Facts struct {
	// Now is this machine's time.
	Now time.Time
	// Namespace and Revision are those of the control plane; a Revision of "" stands for default. Version is that of
	// pilotctl.
	Namespace, Revision, Version string

	Server      Known[Server]
	ServerClock Clock
	// Phase is that of Namespace: Active, Terminating, or "" if there is none.
	Phase Known[string]
	// Permissions are the user's to install, Account those of the control plane's ServiceAccount.
	Permissions, Account Known[[]Permission]
	// Resources are the versions that are served of Istio's resources, such as virtualservices.networking.istio.io.
	Resources Known[map[string][]string]
	Planes    Known[[]Plane]
	Webhooks  Known[[]Webhook]
	Service   Known[Service]
	// Roots are the contents of the ConfigMap with the roots in each namespace that has to have it; "" without one.
	Roots    Known[map[string]string]
	Replicas []Replica
	// Unlisted is why Replicas are not known; empty if they are.
	Unlisted string
	// Injection and Validation are what the API server said of objects that were to be created, as a dry run.
	Injection  Known[Injection]
	Validation Known[Validation]
}

// revision is that of the control plane by its name.
func (f *Facts) revision() string {
	if f.Revision == "" {
		return "default"
	}
	return f.Revision
}

// Server is the API server.
type Server struct {
	Address string
	// Major and Minor are its version as numbers, Version as it says it.
	Major, Minor int
	Version      string
}

// Permission is whether a Rule is allowed.
type Permission struct {
	Rule    Rule
	Allowed bool
}

// Plane is a Deployment of a control plane.
type Plane struct {
	Namespace, Name, Revision string
	// Ours is set for one of Pilothouse.
	Ours           bool
	Desired, Ready int
	// Observed is set if the status is that of the newest version.
	Observed bool
}

// String is the Deployment as messages have it.
func (p Plane) String() string {
	return fmt.Sprintf("%s/%s (revision %s)", p.Namespace, p.Name, p.Revision)
}

// Webhook is one webhook of a webhook configuration.
type Webhook struct {
	// Configuration is the name of the object, Name that of the webhook in it.
	Configuration, Name string
	Validating          bool
	// Revision is the label istio.io/rev, Tag istio.io/tag.
	Revision, Tag string
	// Namespace and Service are where its requests go; empty if it has a URL. Path is that of a Service.
	Namespace, Service string
	Path               string
	Bundle             []byte
	Fails              bool // failurePolicy
}

// Service is that of the control plane.
type Service struct {
	Name   string
	Exists bool
	Ports  []int
	// Ready is how many endpoints are.
	Ready int
}

// Replica is one pilot-discovery.
type Replica struct {
	// Name is that of its Pod, or its address.
	Name string
	// Ready is what it says of itself.
	Ready   Known[string]
	Version Known[string]
	Clock   Clock
	CA      Known[CA]
	Proxies Known[[]Proxy]
	// Mesh is what it knows of workloads; Reached are those of its ports that were tried, with why one was not reached.
	Mesh    Known[Mesh]
	Reached map[string]string
	// Serving and Webhooks are the certificates of the ports 15012 and 15017, with their issuers.
	Serving, Webhooks Known[[]*x509.Certificate]
}

// CA is the state of the roots.
type CA struct {
	Roots   []Root `json:"roots"`
	Problem string `json:"problem"`
}

// Root is one root of the mesh's CA.
type Root struct {
	SHA256   string    `json:"sha256"`
	Role     string    `json:"role"`
	NotAfter time.Time `json:"notAfter"`
	// NotBefore is zero if the control plane does not say it.
	NotBefore time.Time `json:"notBefore"`
}

// Proxy is a connected proxy.
type Proxy struct {
	Proxy   string `json:"proxy"`
	Envoy   string `json:"proxy_version"`
	Version string `json:"istio_version"`
	Behind  *struct {
		Since   string `json:"since"`
		Refused bool   `json:"refused"`
	} `json:"behind"`
	Quarantined []string `json:"quarantined"`
}

// Mesh is what a replica knows of workloads, certificates and itself.
type Mesh struct {
	// Expected is how many Pods are to have a connected proxy, Missing are those whose proxy is not connected to this replica.
	Expected int          `json:"expected"`
	Missing  []MissingPod `json:"missing"`
	Proxies  []Place      `json:"proxies"`
	Issued   []Issued     `json:"issued"`
	Issuer   *Certificate `json:"issuer"`
	// Ports are addresses by what is served there; empty for what is not served.
	Ports map[string]string `json:"ports"`
}

// MissingPod is a Pod whose proxy is not connected, since when. Was says that it was connected before.
type MissingPod struct {
	Pod   string    `json:"pod"`
	Was   bool      `json:"was"`
	Since time.Time `json:"since"`
}

// Place is a connected proxy, with the address that its connection comes from and its own ones.
type Place struct {
	Proxy     string   `json:"proxy"`
	Identity  string   `json:"identity"`
	Address   string   `json:"address"`
	Addresses []string `json:"addresses"`
	// Unknown says that no workload has one of its addresses.
	Unknown bool `json:"unknown"`
	// Capture is what was wrong with the rules of capture, as its agent says.
	Capture string `json:"capture"`
	// Certificate is the one that it has connected with; nil if it had none.
	Certificate *Term `json:"certificate"`
}

// Issued is the newest certificate of an identity and address.
type Issued struct {
	Identity string `json:"identity"`
	Address  string `json:"address"`
	Term
}

// Certificate is a certificate by its name and digest.
type Certificate struct {
	Subject string `json:"subject"`
	SHA256  string `json:"sha256"`
	Term
}

// Term is when a certificate is valid.
type Term struct {
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Injection is the answer to a Pod that was to be created.
type Injection struct {
	Namespace string
	// Injected is set if it has a proxy.
	Injected bool
	// Refused is what the API server said if it did not create it.
	Refused string
}

// Validation is the answer to an object that was to be created and must be refused.
type Validation struct {
	// Refused is what the API server said; empty if it created it.
	Refused string
}
