package status

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Facts are the input of Ready, all of one moment.
type Facts struct {
	Envoy       Envoy       `json:"envoy"`
	Admin       Admin       `json:"admin"`
	Certificate Certificate `json:"certificate"`
	Upstream    Upstream    `json:"upstream"`
	Names       Names       `json:"names"`
	// Proxyless is nil if there is an Envoy.
	Proxyless *Proxyless `json:"proxyless,omitempty"`
	// Files are problems with the key and certificate files of clusters, a sentence each. They are
	// reported without affecting readiness: one wrong cluster must not stop all of the workload's traffic.
	Files []string `json:"files,omitempty"`
}

// Proxyless is what gRPC libraries of the application need, if there is no Envoy.
type Proxyless struct {
	// Problem says what is missing or wrong of the bootstrap file, and the certificate files that it names; "" for nothing.
	Problem string `json:"problem,omitempty"`
}

// Envoy is the state of Envoy in its supervisor.
type Envoy struct {
	Running bool `json:"running"`
	// Live says that it was reported live since it was started.
	Live bool `json:"live"`
	// Draining says that it is draining, Ending that the agent is shutting down.
	Draining bool `json:"draining"`
	Ending   bool `json:"ending"`
	// Restarts counts restarts after crashes; Left is how many more are allowed.
	Restarts int `json:"restarts"`
	Left     int `json:"left"`
	// LastExit describes the last exit ("exited with code 1"); "" if there was none.
	LastExit string `json:"last_exit,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Epoch    int    `json:"epoch"`
	// Handover says that an Envoy serves whose admin interface was, or may have been, taken by another
	// one that is not live, so that Admin is not about the one that serves.
	Handover bool `json:"handover,omitempty"`
}

// Admin is the response of Envoy's admin interface. In the zero value it is not live.
type Admin struct {
	// Problem is why there is no response; "" if there is one.
	Problem string `json:"problem,omitempty"`
	// CDS and LDS count updates of clusters and listeners.
	CDS Updates `json:"cds"`
	LDS Updates `json:"lds"`
	// Live says that server.state is 0; Workers that the worker threads accept connections.
	Live    bool `json:"live"`
	Workers bool `json:"workers"`
	// Known says that CDS and LDS do not matter: it was live before, or took over from an epoch that was.
	Known bool `json:"known,omitempty"`
}

// Updates counts updates of one type that Envoy accepted and rejected.
type Updates struct {
	Success  uint64 `json:"success"`
	Rejected uint64 `json:"rejected"`
}

// Certificate is the workload's certificate.
type Certificate struct {
	// Wanted says that the agent provides the certificate.
	Wanted  bool `json:"wanted"`
	Present bool `json:"present"`
	// NotAfter is when it expires, if it is present.
	NotAfter time.Time `json:"not_after,omitzero"`
	// EndsWithIssuer says that it ends because a certificate that signed it ends.
	EndsWithIssuer bool `json:"ends_with_issuer,omitempty"`
	// RootsNotAfter is when the first of the trusted roots expires, zero if it is not known.
	RootsNotAfter time.Time `json:"roots_not_after,omitzero"`
	// Problem is why it could not be issued or renewed.
	Problem string `json:"problem,omitempty"`
}

// Upstream is the connection to discovery.
type Upstream struct {
	// Wanted says that Envoy gets its configuration from discovery.
	Wanted    bool   `json:"wanted"`
	Connected bool   `json:"connected"`
	Problem   string `json:"problem,omitempty"`
	// RefusedClusters and RefusedListeners are what Envoy said the last time that it refused some.
	RefusedClusters  string `json:"refused_clusters,omitempty"`
	RefusedListeners string `json:"refused_listeners,omitempty"`
	// Copy says that Envoy has its configuration from a copy instead, which discovery confirmed at Confirmed the last time.
	Copy      bool      `json:"copy,omitempty"`
	Confirmed time.Time `json:"confirmed,omitzero"`
}

// note returns what is to be known about the configuration of a proxy that is ready, empty for nothing.
func (u Upstream) note(now time.Time) string {
	if !u.Copy {
		return ""
	}
	return fmt.Sprintf("discovery is not connected, Envoy has the copy of its configuration of %s ago", max(0, now.Sub(u.Confirmed)).Round(time.Second)) + withProblem(u.Problem)
}

// Names are the names of the mesh that the agent resolves.
type Names struct {
	// Wanted says that the application's DNS queries are answered by the agent.
	Wanted  bool `json:"wanted"`
	Present bool `json:"present"`
	// Asked is since when discovery has been connected; zero if it is not.
	Asked time.Time `json:"asked,omitzero"`
}

// namesLimit is how long discovery may take to send the names: one that never sends any must not keep the workload from serving.
const namesLimit = 10 * time.Second

// reason returns that the names are missing, without which the application would be told that hosts of the mesh do not exist. [agent N3, H2]
func (n Names) reason(now time.Time) string {
	if !n.Wanted || n.Present || !n.Asked.IsZero() && now.Sub(n.Asked) > namesLimit {
		return ""
	}
	return "the names of the mesh have not come from discovery yet"
}

// Verdict is the result of a readiness probe. Reason is a line without a full stop; it is empty if Ready.
type Verdict struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// Ready decides whether the proxy can serve traffic at the time now. It has no memory: an Envoy that was
// restarted is not ready before it has its configuration again. After that, a lost connection to
// discovery or a late renewal does not matter, because Envoy keeps its configuration; an expired
// certificate does, because peers refuse it. A requested drain does not matter, the agent's shutdown
// does [agent H2, H5].
//
// Without an Envoy, the files of gRPC libraries are needed in place of its configuration: what they have of that is not known
// here, and they keep it. [agent G5]
func Ready(f Facts, now time.Time) Verdict {
	reasons := []string{
		processReason(f.Envoy), f.Certificate.reason(now), initReason(f), configReason(f), workersReason(f.Admin), f.Names.reason(now),
	}
	if f.Proxyless != nil {
		reasons = []string{endingReason(f.Envoy), f.Certificate.reason(now), f.Proxyless.Problem, f.Names.reason(now)}
	}
	for _, reason := range reasons {
		if reason != "" {
			return Verdict{Reason: reason}
		}
	}
	return Verdict{Ready: true}
}

func endingReason(e Envoy) string {
	if e.Ending {
		return "the proxy is draining and about to end"
	}
	return ""
}

func processReason(e Envoy) string {
	switch {
	case e.Ending:
		return endingReason(e)
	case e.Running:
		return ""
	case e.LastExit != "":
		return fmt.Sprintf("Envoy %s and is about to be restarted (%d restarts so far, %d left)", e.LastExit, e.Restarts, e.Left)
	}
	return "Envoy has not been started yet"
}

func (c Certificate) reason(now time.Time) string {
	switch {
	case !c.Wanted:
		return ""
	case !c.Present:
		return "there is no workload certificate yet" + withProblem(c.Problem)
	case !now.Before(c.NotAfter):
		return "the workload certificate expired at " + c.NotAfter.UTC().Format(time.RFC3339) + withProblem(c.Problem)
	}
	return ""
}

// initReason returns what a starting Envoy waits for.
func initReason(f Facts) string {
	switch {
	case f.Admin.Live:
		return ""
	case f.Envoy.Live && f.Admin.Problem != "":
		return "Envoy does not answer: " + f.Admin.Problem
	case f.Upstream.Wanted && !f.Upstream.Connected && !f.Upstream.Copy:
		return "Envoy waits for its configuration: discovery is not connected" + withProblem(f.Upstream.Problem)
	}
	if reason := configReason(f); reason != "" && f.Admin.Problem == "" {
		return "Envoy is initialising: " + reason
	}
	return "Envoy is initialising"
}

// configReason returns what is missing from Envoy's configuration, or was rejected.
func configReason(f Facts) string {
	if !f.Upstream.Wanted || f.Admin.Known {
		return ""
	}
	cds, lds := f.Admin.CDS, f.Admin.LDS
	switch {
	case cds.Success > 0 && lds.Success > 0:
		return ""
	case cds.Rejected > 0 && cds.Success == 0:
		return fmt.Sprintf("Envoy rejected the clusters that discovery sent (%d times)", cds.Rejected)
	case lds.Rejected > 0 && lds.Success == 0:
		return fmt.Sprintf("Envoy rejected the listeners that discovery sent (%d times)", lds.Rejected)
	case cds.Success > 0:
		return "Envoy has clusters from discovery, but no listeners yet"
	case lds.Success > 0:
		return "Envoy has listeners from discovery, but no clusters yet"
	case !f.Upstream.Connected:
		return "no configuration has come from discovery, which is not connected" + withProblem(f.Upstream.Problem)
	}
	return "no configuration has come from discovery yet"
}

// refusal is Envoy's own text if configReason is that it rejected something, empty if it is not.
func refusal(f Facts) string {
	cds, lds := f.Admin.CDS, f.Admin.LDS
	switch {
	case !f.Upstream.Wanted || f.Admin.Known || cds.Success > 0 && lds.Success > 0:
		return ""
	case cds.Rejected > 0 && cds.Success == 0:
		return f.Upstream.RefusedClusters
	case lds.Rejected > 0 && lds.Success == 0:
		return f.Upstream.RefusedListeners
	}
	return ""
}

func workersReason(a Admin) string {
	if !a.Workers {
		return "Envoy has not started its workers yet"
	}
	return ""
}

// withProblem returns a problem as a suffix, if there is one.
func withProblem(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// word matches a word with a slash: a URL, the path of a file, or a term such as i/o.
var word = regexp.MustCompile(`[a-z]+://[^\s"'()]+|[^\s:"'()~,;]*/[^\s:"'()~,;]*`)

// withoutPaths replaces the paths of files in a text, which tell where secrets are. URLs stay.
func withoutPaths(text string) string {
	return word.ReplaceAllStringFunc(text, func(s string) string {
		scheme, _, isURL := strings.Cut(s, "://")
		switch {
		case isURL && scheme != "unix" && scheme != "file", !strings.ContainsRune(s, '.') && strings.LastIndexByte(s, '/') == strings.IndexByte(s, '/') && s[0] != '/':
			return s
		}
		return "(path)"
	})
}
