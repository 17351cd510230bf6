package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Modes of capture.
const (
	modeRedirect = "REDIRECT"
	modeTProxy   = "TPROXY"
	modeNone     = "NONE"
)

// Data is what templates are executed with. The fields up to ProxyGID are those that Istio's templates have;
// Proxy and Workload are what the built-in templates use. Templates must not modify it.
type Data struct {
	TypeMeta       metav1.TypeMeta   // of the owner
	DeploymentMeta metav1.ObjectMeta // the name and namespace of the owner
	// ObjectMeta and Spec are those of the Pod, without what an earlier injection added.
	ObjectMeta  metav1.ObjectMeta
	Spec        corev1.PodSpec
	ProxyConfig *meshv1.ProxyConfig
	MeshConfig  *meshv1.MeshConfig
	// Values are the values of the ConfigMap over the defaults.
	Values                   map[string]any
	Revision                 string
	NativeSidecars           bool
	ProxyImage               string
	InboundTrafficPolicyMode string
	CompliancePolicy         string
	ProxyUID, ProxyGID       int64

	Proxy    Proxy
	Workload Workload

	cluster, network string
}

// Workload is what the proxy is told about the applications next to it.
type Workload struct {
	// Name, Owner, CanonicalName and CanonicalRevision name the workload.
	Name, Owner, CanonicalName, CanonicalRevision string
	// Applications are the names of the containers that are not the proxy, First the first of them.
	Applications []string
	First        string
	// Ports is the list of ports of the Pod, as JSON.
	Ports string
	// ServiceAccount is its name, default if the Pod names none.
	ServiceAccount string
}

// Proxy is what values, proxy configuration and annotations say together about the proxy.
type Proxy struct {
	Image, InitImage, PullPolicy string
	PullSecrets                  []string
	// CAAddress, CertProvider, MeshID, ClusterDomain and TrustDomain are those of the mesh; Audience is that
	// of the token, TrustBundle the name of the ConfigMap with the roots or empty.
	CAAddress, CertProvider, MeshID, ClusterDomain, TrustDomain, Audience, TrustBundle string
	// Cluster is the name of the cluster if nothing names it; it is empty if it comes later.
	Cluster string
	// Config is what differs from the agent's defaults, as JSON; Env is proxyMetadata, sorted.
	Config string
	Env    []EnvVar
	// LogLevel, ComponentLogLevel and AgentLogLevel are levels of logs; JSONLogs is their form.
	LogLevel, ComponentLogLevel, AgentLogLevel string
	JSONLogs                                   bool
	OutlierLogPath                             string
	STSPort                                    int32
	// Mode is REDIRECT, TPROXY or NONE; CNI says that a plugin captures.
	Mode string
	CNI  bool
	// Multus is the value of the annotation for Multus; empty if it does not start the plugin.
	Multus string
	// CaptureArgs are the arguments of istio-iptables; Capture are its settings as annotations.
	CaptureArgs []string
	Capture     map[string]string
	// Hold makes the applications wait for the proxy.
	Hold bool
	// StatusPort is the agent's port; 0 for none. Ready is the probe of readiness, Startup that of the
	// start, nil if there is none.
	StatusPort     int32
	Ready, Startup *corev1.Probe
	// AgentReady is Ready at the agent's port, where no Envoy runs.
	AgentReady *corev1.Probe
	Resources  corev1.ResourceRequirements
	// Lifecycle is that of values; nil lets the template choose.
	Lifecycle map[string]any
	// Security and InitSecurity are the security contexts of the proxy and of the container that captures.
	Security, InitSecurity *corev1.SecurityContext
	// GatewaySecurity is the security context of the Pod of a gateway.
	GatewaySecurity *corev1.PodSecurityContext
	// LocalProbes makes the agent probe applications at localhost.
	LocalProbes bool
	// Tunnel says that the proxy takes HBONE; SecureMetrics is the port of merged metrics over mutual TLS.
	Tunnel        bool
	SecureMetrics string
	// Bootstrap is the ConfigMap with a bootstrap of the user, if any; Volumes and Mounts are the user's.
	Bootstrap string
	Volumes   []corev1.Volume
	Mounts    []corev1.VolumeMount
	// Certs mounts certificates from a Secret of the service account.
	Certs bool
}

// EnvVar is one variable of a container.
type EnvVar struct{ Name, Value string }

// newData computes what the templates see.
func (in *injection) newData() (*Data, error) {
	c, pod := in.c, in.r.Pod
	config, ignored := effectiveConfig(c.mesh, in.r.ProxyConfigs, pod.Namespace, pod.Labels, in.config)
	in.warnings = append(in.warnings, ignored...)
	user := in.userPod()
	owner := ownerOf(pod)
	if in.r.Owner != nil {
		owner = *in.r.Owner
	}
	native := c.isNative(in.r)
	d := &Data{
		TypeMeta:       metav1.TypeMeta{APIVersion: owner.APIVersion, Kind: owner.Kind},
		DeploymentMeta: metav1.ObjectMeta{Name: owner.Name, Namespace: pod.Namespace},
		ObjectMeta:     user.ObjectMeta, Spec: user.Spec,
		ProxyConfig: config, MeshConfig: c.mesh, Values: c.raw, Revision: c.revision, NativeSidecars: native,
		InboundTrafficPolicyMode: c.mesh.GetInboundTrafficPolicy().GetMode().String(),
		ProxyUID:                 mesh.ProxyUID, ProxyGID: mesh.ProxyUID,
		cluster: firstNonEmpty(in.r.Env[envCluster], c.values.Global.MultiCluster.ClusterName),
		network: firstNonEmpty(pod.Labels[labelNetwork], in.r.Env[envNetwork], c.values.Global.Network),
	}
	var err error
	if d.Workload, err = newWorkload(user, owner); err != nil {
		return nil, err
	}
	if err := in.newProxy(d, user); err != nil {
		return nil, err
	}
	return d, nil
}

// userPod returns the Pod without the containers of an earlier injection, and with what the user wrote of
// them.
func (in *injection) userPod() *corev1.Pod {
	pod := in.r.Pod.DeepCopy()
	pod.TypeMeta = typeMeta(pod.TypeMeta)
	if in.status != nil {
		added := func(c corev1.Container) bool { return in.status.has(c.Name) }
		pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, added)
		pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, added)
		delete(pod.Annotations, annotationStatus)
		target := strconv.Itoa(int(in.c.mesh.GetDefaultConfig().GetStatusPort()))
		for k, v := range pod.Annotations {
			if prometheusField(k) == "port" && v == target {
				delete(pod.Annotations, "prometheus.io/scrape")
				delete(pod.Annotations, "prometheus.io/path")
				delete(pod.Annotations, k)
				break
			}
		}
	}
	restore := func(list *[]corev1.Container, users []corev1.Container) {
		for i := range users {
			if index(pod.Spec.Containers, users[i].Name) < 0 && index(pod.Spec.InitContainers, users[i].Name) < 0 {
				*list = append(*list, *users[i].DeepCopy())
			}
		}
	}
	restore(&pod.Spec.Containers, in.overrides.Containers)
	restore(&pod.Spec.InitContainers, in.overrides.InitContainers)
	return pod
}

func newWorkload(pod *corev1.Pod, owner Owner) (Workload, error) {
	l := pod.Labels
	ports, err := podPorts(pod)
	if err != nil {
		return Workload{}, err
	}
	w := Workload{
		Name:              firstNonEmpty(l[mesh.WorkloadNameLabel], owner.Name),
		Owner:             owner.resource(pod.Namespace),
		CanonicalName:     firstNonEmpty(l["service.istio.io/canonical-name"], l["app.kubernetes.io/name"], l["app"], owner.Name),
		CanonicalRevision: firstNonEmpty(l["service.istio.io/canonical-revision"], l["app.kubernetes.io/version"], l["version"], "latest"),
		Applications:      applications(pod), Ports: ports,
		ServiceAccount: firstNonEmpty(pod.Spec.ServiceAccountName, "default"),
	}
	if len(w.Applications) > 0 {
		w.First = w.Applications[0]
	}
	return w, nil
}

// newProxy fills in d.Proxy.
func (in *injection) newProxy(d *Data, user *corev1.Pod) error {
	v, g, a := in.c.values, &in.c.values.Global, d.ObjectMeta.Annotations
	p := &d.Proxy
	*p = Proxy{
		PullPolicy: g.ImagePullPolicy, PullSecrets: g.ImagePullSecrets,
		CAAddress: g.caAddress(in.c.revision), CertProvider: g.CertProvider, ClusterDomain: g.Proxy.ClusterDomain,
		TrustDomain: d.MeshConfig.GetTrustDomain(), MeshID: firstNonEmpty(g.MeshID, d.ProxyConfig.GetMeshId(), d.MeshConfig.GetTrustDomain()),
		Audience: g.SDS.Token.Audience,
		LogLevel: annotated(a, annotationLog, g.Proxy.LogLevel), ComponentLogLevel: annotated(a, annotationComponentLog, g.Proxy.ComponentLogLevel),
		AgentLogLevel: annotated(a, annotationAgentLog, g.Logging.Level), JSONLogs: g.LogAsJSON,
		OutlierLogPath: g.Proxy.OutlierLogPath, STSPort: g.STS.Port,
		Lifecycle: g.Proxy.Lifecycle, CNI: v.Pilot.CNI.Enabled, Certs: g.MountMTLSCerts,
		Bootstrap:     a[annotationBootstrap],
		LocalProbes:   d.MeshConfig.GetInboundTrafficPolicy().GetMode() == meshv1.MeshConfig_InboundTrafficPolicy_LOCALHOST,
		Tunnel:        d.ProxyConfig.GetProxyMetadata()["ISTIO_META_ENABLE_HBONE"] == "true",
		SecureMetrics: d.ProxyConfig.GetProxyMetadata()["ENVOY_SECURE_MERGED_METRICS_PORT"],
	}
	if d.cluster == "" {
		p.Cluster = "Kubernetes"
	}
	if g.CertProvider == "istiod" || strings.HasPrefix(g.CertProvider, "k8s.io/") {
		p.TrustBundle = firstNonEmpty(g.TrustBundleName, "istio-ca-root-cert")
	}
	p.Hold = g.Proxy.Hold
	if h := d.ProxyConfig.GetHoldApplicationUntilProxyStarts(); h != nil {
		p.Hold = h.GetValue()
	}
	p.Hold = p.Hold && !d.NativeSidecars
	var err error
	if p.Config, err = configJSON(d.ProxyConfig); err != nil {
		return err
	}
	for _, name := range sortedKeys(d.ProxyConfig.GetProxyMetadata()) {
		p.Env = append(p.Env, EnvVar{name, d.ProxyConfig.GetProxyMetadata()[name]})
	}
	in.images(d)
	if err := in.probesOf(d); err != nil {
		return err
	}
	if p.Resources, err = resources(a, g.Proxy.Resources); err != nil {
		return err
	}
	in.capture(d, user)
	in.security(d)
	if p.GatewaySecurity, err = gatewaySecurity(v.Gateways); err != nil {
		return err
	}
	return userVolumes(a, p)
}

// annotated returns the annotation, or what applies without it.
func annotated(annotations map[string]string, name, otherwise string) string {
	if v, ok := annotations[name]; ok {
		return v
	}
	return otherwise
}

// images chooses the images. The type of a proxy configuration is that of the proxy only.
func (in *injection) images(d *Data) {
	g, a := &in.c.values.Global, d.ObjectMeta.Annotations
	kind := a[annotationImageType]
	ofConfig := firstNonEmpty(kind, d.ProxyConfig.GetImage().GetImageType(), g.Variant)
	d.ProxyImage = g.image(g.Proxy.Image, ofConfig)
	d.Proxy.Image = d.ProxyImage
	d.Proxy.InitImage = g.image(firstNonEmpty(g.ProxyInit.Image, g.Proxy.Image), firstNonEmpty(kind, g.Variant))
	if image := a[annotationImage]; image != "" {
		if !strings.ContainsAny(image, "/:@") { // a name, as in values
			image = g.image(image, firstNonEmpty(kind, g.Variant))
		}
		d.Proxy.Image, d.Proxy.InitImage = image, image
	}
}

// probesOf makes the probes of the proxy itself.
func (in *injection) probesOf(d *Data) error {
	g, a, p := &in.c.values.Global, d.ObjectMeta.Annotations, &d.Proxy
	port := g.Proxy.StatusPort
	p.StatusPort = d.ProxyConfig.GetStatusPort()
	if text, ok := a[annotationStatusPort]; ok {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("annotation %s: invalid port %q: want 0–65535", annotationStatusPort, clip(text))
		}
		port, p.StatusPort = int32(n), int32(n)
	} else if p.StatusPort != port && port != 0 && p.StatusPort != 0 {
		in.warn("status port %d of the proxy configuration is not excluded from capture: set values.global.proxy.statusPort, or the annotation %s, to the same port", p.StatusPort, annotationStatusPort)
	}
	if port == 0 {
		return nil
	}
	probe := func(failures, period, delay int32) *corev1.Probe {
		h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz/ready", Port: healthPort}}
		return &corev1.Probe{ProbeHandler: h, InitialDelaySeconds: delay, PeriodSeconds: period, TimeoutSeconds: 3, FailureThreshold: failures}
	}
	number := func(name string, otherwise int32) int32 {
		n, err := strconv.ParseInt(a[name], 10, 32) // checked before
		if err != nil {
			return otherwise
		}
		return int32(n)
	}
	p.Ready = probe(number(annotationFailures, g.Proxy.ReadinessFailures), number(annotationPeriod, g.Proxy.ReadinessPeriod), number(annotationDelay, g.Proxy.ReadinessDelay))
	p.AgentReady = p.Ready.DeepCopy()
	p.AgentReady.HTTPGet.Port = intstr.FromInt32(p.StatusPort)
	if g.Proxy.StartupProbe.Enabled {
		p.Startup = probe(g.Proxy.StartupProbe.Failures, 1, 0)
	}
	return nil
}

// resources returns those of the annotations, if there is one, else those of values.
func resources(annotations map[string]string, ofValues map[string]any) (corev1.ResourceRequirements, error) {
	var r corev1.ResourceRequirements
	given := false
	for _, s := range []struct {
		annotation string
		list       *corev1.ResourceList
		name       corev1.ResourceName
	}{
		{annotationCPU, &r.Requests, corev1.ResourceCPU}, {annotationMemory, &r.Requests, corev1.ResourceMemory},
		{annotationCPULimit, &r.Limits, corev1.ResourceCPU}, {annotationMemoryLimit, &r.Limits, corev1.ResourceMemory},
	} {
		text, ok := annotations[s.annotation]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return r, fmt.Errorf("annotation %s: %w", s.annotation, err)
		}
		if *s.list == nil {
			*s.list = corev1.ResourceList{}
		}
		(*s.list)[s.name], given = q, true
	}
	if given {
		return r, nil
	}
	text, err := json.Marshal(ofValues)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("values: global.proxy.resources: %w", err)
	}
	return r, nil
}

// userVolumes reads the user's volumes and where the proxy mounts them.
func userVolumes(annotations map[string]string, p *Proxy) error {
	err := namedList(annotations[annotationVolume], &p.Volumes, func(v *corev1.Volume, name string) { v.Name = name })
	if err != nil {
		return fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(annotations[annotationVolume]), annotationVolume, err)
	}
	err = namedList(annotations[annotationVolumeMount], &p.Mounts, func(m *corev1.VolumeMount, name string) { m.Name = name })
	if err != nil {
		return fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(annotations[annotationVolumeMount]), annotationVolumeMount, err)
	}
	return nil
}

// namedList reads a JSON list, or an object whose keys are names; the latter in the order of the names.
func namedList[T any](text string, out *[]T, setName func(*T, string)) error {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	if text[0] == '[' {
		return json.Unmarshal([]byte(text), out)
	}
	byName := map[string]T{}
	if err := json.Unmarshal([]byte(text), &byName); err != nil {
		return err
	}
	for _, name := range sortedKeys(byName) {
		v := byName[name]
		setName(&v, name)
		*out = append(*out, v)
	}
	return nil
}
