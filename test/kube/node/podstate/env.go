package podstate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Objects finds the ConfigMaps and Secrets of a namespace; nil says that there is none with the name.
type Objects struct {
	ConfigMap func(name string) (*corev1.ConfigMap, error)
	Secret    func(name string) (*corev1.Secret, error)
}

// Environment is the environment of a container as NAME=value, in the order of its definition, with the variables of
// services after it. Services are those of [ServiceEnvironment]. The error names the variable.
func Environment(pod *corev1.Pod, c *corev1.Container, host Host, objects Objects, services map[string]string) ([]string, error) {
	e := environment{values: map[string]string{}}
	for _, from := range c.EnvFrom {
		values, err := envFrom(from, objects)
		if err != nil {
			return nil, err
		}
		for _, k := range slices.Sorted(maps.Keys(values)) {
			e.set(from.Prefix+k, values[k])
		}
	}
	for _, v := range c.Env {
		value, ok := Expand(v.Value, func(name string) (string, bool) {
			if value, ok := e.values[name]; ok {
				return value, true
			}
			value, ok := services[name]
			return value, ok
		}), true
		if v.ValueFrom != nil {
			var err error
			if value, ok, err = valueFrom(pod, c, host, objects, v.ValueFrom); err != nil {
				return nil, fmt.Errorf("container %s: variable %s: %w", c.Name, v.Name, err)
			}
		}
		if ok {
			e.set(v.Name, value)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(services)) {
		if _, own := e.values[k]; !own {
			e.set(k, services[k])
		}
	}
	out := make([]string, 0, len(e.names))
	for _, name := range e.names {
		out = append(out, name+"="+e.values[name])
	}
	return out, nil
}

type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, known := e.values[name]; !known {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func envFrom(from corev1.EnvFromSource, objects Objects) (map[string]string, error) {
	values := map[string]string{}
	switch {
	case from.ConfigMapRef != nil:
		m, err := objects.ConfigMap(from.ConfigMapRef.Name)
		if err != nil || m == nil {
			return nil, missing(err, "ConfigMap", from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		}
		maps.Copy(values, m.Data)
	case from.SecretRef != nil:
		s, err := objects.Secret(from.SecretRef.Name)
		if err != nil || s == nil {
			return nil, missing(err, "Secret", from.SecretRef.Name, from.SecretRef.Optional)
		}
		for k, v := range s.Data {
			values[k] = string(v)
		}
	}
	return values, nil
}

// missing is the error for an object that is absent, or nil if it is optional.
func missing(err error, kind, name string, optional *bool) error {
	switch {
	case err != nil:
		return fmt.Errorf("get %s %q: %w", kind, name, err)
	case optional != nil && *optional:
		return nil
	}
	return fmt.Errorf("%s %q does not exist", kind, name)
}

// valueFrom is the value of a variable; false says that its optional source does not exist.
func valueFrom(pod *corev1.Pod, c *corev1.Container, host Host, objects Objects, from *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		v, err := DownwardField(pod, host, from.FieldRef.FieldPath)
		return v, true, err
	case from.ResourceFieldRef != nil:
		v, err := downwardResource(pod, host, c.Name, from.ResourceFieldRef)
		return v, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		m, err := objects.ConfigMap(ref.Name)
		if err != nil || m == nil {
			return "", false, missing(err, "ConfigMap", ref.Name, ref.Optional)
		}
		v, ok := m.Data[ref.Key]
		if !ok {
			return "", false, missing(nil, "key "+ref.Key+" of ConfigMap", ref.Name, ref.Optional)
		}
		return v, true, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := objects.Secret(ref.Name)
		if err != nil || s == nil {
			return "", false, missing(err, "Secret", ref.Name, ref.Optional)
		}
		v, ok := s.Data[ref.Key]
		if !ok {
			return "", false, missing(nil, "key "+ref.Key+" of Secret", ref.Name, ref.Optional)
		}
		return string(v), true, nil
	}
	return "", false, fmt.Errorf("valueFrom: want fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef")
}

// ServiceEnvironment has the variables for Services that every container of a Pod gets: those of the API server's, and
// with enableServiceLinks those of all Services in the Pod's namespace that have an address.
func ServiceEnvironment(pod *corev1.Pod, services []*corev1.Service) map[string]string {
	out := map[string]string{}
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	ordered := slices.SortedFunc(slices.Values(services), func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range ordered {
		master := s.Namespace == "default" && s.Name == "kubernetes"
		addr, err := netip.ParseAddr(s.Spec.ClusterIP)
		if err == nil && len(s.Spec.Ports) > 0 && (master || links && s.Namespace == pod.Namespace) {
			addService(out, s, addr)
		}
	}
	return out
}

func addService(out map[string]string, s *corev1.Service, addr netip.Addr) {
	name := envName(s.Name)
	out[name+"_SERVICE_HOST"] = s.Spec.ClusterIP
	out[name+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
	for i, p := range s.Spec.Ports {
		port := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			out[name+"_SERVICE_PORT_"+envName(p.Name)] = port
		}
		protocol := strings.ToLower(cmp.Or(string(p.Protocol), "TCP"))
		url := protocol + "://" + netip.AddrPortFrom(addr, uint16(p.Port)).String()
		if i == 0 {
			out[name+"_PORT"] = url
		}
		prefix := name + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		out[prefix], out[prefix+"_PROTO"], out[prefix+"_PORT"], out[prefix+"_ADDR"] = url, protocol, port, s.Spec.ClusterIP
	}
}

func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
