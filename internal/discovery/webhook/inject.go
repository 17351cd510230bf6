package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// Injector decides about Pods and adds proxies to them. It is safe for concurrent use, and must not wait
// for anything that takes long: Pods wait for it.
type Injector interface {
	// Inject decides about one Pod that is about to be created. The error says why neither is possible;
	// then the Pod is not created.
	Inject(PodRequest) (Injection, error)
}

// PodRequest is a Pod that is about to be created.
type PodRequest struct {
	// Pod must not be modified.
	Pod       *corev1.Pod
	Namespace string
	// Path is that of the request, such as /inject/cluster/east/net/n1.
	Path string
}

// Injection is what was decided about a Pod.
type Injection struct {
	// Skipped says in one word why the Pod gets no proxy, and is empty if it gets one. Message is the
	// same in a sentence.
	Skipped, Message string
	// Patch is the JSON patch (RFC 6902) to the Pod; empty if it gets no proxy.
	Patch []byte
	// Warnings are for the one who creates the Pod.
	Warnings []string
}

// Recorder is told about Pods that get no proxy. It is safe for concurrent use and must not wait.
type Recorder interface {
	// Skipped is called for a Pod that gets no proxy. The Pod has no name yet if a controller creates it.
	Skipped(pod *corev1.Pod, namespace, reason, message string)
	// Failed is called for a Pod that cannot be created.
	Failed(pod *corev1.Pod, namespace string, err error)
}

// inject answers /inject. [control-plane 1.15.1]
func (s *Server) inject(r *http.Request, q *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	start := time.Now()
	m := &s.metrics
	m.injections.Inc()
	defer func() { m.injectionTime.Observe(time.Since(start).Seconds()) }()
	if q.Operation != admissionv1.Create || q.SubResource != "" || q.Resource != (metav1.GroupVersionResource{Version: "v1", Resource: "pods"}) {
		m.skipped.WithLabelValues("NotAPod").Inc()
		return &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true, AuditAnnotations: map[string]string{"reason": "only the creation of Pods is of interest"}}, nil
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(q.Object.Raw, pod); err != nil {
		return nil, fmt.Errorf("parse request.object as a Pod: %s", printable.Quote(err.Error(), 256))
	}
	in, err := s.opts.Injector.Inject(PodRequest{Pod: pod, Namespace: q.Namespace, Path: r.URL.Path})
	log := s.opts.Log.With("namespace", q.Namespace, "pod", podName(pod))
	out := &admissionv1.AdmissionResponse{UID: q.UID, Allowed: err == nil, Warnings: in.Warnings}
	recorded := s.opts.Recorder != nil && (q.DryRun == nil || !*q.DryRun)
	switch {
	case err != nil:
		m.injectionFailures.Inc()
		log.Warn("Pod refused: the proxy cannot be injected", "error", err)
		out.Result = &metav1.Status{Status: metav1.StatusFailure, Message: printable.Clip(err.Error(), 4096), Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity}
		if recorded {
			s.opts.Recorder.Failed(pod, q.Namespace, err)
		}
	case in.Skipped != "":
		m.skipped.WithLabelValues(in.Skipped).Inc()
		log.Info("Pod left without a proxy", "reason", in.Skipped, "message", in.Message)
		out.AuditAnnotations = map[string]string{"reason": in.Skipped}
		if recorded {
			s.opts.Recorder.Skipped(pod, q.Namespace, in.Skipped, in.Message)
		}
	default:
		m.injected.Inc()
		log.Debug("proxy injected")
		kind := admissionv1.PatchTypeJSONPatch
		out.Patch, out.PatchType = in.Patch, &kind
	}
	return out, nil
}

// podName is the name of a Pod, or what its name will begin with.
func podName(p *corev1.Pod) string {
	if p.Name != "" {
		return p.Name
	}
	return p.GenerateName
}
