package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
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

// output is what a template has written, which is merged with Pods. It does not change.
type output struct {
	patch map[string]any
	// alone is the output merged with an empty Pod.
	alone *corev1.Pod
}

// parseOutput parses what a template has written, which is YAML.
func parseOutput(written []byte) (*output, error) {
	text, err := yaml.YAMLToJSONStrict(written)
	if err != nil {
		return nil, fmt.Errorf("the output is not YAML: %w", err)
	}
	o := &output{alone: &corev1.Pod{}}
	if o.patch, err = decodePatch(text); err != nil {
		return nil, fmt.Errorf("the output is not a mapping: %w", err)
	}
	empty, err := treeOf(o.alone)
	if err != nil {
		return nil, err
	}
	if empty, err = mergeTree(empty, o.patch); err != nil {
		return nil, err
	}
	if text, err = json.Marshal(empty); err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	unknown, err := kjson.UnmarshalStrict(text, o.alone)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	return o, nil
}

// decodePatch decodes JSON for mergeTree, with whole numbers as int64, as treeOf has them.
func decodePatch(text []byte) (map[string]any, error) {
	var patch map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &patch); err != nil {
		return nil, err
	}
	keepUsers(patch)
	return patch, nil
}

// treeOf is a Pod as mappings, lists and scalars. What the Pod has is copied.
func treeOf(pod *corev1.Pod) (map[string]any, error) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return nil, fmt.Errorf("encode the Pod: %w", err)
	}
	return tree, nil
}

// podOf is the Pod that a tree is, whose fields have been checked.
func podOf(tree map[string]any) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(tree, pod); err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	return pod, nil
}

// mergeTree merges a patch with a Pod by strategic merge. The tree is used up, the patch is not modified.
func mergeTree(tree, patch map[string]any) (map[string]any, error) {
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(tree, runtime.DeepCopyJSON(patch), podSchema)
	if err != nil {
		return nil, fmt.Errorf("merge with the Pod: %w", err)
	}
	return merged, nil
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

// mergeOverrides puts what the user wrote of the templates' containers over them. The Pod before the merge is
// original. The text is what the user wrote, to be recorded, since after the merge it cannot be told any more; it is
// empty if there is nothing to record.
func (in *injection) mergeOverrides(tree map[string]any, original *corev1.Pod) (merged map[string]any, text string, err error) {
	users := containers{
		InitContainers: in.written(original.Spec.InitContainers, in.rendered.Spec.InitContainers, true),
		Containers:     in.written(original.Spec.Containers, in.rendered.Spec.Containers, false),
	}
	if users.empty() {
		return tree, "", nil
	}
	written, err := json.Marshal(users)
	if err != nil {
		return nil, "", fmt.Errorf("encode the user's containers: %w", err)
	}
	patch, err := decodePatch(fmt.Appendf(nil, `{"spec":%s}`, written))
	if err != nil {
		return nil, "", fmt.Errorf("decode the user's containers: %w", err)
	}
	if merged, err = mergeTree(tree, patch); err != nil {
		return nil, "", fmt.Errorf("merge the user's containers: %w", err)
	}
	if in.overrides.empty() {
		text = string(written)
	}
	return merged, text, nil
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
