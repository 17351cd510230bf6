package rootconfigmap

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Wants reports whether a namespace gets the ConfigMap, given the discoverySelectors of the mesh configuration.
func Wants(ns *corev1.Namespace, selectors []labels.Selector) bool { return wants(ns, selectors) }
