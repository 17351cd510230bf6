package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"
)

// imageAuto is the image of a container that users write only to change what the template has.
const imageAuto = "auto"

// podSchema says which lists of a Pod are merged, and by which key.
var podSchema = func() strategicpatch.LookupPatchMeta {
	s, err := strategicpatch.NewPatchMetaFromStruct(corev1.Pod{})
	if err != nil {
		panic(err) // the type is constant
	}
	return s
}()

// merge merges an overlay, as JSON, with a Pod by strategic merge.
func merge(pod *corev1.Pod, overlay []byte) (*corev1.Pod, error) {
	var patch, base map[string]any
	if err := json.Unmarshal(overlay, &patch); err != nil {
		return nil, fmt.Errorf("the output is not a mapping: %w", err)
	}
	keepUsers(patch)
	text, err := encode(pod)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &base); err != nil {
		return nil, fmt.Errorf("decode the Pod: %w", err)
	}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(base, patch, podSchema)
	if err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	if text, err = json.Marshal(merged); err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	out := &corev1.Pod{}
	unknown, err := kjson.UnmarshalStrict(text, out)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	return out, nil
}

// keepUsers removes lists without elements from an overlay. A template writes one where all elements are
// left out, and strategic merge would remove the user's.
func keepUsers(patch map[string]any) {
	for _, part := range []string{"metadata", "spec"} {
		m, ok := patch[part].(map[string]any)
		if !ok {
			delete(patch, part)
			continue
		}
		maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	}
}

// containers is the value of the annotation proxy.istio.io/overrides.
type containers struct {
	Containers     []corev1.Container `json:"containers,omitempty"`
	InitContainers []corev1.Container `json:"initContainers,omitempty"`
}

func (c containers) empty() bool { return len(c.Containers)+len(c.InitContainers) == 0 }

func parseOverrides(annotations map[string]string) (containers, error) {
	var c containers
	if text := annotations[annotationOverrides]; text != "" {
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return c, fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(text), annotationOverrides, err)
		}
	}
	return c, nil
}

// moveContainers moves the containers of a Pod that the templates have in the other list: a user's istio-proxy
// becomes an init container with native sidecars.
func moveContainers(pod, rendered *corev1.Pod) {
	move := func(from, to *[]corev1.Container, names []corev1.Container, policy bool) {
		for i := range names {
			at := index(*from, names[i].Name)
			if at < 0 || index(*to, names[i].Name) >= 0 {
				continue
			}
			c := (*from)[at]
			*from = slices.Delete(*from, at, at+1)
			if !policy {
				c.RestartPolicy = nil
			}
			*to = append(*to, c)
		}
	}
	move(&pod.Spec.Containers, &pod.Spec.InitContainers, rendered.Spec.InitContainers, true)
	move(&pod.Spec.InitContainers, &pod.Spec.Containers, rendered.Spec.Containers, false)
}

// applyOverrides puts what the user wrote of the templates' containers over them, and records it, since
// after the merge it cannot be told any more. The Pod before the merge is original.
func (in *injection) applyOverrides(pod, original *corev1.Pod) (*corev1.Pod, error) {
	users := containers{
		InitContainers: in.written(original.Spec.InitContainers, in.rendered.Spec.InitContainers, true),
		Containers:     in.written(original.Spec.Containers, in.rendered.Spec.Containers, false),
	}
	if users.empty() {
		return pod, nil
	}
	overlay, err := json.Marshal(map[string]any{"spec": users})
	if err != nil {
		return nil, fmt.Errorf("encode the user's containers: %w", err)
	}
	if pod, err = merge(pod, overlay); err != nil {
		return nil, fmt.Errorf("merge the user's containers: %w", err)
	}
	if in.overrides.empty() {
		text, err := json.Marshal(users)
		if err != nil {
			return nil, fmt.Errorf("encode the user's containers: %w", err)
		}
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[annotationOverrides] = string(text)
	}
	return pod, nil
}

// written returns what the user wrote of each container in names: that of the annotation, if the Pod was
// injected before, else that of the Pod.
func (in *injection) written(pod, names []corev1.Container, init bool) []corev1.Container {
	var out []corev1.Container
	for i := range names {
		name := names[i].Name
		c, ok := in.overrides.find(name)
		if !ok && !in.status.has(name) {
			if at := index(pod, name); at >= 0 {
				c, ok = *pod[at].DeepCopy(), true
			}
		}
		if !ok {
			continue
		}
		if c.Image == imageAuto {
			c.Image = ""
		}
		if !init {
			c.RestartPolicy = nil
		}
		out = append(out, c)
	}
	return out
}

func (c containers) find(name string) (corev1.Container, bool) {
	for _, list := range [][]corev1.Container{c.Containers, c.InitContainers} {
		if at := index(list, name); at >= 0 {
			return *list[at].DeepCopy(), true
		}
	}
	return corev1.Container{}, false
}

// uniqueNames returns an error if two containers have one name, by which lists of containers are merged.
func uniqueNames(pod *corev1.Pod) error {
	seen := map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if seen[list[i].Name] {
				return fmt.Errorf("two containers of the Pod have the name %q: want different names", clip(list[i].Name))
			}
			seen[list[i].Name] = true
		}
	}
	return nil
}

// oneSource returns an error if a volume has several sources: that of the user, and that of a template.
func oneSource(pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		source, n := reflect.ValueOf(pod.Spec.Volumes[i].VolumeSource), 0
		for f := range source.NumField() {
			if !source.Field(f).IsZero() {
				n++
			}
		}
		if n > 1 {
			return fmt.Errorf("volume %q of the Pod has the name of one that is injected, and another source: give it another name", clip(pod.Spec.Volumes[i].Name))
		}
	}
	return nil
}

// index is the position of the container with a name, or -1.
func index(list []corev1.Container, name string) int {
	return slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name })
}

// findProxy returns the container with the proxy; nil if there is none.
func findProxy(pod *corev1.Pod) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		if at := index(list, proxyContainer); at >= 0 {
			return &list[at]
		}
	}
	return nil
}
