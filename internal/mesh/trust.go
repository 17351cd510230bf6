package mesh

// How the control plane tells agents which root certificates to trust (PCDS). [control-plane 1.6.7]
const (
	// TrustBundleType is the type URL of the message, istio.mesh.v1alpha1.ProxyConfig. Only its fields
	// ca_certificates_pem and proxy_metadata are set.
	TrustBundleType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	// CARootsKey is the key in proxy_metadata of the SHA-256s, in hexadecimal with commas between them,
	// of those roots that are the mesh CA's own. They issue the control plane's serving certificate too;
	// the other roots are those of peers.
	CARootsKey = "PILOTHOUSE_CA_ROOTS"
	// TrustBundleField is the number of ca_certificates_pem.
	TrustBundleField = 34
	// ProxyMetadataField is the number of proxy_metadata.
	ProxyMetadataField = 24
)
