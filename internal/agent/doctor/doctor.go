// Package doctor decides what is wrong with an agent and its machine, and says what to do about it.
//
// [Facts] is what somebody has found out about the machine, the agent's settings, and the control plane. [Run] makes the
// checks: each is a pure function of the facts. A fact that could not be found out is never a success. Nothing here
// asks anybody or reads a clock.
package doctor

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/finding"
)

// Facts is what was found out.
type Facts struct {
	Now time.Time
	// Agent is the agent that runs; Running is false if none does.
	Running bool
	Agent   Agent
	// Settings are those of the agent, its environment and its files.
	Settings finding.Known[Settings]

	UID int
	// Capabilities are a bit for each, as in capabilities(7).
	Capabilities uint64
	Kernel       Kernel
	// OpenFiles is the limit of open files of a process.
	OpenFiles uint64
	Ports     finding.Known[[]Port]
	Names     []Name
	// Token is nil if the agent uses none.
	Token *Token
	Roots []Root
	// Servers are discovery and the certificate authorities.
	Servers []Server
	// Clock is that of discovery's machine.
	Clock finding.Clock
	// Memory is the limit of memory in bytes, 0 without one. Killed counts processes that the kernel has killed because it was reached.
	Memory, Killed int64
	// CPUs is the limit of CPUs, rounded up, 0 without one.
	CPUs int
	// Version is that of this program, Envoy what the agent's Envoy says of itself.
	Version string
	Envoy   finding.Known[string]
	Capture Capture
}

// Agent is what an agent that runs says of itself.
type Agent struct {
	PID     int
	Version string
	Ready   bool
	// Reason is why it is not ready.
	Reason string
	// Wanted says that it holds a certificate itself. Certificate is when that ends, zero if there is none; Problem
	// is why the last request for one failed.
	Wanted      bool
	Certificate time.Time
	Problem     string
	// Connected says that there is a stream to discovery.
	Connected bool
	Upstream  string
}

// Settings are the result of reading the agent's settings.
type Settings struct {
	// From says whose they are.
	From     string
	Warnings []string
	// Unread says why they are not those of the agent that runs; empty if they are, or if none runs.
	Unread string
}

// Kernel is what the kernel has that the agent and Envoy use.
type Kernel struct {
	Release string
	// Problems are features that do not work, a sentence each.
	Problems []string
}

// Port is a TCP port that the agent or its Envoy listens on.
type Port struct {
	Number int
	Use    string
	// Held says that somebody listens there, Own that it is the agent or its Envoy. By names the program, if it is known.
	Held, Own bool
	By        string
}

// Name is a name that is resolved.
type Name struct {
	Name string
	// Addresses is how many there are.
	Addresses int
	Err       string
}

// Token is the token for the certificate authority.
type Token struct {
	// Source is the file.
	Source string
	Err    string
	// JWT says that the fields after it are known. Zero times are not in it.
	JWT               bool
	Audiences         []string
	Issued, NotBefore time.Time
	NotAfter          time.Time
}

// Root is a file of root certificates.
type Root struct {
	// Use is whose certificate it verifies, File the path, or empty for those of the operating system.
	Use, File string
	// NotBefore is the start of the last and NotAfter the end of the first of its certificates.
	NotBefore, NotAfter time.Time
	Err                 string
}

// Server is a server of the control plane.
type Server struct {
	// Name is discovery or CA.
	Name, Address string
	Plaintext     bool
	// NotBefore and NotAfter are those of its certificate.
	NotBefore, NotAfter time.Time
	Err                 string
}

// Capture is how the kernel compares with the rules of capture.
type Capture struct {
	// Arguments are those of istio-iptables, empty if nobody has said them; they are watched if the agent keeps them
	// in force.
	Arguments string
	Watched   bool
	Backend   string
	// Differences are those of the kernel from the rules.
	Differences finding.Known[[]string]
}

// check is one check. why is why it matters.
type check struct {
	name, why string
	decide    func(*Facts) finding.Finding
}

// checks are all checks.
var checks = []check{
	{"agent", "the proxy is run, configured and identified by it", agent},
	{"settings", "a setting that is wrong prevents the start; one without effect is a mistake of somebody", settings},
	{"kernel", "hot restarts need shared memory, changes of files are noticed by inotify", kernel},
	{"capabilities", "rules of capture are changed with CAP_NET_ADMIN", capabilities},
	{"open files", "each connection of the workload is two open files of Envoy", openFiles},
	{"ports", "the agent and Envoy cannot listen on a port that another program has", ports},
	{"resources", "a process that reaches its limit of memory is killed", resources},
	{"clock", "certificates and tokens are valid by clock", clock},
	{"names", "the control plane is found by its name", names},
	{"roots", "the control plane's certificate is verified by them", roots},
	{"token", "the first certificate is issued to whoever has it", token},
	{"servers", "configuration and certificates come from them", servers},
	{"certificate", "peers refuse a workload without a valid certificate", certificate},
	{"capture", "connections that are not redirected bypass the proxy", capture},
	{"versions", "an agent of another version was not restarted after an upgrade", versions},
}

// Run makes all checks, in their order.
func Run(f *Facts) []finding.Row {
	rows := make([]finding.Row, 0, len(checks))
	for _, c := range checks {
		rows = append(rows, finding.Row{Name: c.name, Why: c.why, Finding: c.decide(f)})
	}
	return rows
}
