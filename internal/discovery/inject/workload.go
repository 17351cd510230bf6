package inject

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// proxyContainer is the name of the container with the proxy, also where users write one.
const proxyContainer = "istio-proxy"

// scheduled is the name of a Job that a CronJob made: its name and the minute for which it was scheduled.
var scheduled = regexp.MustCompile(`^(.+)-\d{8,10}$`)

// ownerOf returns the object that people made and that the Pod belongs to. Pods are created by ReplicaSets
// and Jobs; their Deployment or CronJob is found by the form of their names.
func ownerOf(pod *corev1.Pod) Owner {
	self := Owner{"v1", "Pod", firstNonEmpty(pod.Name, strings.TrimSuffix(pod.GenerateName, "-"))}
	if pod.GenerateName == "" {
		return self
	}
	for _, ref := range pod.OwnerReferences {
		if ref.Controller == nil || !*ref.Controller {
			continue
		}
		o := Owner{ref.APIVersion, ref.Kind, ref.Name}
		hash, rollout := pod.Labels["pod-template-hash"], pod.Labels["rollouts-pod-template-hash"]
		switch {
		case o.Kind == "ReplicaSet" && hash != "" && strings.HasSuffix(o.Name, "-"+hash):
			o.Kind, o.Name = "Deployment", strings.TrimSuffix(o.Name, "-"+hash)
		case o.Kind == "ReplicaSet" && rollout != "" && strings.HasSuffix(o.Name, "-"+rollout):
			o = Owner{"argoproj.io/v1alpha1", "Rollout", strings.TrimSuffix(o.Name, "-"+rollout)}
		case o.Kind == "ReplicationController" && pod.Labels["deploymentconfig"] != "":
			o = Owner{"apps.openshift.io/v1", "DeploymentConfig", pod.Labels["deploymentconfig"]}
		case o.Kind == "Job":
			if m := scheduled.FindStringSubmatch(o.Name); m != nil {
				o = Owner{"batch/v1", "CronJob", m[1]}
			}
		}
		return o
	}
	return self
}

// resource is the owner in the notation of the node metadata OWNER.
func (o Owner) resource(namespace string) string {
	return fmt.Sprintf("kubernetes://apis/%s/namespaces/%s/%ss/%s", o.APIVersion, namespace, strings.ToLower(o.Kind), o.Name)
}

// applications are the names of the containers that are not the proxy, in order.
func applications(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Containers {
		if name := pod.Spec.Containers[i].Name; name != proxyContainer {
			names = append(names, name)
		}
	}
	return names
}

// podPorts is the list of all ports of the containers, one per line. Those of the proxy itself are last,
// wherever its container is, so that the list of an injected Pod is the same.
func podPorts(pod *corev1.Pod) (string, error) {
	var ports []corev1.ContainerPort
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name != proxyContainer {
			ports = append(ports, c.Ports...)
		}
	}
	if proxy := findProxy(pod); proxy != nil {
		ports = append(ports, proxy.Ports...)
	}
	var b strings.Builder
	b.WriteString("[")
	comma := ""
	for _, p := range ports {
		text, err := json.Marshal(p)
		if err != nil {
			return "", fmt.Errorf("encode a port: %w", err)
		}
		b.WriteString("\n    " + comma + string(text))
		comma = ","
	}
	b.WriteString("\n]")
	return b.String(), nil
}
