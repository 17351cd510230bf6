package mesh

import "testing"

func TestWorkloadOfPod(t *testing.T) {
	for _, tt := range []struct {
		pod    string
		labels map[string]string
		want   string
	}{
		{"web-1", nil, "web-1"},
		{"web-v1-5f7c9d-x2x4z", map[string]string{"pod-template-hash": "5f7c9d"}, "web-v1"},
		{"web-v1-5f7c9d-x2x4z", map[string]string{"pod-template-hash": "other"}, "web-v1-5f7c9d-x2x4z"},
		{"web-5f7c9d-x2x4z", map[string]string{"rollouts-pod-template-hash": "5f7c9d"}, "web"},
		{"db-12", map[string]string{"statefulset.kubernetes.io/pod-name": "db-12", "controller-revision-hash": "db-6f7"}, "db"},
		{"db-x", map[string]string{"statefulset.kubernetes.io/pod-name": "db-x"}, "db-x"},
		{"node-agent-x2x4z", map[string]string{"controller-revision-hash": "77"}, "node-agent"},
		{"report-x2x4z", map[string]string{"job-name": "report"}, "report"},
		{"report-29100000-x2x4z", map[string]string{"batch.kubernetes.io/job-name": "report-29100000"}, "report"},
		{"web-v1-5f7c9d-x2x4z", map[string]string{"pod-template-hash": "5f7c9d", WorkloadNameLabel: "shop-web"}, "shop-web"},
		{"x", map[string]string{"controller-revision-hash": "77"}, "x"},
	} {
		if got := WorkloadName(tt.pod, tt.labels); got != tt.want {
			t.Errorf("%s with %v: %q, want %q", tt.pod, tt.labels, got, tt.want)
		}
	}
}
