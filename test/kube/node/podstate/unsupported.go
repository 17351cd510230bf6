package podstate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Unsupported names the fields of a Pod that the node cannot give effect to, or "".
func Unsupported(pod *corev1.Pod) string {
	var bad []string
	add := func(is bool, field string, args ...any) {
		if is {
			bad = append(bad, fmt.Sprintf(field, args...))
		}
	}
	spec := &pod.Spec
	add(spec.HostNetwork, "spec.hostNetwork")
	add(spec.HostPID, "spec.hostPID")
	add(spec.HostIPC, "spec.hostIPC")
	add(spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace, "spec.shareProcessNamespace")
	add(spec.HostUsers != nil && !*spec.HostUsers, "spec.hostUsers: false")
	add(len(spec.EphemeralContainers) > 0, "spec.ephemeralContainers")
	add(spec.DNSPolicy != "" && spec.DNSPolicy != corev1.DNSClusterFirst && spec.DNSPolicy != corev1.DNSNone, "spec.dnsPolicy: %s", spec.DNSPolicy)
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		add(!HasPayload(v) && v.EmptyDir == nil, "spec.volumes[%s]: want emptyDir, configMap, secret, downwardAPI or projected", v.Name)
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			add(c.TTY, "container %s: tty", c.Name)
			add(c.Stdin, "container %s: stdin", c.Name)
			add(len(c.VolumeDevices) > 0, "container %s: volumeDevices", c.Name)
			add(len(c.RestartPolicyRules) > 0, "container %s: restartPolicyRules", c.Name)
			add(c.RestartPolicy != nil && !isSidecar(c), "container %s: restartPolicy", c.Name)
			for _, m := range c.VolumeMounts {
				add(m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone, "container %s: mountPropagation of %s", c.Name, m.MountPath)
			}
		}
	}
	for i := range spec.Containers {
		add(spec.Containers[i].RestartPolicy != nil, "container %s: restartPolicy of its own", spec.Containers[i].Name)
	}
	if len(bad) == 0 {
		return ""
	}
	return "the node of the test does not support " + strings.Join(bad, ", ")
}
