package status

import (
	"fmt"
	"time"
)

// Facts are what readiness is decided from, all of one moment.
type Facts struct {
	Envoy       Envoy       `json:"envoy"`
	Admin       Admin       `json:"admin"`
	Certificate Certificate `json:"certificate"`
	Upstream    Upstream    `json:"upstream"`
	// Files are the problems with files of keys and certificates that clusters name, a sentence each.
	// They are told and decide nothing: one wrong cluster must not take the whole workload out.
	Files []string `json:"files,omitempty"`
}

// Envoy is what its supervisor knows.
type Envoy struct {
	Running bool `json:"running"`
	// Live says that it has been found live since it was started.
	Live bool `json:"live"`
	// Draining says that it has been told to drain; Ending that the agent ends, too.
	Draining bool `json:"draining"`
	Ending   bool `json:"ending"`
	// Restarts counts those after crashes; Left is how many may follow.
	Restarts int `json:"restarts"`
	Left     int `json:"left"`
	// LastExit says in words how the last one ended ("exited with code 1"); "" if none has.
	LastExit string `json:"last_exit,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Epoch    int    `json:"epoch"`
	// Handover says that a live Envoy runs whose admin interface is, or may be, with another one
	// that is not live: what that says is not about the one that serves.
	Handover bool `json:"handover,omitempty"`
}

// Admin is what Envoy says of itself. The zero value says that it is not live.
type Admin struct {
	// Problem is why it could not be asked; "" if it could.
	Problem string `json:"problem,omitempty"`
	// CDS and LDS count the updates of clusters and listeners.
	CDS Updates `json:"cds"`
	LDS Updates `json:"lds"`
	// Live is server.state 0; Workers says that its threads take connections.
	Live    bool `json:"live"`
	Workers bool `json:"workers"`
	// Known says that the counters do not matter: it was live before, or took over from one that was, whose counters it has.
	Known bool `json:"known,omitempty"`
}

// Updates counts updates of one type that Envoy took and refused.
type Updates struct {
	Success  uint64 `json:"success"`
	Rejected uint64 `json:"rejected"`
}

// Certificate is the workload's own.
type Certificate struct {
	// Wanted says that the agent provides one.
	Wanted  bool `json:"wanted"`
	Present bool `json:"present"`
	// NotAfter is when the present one ends.
	NotAfter time.Time `json:"not_after,omitzero"`
	// Problem is why there is none, or no newer one.
	Problem string `json:"problem,omitempty"`
}

// Upstream is the connection to discovery.
type Upstream struct {
	// Wanted says that Envoy gets its configuration from there.
	Wanted    bool   `json:"wanted"`
	Connected bool   `json:"connected"`
	Problem   string `json:"problem,omitempty"`
}

// Verdict is the answer to a readiness probe. Reason is a short sentence without a full stop; it is empty when ready.
type Verdict struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// Ready decides whether the proxy takes traffic at the time now. Nothing is remembered: an Envoy
// that was restarted is not ready before it has its configuration again. What is lost after
// that (the connection to discovery, or a renewal that is late) leaves it
// ready, because it serves on with what it has; an ended certificate does not, because
// peers refuse it. An announced drain leaves it ready, the agent's own end does not [agent H2, H5].
func Ready(f Facts, now time.Time) Verdict {
	for _, reason := range []string{
		process(f.Envoy), f.Certificate.reason(now), initialising(f), configuration(f), workers(f.Admin),
	} {
		if reason != "" {
			return Verdict{Reason: reason}
		}
	}
	return Verdict{Ready: true}
}

func process(e Envoy) string {
	switch {
	case e.Ending:
		return "the proxy is draining and about to end"
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
		return "there is no workload certificate yet" + because(c.Problem)
	case !now.Before(c.NotAfter):
		return "the workload certificate ended at " + c.NotAfter.UTC().Format(time.RFC3339) + because(c.Problem)
	}
	return ""
}

// initialising names what a starting Envoy waits for.
func initialising(f Facts) string {
	switch {
	case f.Admin.Live:
		return ""
	case f.Envoy.Live && f.Admin.Problem != "":
		return "Envoy does not answer: " + f.Admin.Problem
	case f.Upstream.Wanted && !f.Upstream.Connected:
		return "Envoy waits for its configuration: discovery is not connected" + because(f.Upstream.Problem)
	}
	if reason := configuration(f); reason != "" && f.Admin.Problem == "" {
		return "Envoy is initialising: " + reason
	}
	return "Envoy is initialising"
}

// configuration says what of the configuration is missing or was refused.
func configuration(f Facts) string {
	if !f.Upstream.Wanted || f.Admin.Known {
		return "" // it is all in the bootstrap, or was there before
	}
	cds, lds := f.Admin.CDS, f.Admin.LDS
	switch {
	case cds.Success > 0 && lds.Success > 0:
		return ""
	case cds.Rejected > 0 && cds.Success == 0:
		return fmt.Sprintf("Envoy refused the clusters that discovery sent (%d times)", cds.Rejected)
	case lds.Rejected > 0 && lds.Success == 0:
		return fmt.Sprintf("Envoy refused the listeners that discovery sent (%d times)", lds.Rejected)
	case cds.Success > 0:
		return "Envoy has clusters from discovery, but no listeners yet"
	case lds.Success > 0:
		return "Envoy has listeners from discovery, but no clusters yet"
	case !f.Upstream.Connected:
		return "no configuration has come from discovery, which is not connected" + because(f.Upstream.Problem)
	}
	return "no configuration has come from discovery yet"
}

func workers(a Admin) string {
	if !a.Workers {
		return "Envoy has not started its workers yet"
	}
	return ""
}

// because appends a problem, if there is one.
func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}
