package model

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selects evaluates a selector of Kubernetes on a namespace; one with an unknown operator, and none, select nothing.
func selects(s *metav1.LabelSelector, namespace string, labels map[string]string) bool {
	if s == nil {
		return false
	}
	get := func(key string) (string, bool) {
		if v, ok := labels[key]; ok || key != namespaceNameLabel {
			return v, ok
		}
		return namespace, true
	}
	for key, want := range s.MatchLabels {
		if v, ok := get(key); !ok || v != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		v, ok := get(e.Key)
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = ok && slices.Contains(e.Values, v)
		case metav1.LabelSelectorOpNotIn:
			ok = !ok || !slices.Contains(e.Values, v)
		case metav1.LabelSelectorOpExists:
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !ok
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}
