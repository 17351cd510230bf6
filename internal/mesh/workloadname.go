package mesh

import (
	"cmp"
	"strings"
)

// WorkloadNameLabel is the label by which people give the workload of a Pod another name.
const WorkloadNameLabel = "service.istio.io/workload-name"

// WorkloadName returns the name that metrics have for the workload of a Pod, by the Pod's name and labels: that of [WorkloadNameLabel], else the name of
// what people made and the Pod belongs to, by the labels that controllers give it: of the Deployment or Rollout, StatefulSet, DaemonSet, Job or
// CronJob. Any other Pod has its own name.
func WorkloadName(pod string, labels map[string]string) string {
	if name := labels[WorkloadNameLabel]; name != "" {
		return name
	}
	for _, l := range []string{"pod-template-hash", "rollouts-pod-template-hash"} {
		if hash := labels[l]; hash != "" {
			if i := strings.LastIndex(pod, "-"+hash+"-"); i > 0 {
				return pod[:i]
			}
		}
	}
	base, last := pod, ""
	if i := strings.LastIndexByte(pod, '-'); i > 0 {
		base, last = pod[:i], pod[i+1:]
	}
	job := cmp.Or(labels["batch.kubernetes.io/job-name"], labels["job-name"])
	switch {
	case labels["statefulset.kubernetes.io/pod-name"] == pod && digits(last):
		return base
	case job != "":
		if i := strings.LastIndexByte(job, '-'); i > 0 && len(job)-i > 8 && len(job)-i < 12 && digits(job[i+1:]) {
			return job[:i] // of a CronJob, with the minute for which it was scheduled
		}
		return job
	case labels["controller-revision-hash"] != "" && len(last) == 5:
		return base
	}
	return pod
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
