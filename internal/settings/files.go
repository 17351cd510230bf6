package settings

// File is a file or folder that a program reads, without a setting that must name it.
type File struct {
	// Path is where it is; "./" is the folder that the program is started in.
	Path string
	// Help says what it is for, and which setting names another one, in one line.
	Help string
}

// AgentFiles are what pilot-agent proxy reads. Its help and manual page list them; a test finds paths in the agent's code that
// are not among them.
var AgentFiles = []File{
	{Path: "./etc/istio/config/mesh", Help: "mesh configuration, if it is there; under it come PROXY_CONFIG and the annotation proxy.istio.io/config (--meshConfig)"},
	{Path: "./etc/istio/pod/labels", Help: "labels of the Pod, written by the kubelet"},
	{Path: "./etc/istio/pod/annotations", Help: "annotations of the Pod, written by the kubelet; proxy.istio.io/config is one"},
	{Path: "./etc/istio/proxy", Help: "folder for sockets and the bootstrap, written and read (configPath of the configuration)"},
	{Path: "./var/run/secrets/tokens/istio-token", Help: "the token with which certificates are requested (CREDENTIAL_TOKEN_FILE)"},
	{Path: "./var/run/secrets/istio/root-cert.pem", Help: "root certificates by which discovery and the CA are verified (XDS_ROOT_CA, CA_ROOT_CA)"},
	{Path: "./var/run/secrets/istio/crl/ca-crl.pem", Help: "revoked certificates, if it is there"},
	{Path: "./var/run/secrets/workload-spiffe-credentials", Help: "folder with a certificate that others renew, if it is there; then none is requested"},
	{Path: "./etc/certs", Help: "folder with a certificate, as older versions of Istio mount it, if it is there; then none is requested"},
	{Path: "./var/run/secrets/workload-spiffe-uds", Help: "folder of the socket with Envoy's secrets; if another program serves one there, it is used"},
	{Path: "./var/run/secrets/credential-uds/files-socket", Help: "socket for certificates in files, made by the agent where another program serves the secrets"},
	{Path: "/etc/ssl/certs/ca-certificates.crt", Help: "the system's root certificates, or those of /etc/pki and /etc/ssl, where the system's are asked for"},
	{Path: "/etc/resolv.conf", Help: "DNS servers and search domains, for captured DNS"},
	{Path: "/var/lib/istio/resolv.conf", Help: "resolv.conf before it named the agent, for captured DNS on a virtual machine"},
	{Path: "/var/lib/istio/data", Help: "folder for what is kept for the next start, if a volume is mounted there"},
}
