package mesh

import meshv1 "istio.io/api/mesh/v1alpha1"

// The label of the Pods that serve Ingresses, its value in Istio's installation, and the Service that it belongs to.
const (
	istioLabel     = "istio"
	ingressPods    = "ingressgateway"
	ingressService = "istio-ingressgateway"
)

// IngressSelector returns the labels of the routers that serve Ingresses: ingressSelector, or else the name of ingressService.
// [control-plane 1.4.22]
func IngressSelector(m *meshv1.MeshConfig) map[string]string {
	value := m.GetIngressSelector()
	if s := m.GetIngressService(); value == "" && s != ingressService {
		value = s
	}
	if value == "" {
		value = ingressPods
	}
	return map[string]string{istioLabel: value}
}

// ServesIngress reports whether an Ingress is one of the mesh: by its annotation, or else by the controller of its IngressClass. One that has
// neither, or whose class does not exist, is in mode DEFAULT only. [control-plane 1.4.22]
func ServesIngress(m *meshv1.MeshConfig, class IngressClass) bool {
	mode := m.GetIngressControllerMode()
	switch {
	case mode != meshv1.MeshConfig_STRICT && mode != meshv1.MeshConfig_DEFAULT:
		return false
	case class.Annotated:
		return class.Annotation == m.GetIngressClass()
	case class.Exists:
		return class.Controller == IngressController
	}
	return mode == meshv1.MeshConfig_DEFAULT
}

// IngressClass says which class an Ingress has.
type IngressClass struct {
	// Annotation is its annotation, which Annotated says that it has; it may be empty.
	Annotation string
	Annotated  bool
	// Controller is that of its IngressClass, if that exists.
	Controller string
	Exists     bool
}

// IngressController is the controller of the IngressClasses of a mesh.
const IngressController = "istio.io/ingress-controller"
