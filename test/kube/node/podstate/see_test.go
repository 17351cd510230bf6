package podstate_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestExpand(t *testing.T) {
	value := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "1", "B": "$(A)", "EMPTY": ""}[name]
		return v, ok
	}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(B)": "$(A)", "[$(EMPTY)]": "[]",
		"$(NONE)": "$(NONE)", "$$(A)": "$(A)", "$$$(A)": "$1", "$A": "$A", "$": "$", "$$": "$", "$(A": "$(A", "$(A$(A)": "$(A$(A)",
		"$()": "$()", "é$(A)": "é1",
	} {
		if got := podstate.Expand(in, value); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

const seenPod = `
metadata: {name: web-1, namespace: shop, uid: u-1, labels: {app: web, a: 'x"y'}, annotations: {k: v}}
spec:
  nodeName: node-1
  serviceAccountName: web
  initContainers: [{name: init}]
  containers:
  - name: app
    resources: {limits: {cpu: 1500m}, requests: {memory: 100Mi}}
    envFrom:
    - {prefix: P_, configMapRef: {name: settings}}
    - {secretRef: {name: missing, optional: true}}
    env:
    - {name: FIRST, value: one}
    - {name: SECOND, value: $(FIRST) $(P_key) $(WEB_SERVICE_HOST) $(NONE)}
    - {name: FIRST, value: again}
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    - {name: REQUEST, valueFrom: {resourceFieldRef: {resource: requests.memory}}}
    - {name: KEY, valueFrom: {configMapKeyRef: {name: settings, key: key}}}
    - {name: ABSENT, valueFrom: {configMapKeyRef: {name: settings, key: none, optional: true}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: password, key: text}}}
`

func host(t *testing.T) podstate.Host {
	return podstate.Host{IP: "10.244.0.1", PodIPs: []string{"10.244.1.9"}, Allocatable: parse[corev1.ResourceList](t, "{cpu: 4, memory: 8Gi}")}
}

var objects = podstate.Objects{
	ConfigMap: func(name string) (*corev1.ConfigMap, error) {
		switch name {
		case "settings":
			return &corev1.ConfigMap{Data: map[string]string{"key": "value", "file.yaml": "a: 1\n"}}, nil
		case "broken":
			return nil, errors.New("no connection")
		}
		return nil, nil
	},
	Secret: func(name string) (*corev1.Secret, error) {
		if name != "password" {
			return nil, nil
		}
		return &corev1.Secret{Data: map[string][]byte{"text": []byte("s3cret")}}, nil
	},
}

func TestEnvironment(t *testing.T) {
	pod := parse[*corev1.Pod](t, seenPod)
	services := podstate.ServiceEnvironment(pod, parse[[]*corev1.Service](t, `
- {metadata: {namespace: default, name: kubernetes}, spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443}]}}
- {metadata: {namespace: shop, name: web}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80, protocol: TCP}]}}
- {metadata: {namespace: shop, name: headless}, spec: {clusterIP: None, ports: [{port: 80}]}}
- {metadata: {namespace: other, name: far}, spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}}
`))
	got, err := podstate.Environment(pod, &pod.Spec.Containers[0], host(t), objects, services)
	if err != nil {
		t.Fatal(err)
	}
	const want = `P_file.yaml=a: 1
|P_key=value|FIRST=again|SECOND=one value 10.96.0.2 $(NONE)|NAME=web-1|LABEL=web|IP=10.244.1.9|HOST=10.244.0.1|ACCOUNT=web|CPU=2|MEMORY=8192|REQUEST=104857600|KEY=value|PASSWORD=s3cret|` +
		`KUBERNETES_PORT=tcp://10.96.0.1:443|KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443|KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1|KUBERNETES_PORT_443_TCP_PORT=443|KUBERNETES_PORT_443_TCP_PROTO=tcp|` +
		`KUBERNETES_SERVICE_HOST=10.96.0.1|KUBERNETES_SERVICE_PORT=443|KUBERNETES_SERVICE_PORT_HTTPS=443|` +
		`WEB_PORT=tcp://10.96.0.2:80|WEB_PORT_80_TCP=tcp://10.96.0.2:80|WEB_PORT_80_TCP_ADDR=10.96.0.2|WEB_PORT_80_TCP_PORT=80|WEB_PORT_80_TCP_PROTO=tcp|WEB_SERVICE_HOST=10.96.0.2|WEB_SERVICE_PORT=80`
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestEnvironmentErrorsNameTheCause(t *testing.T) {
	for env, want := range map[string]string{
		"{name: V, valueFrom: {configMapKeyRef: {name: none, key: k}}}":                      `container app: variable V: ConfigMap "none" does not exist`,
		"{name: V, valueFrom: {configMapKeyRef: {name: settings, key: k}}}":                  `container app: variable V: key k of ConfigMap "settings" does not exist`,
		"{name: V, valueFrom: {configMapKeyRef: {name: broken, key: k, optional: true}}}":    `container app: variable V: get ConfigMap "broken": no connection`,
		"{name: V, valueFrom: {secretKeyRef: {name: none, key: k}}}":                         `container app: variable V: Secret "none" does not exist`,
		"{name: V, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}":                       `container app: variable V: fieldPath "spec.hostname" is not one of the downward API`,
		"{name: V, valueFrom: {resourceFieldRef: {resource: limits.cpu, containerName: x}}}": `container app: variable V: resourceFieldRef limits.cpu: the Pod has no container "x"`,
	} {
		pod := parse[*corev1.Pod](t, "spec: {containers: [{name: app, env: ["+env+"]}]}")
		if _, err := podstate.Environment(pod, &pod.Spec.Containers[0], host(t), objects, nil); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", env, err, want)
		}
	}
}

func TestPayload(t *testing.T) {
	pod := parse[*corev1.Pod](t, seenPod)
	token := func(r podstate.TokenRequest) ([]byte, error) {
		return fmt.Appendf(nil, "token for %s %d", r.Audience, r.ExpirationSeconds), nil
	}
	for volume, want := range map[string]string{
		"{name: v, configMap: {name: settings}}":                                                                                    "file.yaml 644 a: 1\n|key 644 value",
		"{name: v, configMap: {name: settings, defaultMode: 256, items: [{key: key, path: a/b}]}}":                                  "a/b 400 value",
		"{name: v, configMap: {name: none, optional: true}}":                                                                        "",
		"{name: v, configMap: {name: none}}":                                                                                        `volume "v": ConfigMap "none" does not exist`,
		"{name: v, configMap: {name: settings, items: [{key: x, path: x}]}}":                                                        `volume "v": key x of ConfigMap "settings" does not exist`,
		"{name: v, configMap: {name: settings, items: [{key: key, path: ../x}]}}":                                                   `volume "v": invalid path "../x": want one inside the volume`,
		"{name: v, secret: {secretName: password, items: [{key: text, path: p, mode: 384}]}}":                                       "p 600 s3cret",
		"{name: v, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}":                                 "labels 644 a=\"x\\\"y\"\napp=\"web\"",
		"{name: v, downwardAPI: {items: [{path: cpu, resourceFieldRef: {containerName: app, resource: limits.cpu, divisor: 1m}}]}}": "cpu 644 1500",
		"{name: v, projected: {sources: [{serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}}, {configMap: {name: settings, items: [{key: key, path: k}]}}]}}": "istio-token 644 token for istio-ca 43200 token|k 644 value",
		"{name: v, projected: {sources: [{clusterTrustBundle: {path: x}}]}}": `volume "v": projected source: want configMap, secret, downwardAPI or serviceAccountToken`,
	} {
		v := parse[corev1.Volume](t, volume)
		files, err := podstate.Payload(pod, &v, host(t), objects, token)
		var lines []string
		for _, name := range slices.Sorted(maps.Keys(files)) {
			f := files[name]
			line := fmt.Sprintf("%s %o %s", name, f.Mode, f.Data)
			if f.Token {
				line += " token"
			}
			lines = append(lines, line)
		}
		got := strings.Join(lines, "|")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", volume, got, want)
		}
	}
}

func TestRefreshTime(t *testing.T) {
	now := time.Unix(1e9, 0)
	for life, want := range map[time.Duration]time.Duration{time.Hour: 48 * time.Minute, 10 * time.Minute: 8 * time.Minute, 48 * time.Hour: 24 * time.Hour} {
		if got := podstate.RefreshTime(now, now.Add(life)).Sub(now); got != want {
			t.Errorf("a token for %v is replaced after %v, want %v", life, got, want)
		}
	}
}

func TestThreshold(t *testing.T) {
	probe := &corev1.Probe{SuccessThreshold: 2, FailureThreshold: 3}
	var count podstate.Threshold
	var got strings.Builder
	for _, c := range "++-+---+-++" {
		if count.Add(probe, c == '+') {
			got.WriteRune(c)
		} else {
			got.WriteRune('.')
		}
	}
	if want := ".+....-...+"; got.String() != want {
		t.Errorf("verdicts %s, want %s", got.String(), want)
	}
}

func TestUnsupportedNamesTheFields(t *testing.T) {
	for spec, want := range map[string]string{
		"{containers: [{name: a}], volumes: [{name: v, emptyDir: {}}]}":                 "",
		"{hostNetwork: true, containers: [{name: a, tty: true}]}":                       "the node of the test does not support spec.hostNetwork, container a: tty",
		"{containers: [{name: a}], volumes: [{name: v, hostPath: {path: /}}]}":          "the node of the test does not support spec.volumes[v]: want emptyDir, configMap, secret, downwardAPI or projected",
		"{initContainers: [{name: i, restartPolicy: Always}], containers: [{name: a}]}": "",
		"{containers: [{name: a, restartPolicy: Always}]}":                              "the node of the test does not support container a: restartPolicy of its own",
	} {
		if got := podstate.Unsupported(&corev1.Pod{Spec: parse[corev1.PodSpec](t, spec)}); got != want {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
}
