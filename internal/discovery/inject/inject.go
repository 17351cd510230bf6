// Package inject decides which Pods get a proxy, and adds the proxy to them.
//
// A Config is made once from the injector's ConfigMap and the mesh configuration, and never changes, so
// that any number of goroutines may use it. Decide says whether a Pod gets a proxy, and why. Inject
// renders the Pod's templates, merges the result with what the user wrote, and returns the new Pod with
// the JSON patch to it. Injecting an injected Pod changes nothing.
package inject

import (
	"encoding/json"
	"fmt"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxPodBytes limits a Pod, as JSON, before and after injection. The API server takes no larger requests.
const MaxPodBytes = 3 << 20

// Request is one Pod that is about to be created, and what is known of its cluster.
type Request struct {
	// Pod is not modified. Its namespace is Namespace if it has none.
	Pod       *corev1.Pod
	Namespace string
	// NamespaceLabels are those of the Pod's namespace; nil if they are not known, which leaves the
	// choice by namespace to the webhook's selectors.
	NamespaceLabels map[string]string
	// Owner is the object whose template the Pod is; nil finds it from the Pod's owner references.
	Owner *Owner
	// Kubelets are the versions of the kubelets that may run the Pod, such as v1.33.2: that of its node
	// if it has one, else those of all nodes. None means that no version is known.
	Kubelets []string
	// Env are the variables of the webhook's path, as ParsePath returns them.
	Env map[string]string
	// ProxyConfigs are the ProxyConfig objects of the mesh; nil for none.
	ProxyConfigs *ProxyConfigs
}

// Owner is the object that a Pod belongs to, such as a Deployment.
type Owner struct{ APIVersion, Kind, Name string }

// Result is an injected Pod.
type Result struct {
	Pod *corev1.Pod
	// Patch is the JSON patch (RFC 6902) from the Pod of the request to Pod; "[]" if nothing changes.
	Patch []byte
	// Warnings say what was accepted and has no effect, or may not work. They are one sentence each, for
	// the warnings of an admission response.
	Warnings []string
}

// Inject adds the proxy to the Pod of r, whatever Decide says. The error names the annotation, template or
// field that prevents it.
func (c *Config) Inject(r Request) (*Result, error) {
	before, err := encode(r.Pod)
	if err != nil {
		return nil, err
	}
	namespace := r.Pod.Namespace
	r.Pod = withNamespace(r)
	in, err := c.newInjection(r)
	if err != nil {
		return nil, err
	}
	if err := in.render(); err != nil {
		return nil, err
	}
	if err := in.finish(); err != nil {
		return nil, err
	}
	in.pod.Namespace = namespace
	after, err := encode(in.pod)
	if err != nil {
		return nil, err
	}
	ops, err := jsonpatch.CreatePatch(before, after)
	if err != nil {
		return nil, fmt.Errorf("compute the patch: %w", err)
	}
	patch := []byte("[]")
	if len(ops) > 0 {
		if patch, err = json.Marshal(ops); err != nil {
			return nil, fmt.Errorf("encode the patch: %w", err)
		}
	}
	return &Result{Pod: in.pod, Patch: patch, Warnings: in.warnings}, nil
}

func encode(pod *corev1.Pod) ([]byte, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encode the Pod: %w", err)
	}
	if len(text) > MaxPodBytes {
		return nil, fmt.Errorf("the Pod has %d bytes: want at most %d", len(text), MaxPodBytes)
	}
	return text, nil
}

// withNamespace returns a copy of the Pod of r that has its namespace.
func withNamespace(r Request) *corev1.Pod {
	pod := r.Pod.DeepCopy()
	if pod.Namespace == "" {
		pod.Namespace = r.Namespace
	}
	return pod
}

// injection is one injection in progress.
type injection struct {
	c         *Config
	r         Request
	pod       *corev1.Pod // what is returned in the end
	rendered  *corev1.Pod // the templates' output alone, which must not be modified
	status    *Status     // of an earlier injection; nil if there was none
	overrides containers  // what the user wrote of containers that the templates have
	config    configAnnotation
	data      *Data
	warnings  []string
}

func (c *Config) newInjection(r Request) (*injection, error) {
	in := &injection{c: c, r: r}
	if err := uniqueNames(r.Pod); err != nil {
		return nil, err
	}
	in.config = parseConfig(r.Pod.Annotations[annotationConfig])
	var err error
	if in.warnings, err = checkAnnotations(r.Pod.Annotations, in.config.err); err != nil {
		return nil, err
	}
	if in.status, err = parseStatus(r.Pod.Annotations); err != nil {
		return nil, err
	}
	if in.overrides, err = parseOverrides(r.Pod.Annotations); err != nil {
		return nil, err
	}
	in.data, err = in.newData()
	return in, err
}

func (in *injection) warn(format string, args ...any) {
	in.warnings = append(in.warnings, fmt.Sprintf(format, args...))
}

// render executes the templates and merges their output with the Pod and what its user wrote.
func (in *injection) render() error {
	names, err := in.c.selectTemplates(in.r.Pod.Annotations)
	if err != nil {
		return err
	}
	outputs := make([]*output, len(names))
	for i, name := range names {
		written, err := in.c.execute(name, in.data)
		if err != nil {
			return err
		}
		if outputs[i], err = in.c.output(written); err != nil {
			return fmt.Errorf("template %q: %w", name, err)
		}
	}
	if in.rendered, err = alone(names, outputs); err != nil {
		return err
	}
	if err := uniqueNames(in.rendered); err != nil { // one as an init container, the other not
		return fmt.Errorf("templates %s: %w", clip(strings.Join(names, ", ")), err)
	}
	if in.pod, err = in.assemble(in.r.Pod, names, outputs); err != nil || in.status == nil {
		return err
	}
	// The order of merged lists depends on that of the Pod, so that it is taken from a first injection.
	again, err := in.assemble(in.userPod(), names, outputs)
	if err != nil {
		return err
	}
	alignPod(in.pod, again)
	return nil
}

// alone is the templates' output merged with an empty Pod. It must not be modified.
func alone(names []string, outputs []*output) (*corev1.Pod, error) {
	if len(outputs) == 1 {
		return outputs[0].alone, nil
	}
	tree, err := treeOf(&corev1.Pod{})
	if err != nil {
		return nil, err
	}
	for i, o := range outputs {
		if tree, err = mergeTree(tree, o.patch); err != nil {
			return nil, fmt.Errorf("template %q: %w", names[i], err)
		}
	}
	return podOf(tree)
}

// assemble merges the templates' output with a Pod, which is not modified, and what its user wrote.
func (in *injection) assemble(original *corev1.Pod, names []string, outputs []*output) (*corev1.Pod, error) {
	original = original.DeepCopy()
	moveContainers(original, in.rendered)
	tree, err := treeOf(original)
	if err != nil {
		return nil, err
	}
	for i, o := range outputs {
		if tree, err = mergeTree(tree, o.patch); err != nil {
			return nil, fmt.Errorf("template %q: %w", names[i], err)
		}
	}
	tree, overrides, err := in.mergeOverrides(tree, original)
	if err != nil {
		return nil, err
	}
	pod, err := podOf(tree)
	if err != nil || overrides == "" {
		return pod, err
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationOverrides] = overrides
	return pod, nil
}

// finish does what no template can: it needs the merged Pod.
func (in *injection) finish() error {
	if err := oneSource(in.pod); err != nil {
		return err
	}
	if in.pod.Annotations == nil {
		in.pod.Annotations = map[string]string{}
	}
	if in.pod.Labels == nil {
		in.pod.Labels = map[string]string{}
	}
	proxy := findProxy(in.pod)
	late := lateEnv{cluster: in.data.cluster, network: in.data.network, path: in.r.Env}
	if err := in.mergePrometheus(proxy, &late); err != nil {
		return err
	}
	if err := in.rewriteProbes(proxy, &late); err != nil {
		return err
	}
	if proxy != nil {
		late.apply(proxy)
	}
	order(in.pod, in.data.Proxy.Hold)
	if in.data.network != "" && in.pod.Labels[labelNetwork] == "" {
		in.pod.Labels[labelNetwork] = in.data.network
	}
	for k, v := range in.c.injectedAnnotations {
		in.pod.Annotations[k] = v
	}
	in.checkPod()
	return in.writeStatus()
}

// typeMeta is what templates see of a Pod whose kind is not set, as in admission requests.
func typeMeta(t metav1.TypeMeta) metav1.TypeMeta {
	if t.Kind == "" {
		t.Kind, t.APIVersion = "Pod", "v1"
	}
	return t
}
