package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/finding"
)

const (
	// audience is what tokens for the mesh's certificate authority are made for. [agent S6]
	audience = "istio-ca"
	// fewFiles is a limit of open files that a busy proxy reaches.
	fewFiles = 4096
	// littleMemory is a limit of memory, in bytes, that Envoy with a small configuration stays below.
	littleMemory = 96 << 20
	// rootWarning is how long before its end a root is warned about.
	rootWarning = 30 * 24 * time.Hour
	// soon is how long before its end a certificate should have been renewed.
	soon = 10 * time.Minute
	// netAdmin is the bit of CAP_NET_ADMIN.
	netAdmin = 12
)

func agent(f *Facts) finding.Finding {
	a := f.Agent
	switch {
	case !f.Running:
		return finding.Warn("start it, if it should run: pilot-agent proxy", "none runs on this machine")
	case !a.Ready:
		return finding.Fail("see the checks below", "pid %d, not ready: %s", a.PID, a.Reason)
	case !a.Connected:
		return finding.Fail("see the check of servers", "pid %d serves, and is not connected to discovery: %s", a.PID, a.Upstream)
	}
	return finding.Pass("pid %d, ready", a.PID)
}

func settings(f *Facts) finding.Finding {
	if why, ok := f.Settings.Why(); ok {
		return finding.Fail("correct it", "%s", why)
	}
	s := f.Settings.Value
	if s.Unread != "" {
		return finding.Warn("run this command as root or as the agent's user: what the checks below say of files, servers and versions may not be so for the agent",
			"%s, since those of the agent cannot be read: %s", s.From, s.Unread)
	}
	if n := len(s.Warnings); n > 0 {
		text := fmt.Sprintf("%s: %s", s.From, s.Warnings[0])
		if n > 1 {
			text += fmt.Sprintf(" (and %d more, which the log has)", n-1)
		}
		return finding.Warn("remove or correct it", "%s", text)
	}
	return finding.Pass("%s", s.From)
}

func kernel(f *Facts) finding.Finding {
	if len(f.Kernel.Problems) > 0 {
		return finding.Fail("", "%s: %s", f.Kernel.Release, strings.Join(f.Kernel.Problems, "; "))
	}
	return finding.Pass("%s", f.Kernel.Release)
}

func capabilities(f *Facts) finding.Finding {
	has := f.Capabilities&(1<<netAdmin) != 0
	switch {
	case has:
		return finding.Pass("CAP_NET_ADMIN, user %d", f.UID)
	case f.Capture.Watched:
		return finding.Fail("add the capability NET_ADMIN to the container, or remove --watchCapture", "no CAP_NET_ADMIN, which --watchCapture needs, user %d", f.UID)
	}
	return finding.Pass("none are needed, user %d", f.UID)
}

func openFiles(f *Facts) finding.Finding {
	if f.OpenFiles < fewFiles {
		return finding.Warn("raise it (ulimit -n, LimitNOFILE= of systemd)", "at most %d", f.OpenFiles)
	}
	return finding.Pass("at most %d", f.OpenFiles)
}

func ports(f *Facts) finding.Finding {
	if why, ok := f.Ports.Why(); ok {
		return finding.NotKnown("", why)
	}
	var all []finding.Finding
	var held []string
	for _, p := range f.Ports.Value {
		by := p.By
		if by == "" {
			by = "a program that this user may not see"
		}
		switch {
		case !p.Held:
		case p.Own, f.Running && p.By == "":
			held = append(held, fmt.Sprint(p.Number))
		default:
			all = append(all, finding.Fail("stop it, or have it listen on another port", "port %d (%s) belongs to %s", p.Number, p.Use, by))
		}
	}
	switch {
	case len(all) > 0:
		return finding.Worst(all)
	case len(held) > 0:
		return finding.Pass("held by the agent: %s", strings.Join(held, ", "))
	}
	return finding.Pass("%d are free", len(f.Ports.Value))
}

func resources(f *Facts) finding.Finding {
	var text []string
	if f.Memory > 0 {
		text = append(text, fmt.Sprintf("memory %d MiB", f.Memory>>20))
	}
	if f.CPUs > 0 {
		text = append(text, fmt.Sprintf("%d CPUs", f.CPUs))
	}
	if len(text) == 0 {
		text = []string{"no limits"}
	}
	all := strings.Join(text, ", ")
	switch {
	case f.Killed > 0:
		return finding.Warn("raise the limit of memory", "%s; processes killed because memory ran out: %d", all, f.Killed)
	case f.Memory > 0 && f.Memory < littleMemory:
		return finding.Warn(fmt.Sprintf("allow %d MiB", littleMemory>>20), "%s: too little for most configurations", all)
	}
	return finding.Pass("%s", all)
}

// clock compares with discovery's if that is known, and else with moments that have passed.
func clock(f *Facts) finding.Finding {
	type moment struct {
		what string
		at   time.Time
	}
	var past []moment
	if f.Token != nil {
		past = append(past, moment{"the token was issued", f.Token.Issued}, moment{"the token became valid", f.Token.NotBefore})
	}
	for _, s := range f.Servers {
		past = append(past, moment{"the certificate of the " + s.Name + " became valid", s.NotBefore})
	}
	for _, m := range past {
		if m.at.After(f.Now) {
			return finding.Fail("set the clock by NTP", "it is behind by at least %s: %s at %s", m.at.Sub(f.Now).Round(time.Second), m.what, stamp(m.at))
		}
	}
	if f.Clock.Err == "" && !f.Clock.Date.IsZero() {
		c := f.Clock.Decide()
		c.Found = "discovery's: " + c.Found
		return c
	}
	why := f.Clock.Err
	if why == "" {
		why = "its answer has no Date"
	}
	return finding.Warn("allow connections to port 15014 of discovery, to compare exactly", "not earlier than what it was given; not compared with discovery's: %s", why)
}

func names(f *Facts) finding.Finding {
	var all []finding.Finding
	var found []string
	for _, n := range f.Names {
		switch {
		case n.Err != "":
			all = append(all, finding.Fail("correct the name, or the name servers of /etc/resolv.conf", "%s: %s", n.Name, n.Err))
		default:
			found = append(found, fmt.Sprintf("%s (%d)", n.Name, n.Addresses))
		}
	}
	switch {
	case len(all) > 0:
		return finding.Worst(all)
	case len(found) == 0:
		return finding.Pass("none are used: the control plane is configured by address")
	}
	return finding.Pass("%s", strings.Join(found, ", "))
}

func roots(f *Facts) finding.Finding {
	var all []finding.Finding
	for _, r := range f.Roots {
		switch {
		case r.Err != "":
			all = append(all, finding.Fail("the file comes from the ConfigMap istio-ca-root-cert, or from whoever installed the machine", "%s: %s", r.Use, r.Err))
		case r.File == "":
			all = append(all, finding.Pass("%s: those of the operating system", r.Use))
		case !f.Now.Before(r.NotAfter):
			all = append(all, finding.Fail("replace the file", "%s: %s ended at %s", r.Use, r.File, stamp(r.NotAfter)))
		case r.NotAfter.Sub(f.Now) < rootWarning:
			all = append(all, finding.Warn("rotate the root: pilotctl ca rotate", "%s: %s ends at %s", r.Use, r.File, stamp(r.NotAfter)))
		default:
			all = append(all, finding.Pass("%s: %s, until %s", r.Use, r.File, stamp(r.NotAfter)))
		}
	}
	if len(all) == 0 {
		return finding.Pass("none are needed")
	}
	w := finding.Worst(all)
	return w
}

func token(f *Facts) finding.Finding {
	const remedy = "a projected token for the audience " + audience + " in Kubernetes; pilotctl token create elsewhere"
	t := f.Token
	switch {
	case t == nil:
		return finding.Pass("none is used")
	case t.Err != "" && f.Running && f.Now.Before(f.Agent.Certificate):
		return finding.Warn(remedy, "%s; the certificate that is held authenticates until %s", t.Err, stamp(f.Agent.Certificate))
	case t.Err != "":
		return finding.Fail(remedy, "%s", t.Err)
	case !t.JWT:
		return finding.Fail(remedy, "%s: not a JWT", t.Source)
	case !t.NotAfter.IsZero() && !f.Now.Before(t.NotAfter):
		return finding.Fail(remedy, "%s ended at %s", t.Source, stamp(t.NotAfter))
	case len(t.Audiences) > 0 && !slices.Contains(t.Audiences, audience):
		return finding.Fail(remedy, "%s is for %s: want the audience %s", t.Source, strings.Join(t.Audiences, ", "), audience)
	case t.NotAfter.IsZero():
		return finding.Warn("use one that ends", "%s never ends", t.Source)
	}
	return finding.Pass("%s, until %s", t.Source, stamp(t.NotAfter))
}

func servers(f *Facts) finding.Finding {
	var all []finding.Finding
	var found []string
	for _, s := range f.Servers {
		switch {
		case s.Err != "":
			all = append(all, finding.Fail("see the checks of names, roots and clock, and firewalls between", "%s %s: %s", s.Name, s.Address, s.Err))
		case s.Plaintext:
			all = append(all, finding.Warn("use port 15012", "%s %s: connected in plaintext: nobody is authenticated", s.Name, s.Address))
		case !s.NotAfter.IsZero() && s.NotAfter.Sub(f.Now) < soon:
			all = append(all, finding.Warn("see the log of the control plane", "%s %s: its certificate ends at %s", s.Name, s.Address, stamp(s.NotAfter)))
		default:
			found = append(found, fmt.Sprintf("%s %s", s.Name, s.Address))
		}
	}
	if len(all) > 0 {
		return finding.Worst(all)
	}
	return finding.Pass("%s: connected, certificate verified", strings.Join(found, ", "))
}

func certificate(f *Facts) finding.Finding {
	const remedy = "see the checks of token and servers; pilot-agent identity says more"
	a := f.Agent
	switch {
	case !f.Running:
		return finding.Pass("none is held, since no agent runs")
	case !a.Wanted:
		return finding.Pass("another server gives it to Envoy")
	case a.Certificate.IsZero():
		return finding.Fail(remedy, "none is held: %s", or(a.Problem, "no request has been answered"))
	case !f.Now.Before(a.Certificate):
		return finding.Fail(remedy, "it ended at %s: %s", stamp(a.Certificate), or(a.Problem, "it was not renewed"))
	case a.Problem != "":
		return finding.Warn(remedy, "until %s, not renewed: %s", stamp(a.Certificate), a.Problem)
	}
	return finding.Pass("until %s", stamp(a.Certificate))
}

func capture(f *Facts) finding.Finding {
	c := f.Capture
	if c.Arguments == "" {
		return finding.Warn("pass the arguments of istio-iptables as --capture, with CAP_NET_ADMIN", "not compared: no agent keeps the rules in force, so it is not known which there should be")
	}
	if why, ok := c.Differences.Why(); ok {
		return finding.NotKnown("run pilot-agent doctor with CAP_NET_ADMIN in the network namespace of the workload", why)
	}
	if d := c.Differences.Value; len(d) > 0 {
		remedy := "pilot-agent istio-iptables " + c.Arguments
		if c.Watched {
			remedy = "find the program that removes them: the agent restores them each time"
		}
		return finding.Fail(remedy, "%s: %s", c.Backend, strings.Join(d, "; "))
	}
	return finding.Pass("%s: all rules are in force", c.Backend)
}

func versions(f *Facts) finding.Finding {
	if why, ok := f.Envoy.Why(); ok {
		return finding.Fail("install Envoy, or name it: --binaryPath of pilot-agent proxy", "%s", why)
	}
	if f.Running && f.Agent.Version != f.Version {
		return finding.Warn("restart the agent", "the agent that runs is %s, this is %s; Envoy %s", f.Agent.Version, f.Version, f.Envoy.Value)
	}
	return finding.Pass("agent %s, Envoy %s", f.Version, f.Envoy.Value)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
