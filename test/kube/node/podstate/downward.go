package podstate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Host is what a Pod sees of its node.
type Host struct {
	// IP is the node's address, PodIPs the Pod's.
	IP     string
	PodIPs []string
	// Allocatable is what a container without limits gets.
	Allocatable corev1.ResourceList
}

// DownwardField is the value of a fieldRef. The error names the path that is not supported.
func DownwardField(pod *corev1.Pod, host Host, path string) (string, error) {
	if field, key, ok := subscript(path); ok {
		switch field {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("fieldPath %q: want metadata.labels['KEY'] or metadata.annotations['KEY']", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return host.IP, nil
	case "status.podIP":
		if len(host.PodIPs) == 0 {
			return "", nil
		}
		return host.PodIPs[0], nil
	case "status.podIPs":
		return strings.Join(host.PodIPs, ","), nil
	}
	return "", fmt.Errorf("fieldPath %q is not one of the downward API", path)
}

// subscript splits metadata.labels['key'].
func subscript(path string) (field, key string, ok bool) {
	field, rest, ok := strings.Cut(path, "['")
	key, closed := strings.CutSuffix(rest, "']")
	return field, key, ok && closed
}

// formatMap is the format of labels and annotations in files: a line key="value" each, in order.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}

// downwardResource is the value of a resourceFieldRef; own is the container that has it, "" for a volume.
func downwardResource(pod *corev1.Pod, host Host, own string, ref *corev1.ResourceFieldSelector) (string, error) {
	name := ref.ContainerName
	if name == "" {
		name = own
	}
	c := containerOf(pod, name)
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef %s: the Pod has no container %q", ref.Resource, name)
	}
	kind, res, _ := strings.Cut(ref.Resource, ".")
	var list corev1.ResourceList
	switch kind {
	case "limits":
		list = c.Resources.Limits
	case "requests":
		list = c.Resources.Requests
	default:
		return "", fmt.Errorf("resourceFieldRef %q: want limits.NAME or requests.NAME", ref.Resource)
	}
	q, ok := list[corev1.ResourceName(res)]
	if !ok && kind == "limits" {
		q = host.Allocatable[corev1.ResourceName(res)]
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	have, by := q.Value(), divisor.Value()
	if res == "cpu" {
		have, by = q.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt((have+by-1)/by, 10), nil
}

// containerOf is the container or init container with a name, or nil.
func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
