package check

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/finding"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// OldestMinor is the oldest Kubernetes version 1.x that is supported: Istio's CustomResourceDefinitions have rules that
	// older API servers ignore.
	OldestMinor = 25
	// NewestMinor is the newest Kubernetes version 1.x that is supported: newer ones are not tested.
	NewestMinor = 36
	// rootWarning is how long before its end a root is warned about.
	rootWarning = 30 * 24 * time.Hour
	// leafShare is the share of its lifetime after which a certificate should have been renewed: a tenth is left.
	leafShare = 10
)

func server(f *Facts) Finding {
	if m, ok := missing(f.Server); ok {
		m.Result = Failed // nothing else is known without it
		return m
	}
	s := f.Server.Value
	supported := fmt.Sprintf("1.%d to 1.%d", OldestMinor, NewestMinor)
	switch {
	case s.Major < 1 || s.Major == 1 && s.Minor < OldestMinor:
		return failed("upgrade Kubernetes", "%s at %s is older than what is supported, %s", s.Version, s.Address, supported)
	case s.Major > 1 || s.Minor > NewestMinor:
		return warning("", "%s at %s is newer than what is tested, %s", s.Version, s.Address, supported)
	}
	return ok("%s at %s", s.Version, s.Address)
}

// clock is the finding about the clock of somebody.
func clock(c Clock, whose string) Finding {
	switch {
	case c.Err != "":
		return unknown(c.Err)
	case c.Date.IsZero():
		return unknown("the answers of the " + whose + " have no Date")
	}
	return c.Decide()
}

// missing is the finding if a fact is not known.
func missing[T any](k Known[T]) (Finding, bool) {
	why, ok := k.Why()
	return unknown(why), ok
}

func namespace(f *Facts) Finding {
	if m, ok := missing(f.Phase); ok {
		return m
	}
	switch f.Phase.Value {
	case "":
		return ok("%s does not exist yet: helm install --create-namespace makes it", f.Namespace)
	case "Active":
		return ok("%s exists", f.Namespace)
	}
	return failed("wait until it is deleted", "%s is %s", f.Namespace, f.Phase.Value)
}

// denied are the rules that are not allowed of those that count.
func denied(all []Permission, counts func(Rule) bool) (out []string) {
	for _, p := range all {
		if !p.Allowed && counts(p.Rule) {
			out = append(out, p.Rule.String())
		}
	}
	return out
}

func permissions(f *Facts) Finding {
	if m, ok := missing(f.Permissions); ok {
		return m
	}
	all := f.Permissions.Value
	mayGrant := escalate(f.Namespace)
	grants := len(denied(all, func(r Rule) bool { return slices.Contains(mayGrant, r) })) == 0
	install := InstallRules(f.Namespace)
	lacking := denied(all, func(r Rule) bool {
		switch {
		case slices.Contains(mayGrant, r):
			return false // needed only for what the user may not do himself, which is listed then
		case r == createNamespace:
			return f.Phase.Value == "" && f.Phase.Err == ""
		}
		return !grants || slices.Contains(install, r)
	})
	if len(lacking) > 0 {
		return failed("install as an administrator, or be granted this", "not allowed: %s", shown(lacking))
	}
	return ok("all %d are granted", len(all))
}

func account(f *Facts) Finding {
	if m, ok := missing(f.Account); ok {
		return m
	}
	if lacking := denied(f.Account.Value, func(Rule) bool { return true }); len(lacking) > 0 {
		return failed("restore the chart's roles: helm upgrade", "its ServiceAccount may not %s", shown(lacking))
	}
	return ok("all %d are granted", len(f.Account.Value))
}

// Needed are the resources of Istio that the control plane reads.
var Needed = slices.Sorted(maps.Keys(readable))

// mayBeAbsent are those that meshes without access logs and extensions of their own do without.
var mayBeAbsent = []string{"telemetries.telemetry.istio.io", "trafficextensions.extensions.istio.io", "wasmplugins.extensions.istio.io"}

// readable are the versions of each of those that it reads, the preferred one first.
var readable = map[string][]string{
	"destinationrules.networking.istio.io":     {"v1", "v1beta1", "v1alpha3"},
	"envoyfilters.networking.istio.io":         {"v1alpha3"},
	"gateways.networking.istio.io":             {"v1", "v1beta1", "v1alpha3"},
	"authorizationpolicies.security.istio.io":  {"v1", "v1beta1"},
	"peerauthentications.security.istio.io":    {"v1", "v1beta1"},
	"proxyconfigs.networking.istio.io":         {"v1beta1"},
	"requestauthentications.security.istio.io": {"v1", "v1beta1"},
	"serviceentries.networking.istio.io":       {"v1", "v1beta1", "v1alpha3"},
	"sidecars.networking.istio.io":             {"v1", "v1beta1", "v1alpha3"},
	"telemetries.telemetry.istio.io":           {"v1", "v1alpha1"},
	"trafficextensions.extensions.istio.io":    {"v1alpha1"},
	"virtualservices.networking.istio.io":      {"v1", "v1beta1", "v1alpha3"},
	"wasmplugins.extensions.istio.io":          {"v1alpha1"},
	"workloadentries.networking.istio.io":      {"v1", "v1beta1", "v1alpha3"},
	"workloadgroups.networking.istio.io":       {"v1", "v1beta1", "v1alpha3"},
}

func resources(f *Facts) Finding {
	if m, ok := missing(f.Resources); ok {
		return m
	}
	var absent, old []string
	optional := 0
	for _, name := range Needed {
		versions := f.Resources.Value[name]
		switch {
		case len(versions) == 0 && slices.Contains(mayBeAbsent, name):
			optional++
		case len(versions) == 0:
			absent = append(absent, name)
		case !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(readable[name], v) }):
			old = append(old, fmt.Sprintf("%s (%s, want one of %s)", name, strings.Join(versions, ", "), strings.Join(readable[name], ", ")))
		}
	}
	installed := len(f.Planes.Value) > 0
	const apply = "apply the chart's CustomResourceDefinitions: kubectl apply --server-side --force-conflicts -f pilothouse/crds"
	switch {
	case len(old) > 0:
		return failed(apply, "without the version that is read: %s", shown(old))
	case len(absent) == len(Needed)-optional && !installed:
		return ok("not there yet: the chart installs them")
	case len(absent) > 0:
		return failed(apply, "not there: %s", shown(absent))
	}
	return ok("all are served in the version that is read")
}

// own are the control plane's Deployments.
func (f *Facts) own() []Plane {
	return slices.DeleteFunc(slices.Clone(f.Planes.Value), func(p Plane) bool {
		return p.Namespace != f.Namespace || p.Revision != f.revision()
	})
}

// serviceName is that of the control plane's Service.
func (f *Facts) serviceName() string {
	switch {
	case f.Service.Value.Name != "":
		return f.Service.Value.Name
	case f.revision() != "default":
		return "istiod-" + f.Revision
	}
	return "istiod"
}

// serves reports whether the requests of a webhook go to this control plane.
func (f *Facts) serves(w Webhook) bool {
	return w.Namespace == f.Namespace && w.Service == f.serviceName()
}

func planes(f *Facts) Finding {
	if m, ok := missing(f.Planes); ok {
		return m
	}
	if m, ok := missing(f.Webhooks); ok {
		return m
	}
	for _, p := range f.own() {
		if !p.Ours {
			return failed("choose another revision: helm install --set revision=NAME", "%s is another product's, and has the names of this one's objects", p)
		}
	}
	for _, w := range f.Webhooks.Value {
		if w.Validating || !strings.HasPrefix(w.Path, "/inject") || f.serves(w) {
			continue
		}
		if w.Revision == f.revision() && w.Tag == "" || w.Tag == f.revision() {
			return failed("choose another revision: helm install --set revision=NAME", "webhook configuration %s injects namespaces of revision %s too, by %s/%s", w.Configuration, f.revision(), w.Namespace, w.Service)
		}
	}
	var others []string
	for _, p := range f.Planes.Value {
		if !slices.Contains(f.own(), p) {
			others = append(others, p.String())
		}
	}
	if len(others) > 0 {
		return ok("%s; they inject other namespaces", shown(others))
	}
	return ok("none")
}

func deployment(f *Facts) Finding {
	if m, ok := missing(f.Planes); ok {
		return m
	}
	own := f.own()
	if len(own) == 0 {
		return failed("install the chart, or name the control plane's namespace and revision with -i and --revision", "there is no Deployment of revision %s with the label app=istiod in namespace %s", f.revision(), f.Namespace)
	}
	p := own[0]
	remedy := fmt.Sprintf("see kubectl -n %s describe deployment %s, and the logs of its Pods", p.Namespace, p.Name)
	text := fmt.Sprintf("%d of %d replicas of %s are ready", p.Ready, p.Desired, p)
	switch {
	case p.Ready == 0:
		return failed(remedy, "%s", text)
	case p.Ready < p.Desired || !p.Observed:
		return warning(remedy, "%s", text)
	}
	return ok("%s", text)
}

func service(f *Facts) Finding {
	if m, ok := missing(f.Service); ok {
		return m
	}
	s := f.Service.Value
	at := f.Namespace + "/" + f.serviceName()
	switch {
	case !s.Exists:
		return failed("install the chart again: helm upgrade", "%s does not exist", at)
	case s.Ready == 0:
		return failed("see whether its selector has the labels of the Pods, and whether they are ready", "%s has no ready endpoint", at)
	}
	var absent []string
	for _, port := range []int{15012, 443} {
		if !slices.Contains(s.Ports, port) {
			absent = append(absent, fmt.Sprint(port))
		}
	}
	if len(absent) > 0 {
		return failed("restore the chart's ports: helm upgrade", "%s lacks the port %s", at, strings.Join(absent, " and "))
	}
	return ok("%s has ready endpoints: %d", at, s.Ready)
}

func replicas(f *Facts) Finding {
	switch {
	case f.Unlisted != "":
		return unknown(f.Unlisted)
	case len(f.Replicas) == 0:
		return failed("see the Deployment", "none runs")
	}
	var all []Finding
	for _, r := range f.Replicas {
		if m, ok := missing(r.Ready); ok {
			all = append(all, failed("see the log of the control plane", "%s: %s", r.Name, m.Found))
		}
	}
	if len(all) > 0 {
		return finding.Worst(all)
	}
	return ok("ready: %d", len(f.Replicas))
}

// none is the finding about replicas if there are none.
func (f *Facts) none() Finding {
	if f.Unlisted != "" {
		return unknown(f.Unlisted)
	}
	return unknown("no replica runs")
}

// ofReplicas is the worst finding about any replica.
func (f *Facts) ofReplicas(decide func(Replica) Finding) Finding {
	if len(f.Replicas) == 0 {
		return f.none()
	}
	var all []Finding
	for _, r := range f.Replicas {
		finding := decide(r)
		if finding.Result != OK && r.Name != "" {
			finding.Found = r.Name + ": " + finding.Found
		}
		all = append(all, finding)
	}
	return finding.Worst(all)
}

func discoveryClock(f *Facts) Finding {
	return f.ofReplicas(func(r Replica) Finding { return clock(r.Clock, "control plane") })
}

func versions(f *Facts) Finding {
	control, istio, envoy := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, r := range f.Replicas {
		if m, ok := missing(r.Version); ok {
			m.Found = r.Name + ": " + m.Found
			return m
		}
		control[r.Version.Value] = true
		for _, p := range r.Proxies.Value {
			istio[p.Version], envoy[p.Envoy] = true, true
		}
	}
	list := func(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), ", ") }
	text := fmt.Sprintf("control plane %s, pilotctl %s", list(control), f.Version)
	if len(istio) > 0 {
		text += fmt.Sprintf("; agents as of Istio %s, Envoy %s", list(istio), list(envoy))
	}
	switch {
	case len(f.Replicas) == 0:
		return f.none()
	case len(control) > 1:
		return warning("wait until the rollout of the control plane is over", "%s", text)
	case !control[f.Version]:
		return warning("use the pilotctl of the control plane's release", "%s", text)
	case len(istio) > 1 || len(envoy) > 1:
		return warning("restart the workloads whose proxies are of another version", "%s", text)
	}
	return ok("%s", text)
}

func roots(f *Facts) Finding {
	return f.ofReplicas(func(r Replica) Finding {
		if m, ok := missing(r.CA); ok {
			return m
		}
		const remedy = "pilotctl ca rotate, or replace the files of a CA that is plugged in; pilotctl ca status says more"
		text := ""
		for _, root := range r.CA.Value.Roots {
			if root.Role != "signs" {
				continue
			}
			text = "ends at " + root.NotAfter.UTC().Format(time.RFC3339) + fingerprint(root.SHA256)
			switch left := root.NotAfter.Sub(f.Now); {
			case left <= 0:
				return failed(remedy, "has ended at %s", root.NotAfter.UTC().Format(time.RFC3339))
			case left < rootWarning:
				return warning(remedy, "%s", text)
			}
		}
		switch {
		case text == "":
			return failed(remedy, "no root signs")
		case r.CA.Value.Problem != "":
			return warning("pilotctl ca status says more", "%s; %s", text, r.CA.Value.Problem)
		}
		return ok("%s", text)
	})
}

func rootConfigMaps(f *Facts) Finding {
	if m, ok := missing(f.Roots); ok {
		return m
	}
	var want []string
	for _, r := range f.Replicas {
		for _, root := range r.CA.Value.Roots {
			if !slices.Contains(want, root.SHA256) {
				want = append(want, root.SHA256)
			}
		}
	}
	if len(want) == 0 {
		return unknown("no replica has said which roots are trusted")
	}
	slices.Sort(want)
	var bad []string
	for _, ns := range slices.Sorted(maps.Keys(f.Roots.Value)) {
		text := f.Roots.Value[ns]
		certs, err := pki.ParseBundle([]byte(text))
		var have []string
		for _, c := range certs {
			have = append(have, pki.Fingerprint(c))
		}
		slices.Sort(have)
		switch {
		case text == "":
			bad = append(bad, ns+" (none)")
		case err != nil:
			bad = append(bad, ns+" (no certificates)")
		case !slices.Equal(slices.Compact(have), want):
			bad = append(bad, ns+" (other roots)")
		}
	}
	if len(bad) > 0 {
		return failed("the leader of the control plane writes them: its log says why it has not; another control plane may write them too", "differs from the mesh's roots in %s", shown(bad))
	}
	return ok("as the mesh's roots in namespaces: %d", len(f.Roots.Value))
}

// certificate is the finding about a certificate that a server shows. Without roots only its end is looked at.
func certificate(chain, trusted []*x509.Certificate, name string, now time.Time) Finding {
	const remedy = "the control plane renews it: its log says why it has not"
	if len(chain) == 0 {
		return failed(remedy, "there is none")
	}
	leaf := chain[0]
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case now.After(leaf.NotAfter):
		return failed(remedy, "has ended at %s", end)
	case now.Before(leaf.NotBefore):
		return failed("set the clocks by NTP", "is valid only from %s on", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	if len(trusted) > 0 {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: pki.Pool(trusted), Intermediates: pki.Pool(chain[1:]), DNSName: name, CurrentTime: now})
		if err != nil {
			return failed("see which CA has signed it", "is not that of %s by the roots: %v", name, err)
		}
	}
	if leaf.NotAfter.Sub(now) < leaf.NotAfter.Sub(leaf.NotBefore)/leafShare {
		return warning(remedy, "ends at %s, and is not renewed yet", end)
	}
	return ok("ends at %s", end)
}

func servingCertificate(f *Facts) Finding {
	return f.ofReplicas(func(r Replica) Finding {
		if m, ok := missing(r.Serving); ok {
			return m
		}
		trusted, _ := pki.ParseBundle([]byte(f.Roots.Value[f.Namespace])) // what is wrong with it is another check's
		return certificate(r.Serving.Value, trusted, f.serviceName()+"."+f.Namespace+".svc", f.Now)
	})
}

func webhookCertificate(f *Facts) Finding {
	return f.ofReplicas(func(r Replica) Finding {
		if m, ok := missing(r.Webhooks); ok {
			return m
		}
		return certificate(r.Webhooks.Value, nil, "", f.Now)
	})
}

func bundles(f *Facts) Finding {
	if m, ok := missing(f.Webhooks); ok {
		return m
	}
	var all []Finding
	injects := false
	for _, w := range f.Webhooks.Value {
		if !f.serves(w) {
			continue
		}
		injects = injects || strings.HasPrefix(w.Path, "/inject")
		all = append(all, f.bundle(w))
	}
	if !injects {
		return failed("install the chart again: helm upgrade", "no webhook injects Pods of revision %s", f.revision())
	}
	out := finding.Worst(all)
	if out.Result == OK {
		out.Found = fmt.Sprintf("%d webhooks have a root of the certificate, and the failure policy Fail", len(all))
	}
	return out
}

// bundle is the finding about one webhook of the control plane.
func (f *Facts) bundle(w Webhook) Finding {
	at := w.Configuration + "/" + w.Name
	const remedy = "the leader of the control plane writes caBundle: its log says why it has not"
	trusted, err := pki.ParseBundle(w.Bundle)
	if len(w.Bundle) == 0 || err != nil {
		return failed(remedy, "%s: caBundle has no certificate", at)
	}
	for _, r := range f.Replicas {
		if !r.Webhooks.Asked || r.Webhooks.Err != "" || len(r.Webhooks.Value) == 0 {
			continue // another check's
		}
		chain := r.Webhooks.Value
		// The end is another check's.
		_, err := chain[0].Verify(x509.VerifyOptions{
			Roots: pki.Pool(trusted), Intermediates: pki.Pool(chain[1:]), DNSName: w.Service + "." + w.Namespace + ".svc", CurrentTime: chain[0].NotBefore.Add(time.Second),
		})
		if err != nil {
			return failed(remedy, "%s: caBundle does not verify the certificate of %s: %v", at, r.Name, err)
		}
	}
	switch {
	case w.Fails:
		return ok("%s", at)
	case w.Validating:
		return warning("the control plane changes it to Fail when the webhook is known to work, unless validation is to fail open", "%s: the failure policy is Ignore: objects are admitted unchecked while no replica answers", at)
	}
	return warning("restore the chart's Fail", "%s: the failure policy is Ignore: Pods start without their proxy while no replica answers", at)
}

// notCalled is in what the API server says if it cannot reach a webhook.
const notCalled = "failed calling webhook"

func injection(f *Facts) Finding {
	if m, ok := missing(f.Injection); ok {
		return m
	}
	i := f.Injection.Value
	switch {
	case strings.Contains(i.Refused, notCalled):
		return failed("see the Service, the certificate and the network between API server and control plane", "the webhook cannot be called for a Pod in namespace %s: %s", i.Namespace, i.Refused)
	case i.Refused != "" && strings.Contains(i.Refused, "cannot create resource"):
		return unknown(i.Refused)
	case i.Refused != "":
		return failed("see docs/injection.md", "a Pod with a proxy is refused in namespace %s: %s", i.Namespace, i.Refused)
	case !i.Injected:
		return failed("see the webhook configurations, and the log of the control plane", "a Pod in namespace %s that asks for a proxy would be created without one", i.Namespace)
	}
	return ok("a Pod in namespace %s gets its proxy", i.Namespace)
}

func validation(f *Facts) Finding {
	if m, ok := missing(f.Validation); ok {
		return m
	}
	validates := slices.ContainsFunc(f.Webhooks.Value, func(w Webhook) bool { return w.Validating && f.serves(w) })
	said := f.Validation.Value.Refused
	switch {
	case strings.Contains(said, "denied the request"):
		return ok("an invalid object is refused")
	case strings.Contains(said, notCalled):
		return failed("see the Service, the certificate and the network between API server and control plane", "the webhook cannot be called: %s", said)
	case said != "":
		return unknown(said)
	case !validates && f.Webhooks.Err == "":
		return warning("set global.configValidation to have it", "no webhook validates: invalid objects are found only after they are written")
	}
	return failed("see the Service, the certificate and the network between API server and control plane", "an invalid object would be admitted: the webhook is not called")
}

func proxies(f *Facts) Finding {
	connected := 0
	var refused, behind []string
	for _, r := range f.Replicas {
		if m, ok := missing(r.Proxies); ok {
			m.Found = r.Name + ": " + m.Found
			return m
		}
		for _, p := range r.Proxies.Value {
			connected++
			switch {
			case len(p.Quarantined) > 0 || p.Behind != nil && p.Behind.Refused:
				name := p.Proxy
				if len(p.Quarantined) > 0 {
					name += " (" + shown(p.Quarantined) + ")"
				}
				refused = append(refused, name)
			case p.Behind != nil:
				behind = append(behind, p.Proxy)
			}
		}
	}
	switch {
	case len(f.Replicas) == 0:
		return f.none()
	case len(refused) > 0:
		return failed("pilotctl proxies has their errors, pilotctl objects the objects", "%d of %d have refused configuration: %s", len(refused), connected, shown(refused))
	case len(behind) > 0:
		return warning("pilotctl proxies --behind says what they lack", "%d of %d have not applied everything: %s", len(behind), connected, shown(behind))
	case connected == 0:
		return ok("none is connected")
	}
	return ok("%d are connected, and have applied everything", connected)
}
