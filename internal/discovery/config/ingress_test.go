package config_test

import (
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

func TestIngressRules(t *testing.T) {
	runRules(t, []rule{
		{object.Ingress, "{defaultBackend: {service: {name: a, port: {number: 80}}}}", nil},
		{object.Ingress, "{tls: [{hosts: [a.com, '*.b.com'], secretName: s}, {}], rules: [{host: '*.b.com', http: {paths: [{path: /a, pathType: Exact, backend: {resource: {kind: B, name: c}}}, {pathType: ImplementationSpecific, backend: {service: {name: a, port: {name: http}}}}]}}, {}]}", nil},
		{object.Ingress, "{}", []string{"E spec: want defaultBackend or rules"}},
		{object.Ingress, "{tls: [{hosts: ['*', a.*.com]}], rules: [{host: 1.2.3.4, http: {}}]}", []string{
			"E spec.tls[0].hosts[0]: invalid host name", "E spec.tls[0].hosts[1]: invalid host name", "E spec.rules[0].host: invalid host name", "E spec.rules[0].http.paths: is missing",
		}},
		{object.Ingress, "{rules: [{http: {paths: [{path: a, pathType: Prefix, backend: {}}, {path: /, pathType: Regex, backend: {service: {name: a, port: {}}}}, {pathType: Exact, backend: {service: {name: a, port: {number: 1, name: b}}, resource: {kind: B, name: c}}}, {path: b, backend: {service: {name: a, port: {number: 70000}}}}]}}]}", []string{
			"E spec.rules[0].http.paths[0].path: invalid path", "E spec.rules[0].http.paths[0].backend.service.name: is missing",
			"E spec.rules[0].http.paths[1].pathType: invalid type", "E spec.rules[0].http.paths[1].backend.service.port: want either",
			"E spec.rules[0].http.paths[2].path: invalid path", "E spec.rules[0].http.paths[2].backend: has both",
			"E spec.rules[0].http.paths[3].path: invalid path", "E spec.rules[0].http.paths[3].backend.service.port.number: invalid port",
		}},
		{object.Ingress, "{defaultBackend: {service: {name: a, port: {number: -1}}}}", []string{"E spec.defaultBackend.service.port.number: invalid port"}},
	})
}
