package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Names of the containers that set up capture.
const (
	initContainer       = "istio-init"
	validationContainer = "istio-validation"
)

// order puts the containers in the order in which they must start. istio-proxy is the last container, so
// that kubectl exec chooses the application, or the first if the application waits for it. Capture begins
// after all init containers, whose traffic would not reach a proxy, or before all if the proxy is an init
// container itself. The check of capture is always first, since it fails where capture is missing.
func order(pod *corev1.Pod, hold bool) {
	at := last
	if hold {
		at = first
	}
	pod.Spec.Containers = at(pod.Spec.Containers, proxyContainer)
	list := pod.Spec.InitContainers
	if index(list, proxyContainer) >= 0 {
		list = first(list, proxyContainer)
		list = first(list, validationContainer)
		list = first(list, initContainer)
	} else {
		list = first(list, validationContainer)
		list = last(list, initContainer)
	}
	pod.Spec.InitContainers = list
}

func first(list []corev1.Container, name string) []corev1.Container {
	at := index(list, name)
	if at < 0 {
		return list
	}
	c := list[at]
	return slices.Insert(slices.Delete(list, at, at+1), 0, c)
}

func last(list []corev1.Container, name string) []corev1.Container {
	at := index(list, name)
	if at < 0 {
		return list
	}
	c := list[at]
	return append(slices.Delete(list, at, at+1), c)
}

// alignPod puts the lists of a Pod that templates add to in the order that they have in another. What only the
// Pod has is last.
func alignPod(pod, like *corev1.Pod) {
	align(pod.Spec.Volumes, like.Spec.Volumes, func(v corev1.Volume) string { return v.Name })
	align(pod.Spec.ImagePullSecrets, like.Spec.ImagePullSecrets, func(s corev1.LocalObjectReference) string { return s.Name })
	for _, lists := range [][2][]corev1.Container{{pod.Spec.InitContainers, like.Spec.InitContainers}, {pod.Spec.Containers, like.Spec.Containers}} {
		for i := range lists[0] {
			at := index(lists[1], lists[0][i].Name)
			if at < 0 {
				continue
			}
			c, as := &lists[0][i], &lists[1][at]
			align(c.Env, as.Env, func(e corev1.EnvVar) string { return e.Name })
			align(c.Ports, as.Ports, func(p corev1.ContainerPort) string { return fmt.Sprint(p.ContainerPort, p.Protocol) })
			align(c.VolumeMounts, as.VolumeMounts, func(m corev1.VolumeMount) string { return m.MountPath })
		}
	}
}

// align sorts a list by the position that its elements have in another.
func align[T any](list, like []T, key func(T) string) {
	at := map[string]int{}
	for i, e := range like {
		if _, ok := at[key(e)]; !ok {
			at[key(e)] = i
		}
	}
	position := func(e T) int {
		if i, ok := at[key(e)]; ok {
			return i
		}
		return len(like)
	}
	slices.SortStableFunc(list, func(a, b T) int { return position(a) - position(b) })
}

// Status is the value of the annotation sidecar.istio.io/status: what was added to a Pod. [control-plane 1.15.10]
type Status struct {
	InitContainers   []string `json:"initContainers"`
	Containers       []string `json:"containers"`
	Volumes          []string `json:"volumes"`
	ImagePullSecrets []string `json:"imagePullSecrets"`
	Revision         string   `json:"revision"`
}

// has reports whether a container was added.
func (s *Status) has(container string) bool {
	return s != nil && (slices.Contains(s.Containers, container) || slices.Contains(s.InitContainers, container))
}

func parseStatus(annotations map[string]string) (*Status, error) {
	text, ok := annotations[annotationStatus]
	if !ok || text == "" {
		return nil, nil
	}
	s := &Status{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(text), annotationStatus, err)
	}
	return s, nil
}

// writeStatus records what the templates have added.
func (in *injection) writeStatus() error {
	s := Status{Revision: in.c.revision}
	spec := &in.rendered.Spec
	for i := range spec.InitContainers {
		s.InitContainers = append(s.InitContainers, spec.InitContainers[i].Name)
	}
	for i := range spec.Containers {
		s.Containers = append(s.Containers, spec.Containers[i].Name)
	}
	for i := range spec.Volumes {
		s.Volumes = append(s.Volumes, spec.Volumes[i].Name)
	}
	for i := range spec.ImagePullSecrets {
		s.ImagePullSecrets = append(s.ImagePullSecrets, spec.ImagePullSecrets[i].Name)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	in.pod.Annotations[annotationStatus] = string(text)
	return nil
}

// checkPod warns about what is in the Pod and may not work with a proxy.
func (in *injection) checkPod() {
	spec := &in.r.Pod.Spec
	if p := spec.DNSPolicy; p != "" && p != corev1.DNSClusterFirst && p != corev1.DNSClusterFirstWithHostNet {
		in.warn("dnsPolicy is %s: the proxy may not be able to resolve the address of the control plane", p)
	}
	uid := in.data.ProxyUID
	if u := spec.SecurityContext; u != nil && u.RunAsUser != nil && *u.RunAsUser == uid {
		in.warn("the Pod runs as user %d, which is that of the proxy: traffic of its applications is not captured", uid)
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if u := c.SecurityContext; c.Name != proxyContainer && u != nil && u.RunAsUser != nil && *u.RunAsUser == uid {
			in.warn("container %s runs as user %d, which is that of the proxy: its traffic is not captured", c.Name, uid)
		}
	}
	for _, f := range in.config.unknown {
		in.warn("annotation %s: %s", annotationConfig, clip(strings.TrimSpace(f.Error())))
	}
}
