package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// jobsAndGateway is a mesh with a Job that asks a Service when it starts, and a Gateway of the Gateway API.
const jobsAndGateway = `apiVersion: batch/v1
kind: Job
metadata: {name: report}
spec:
  template:
    spec:
      restartPolicy: Never
      serviceAccountName: report
      containers:
      - name: report
        image: report:1
        command: [bash, -c, "exec 3<>/dev/tcp/web/80 && printf 'GET / HTTP/1.1\\r\\nHost: web\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3; printf 'end without a newline'"]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web:1, ports: [{containerPort: 8080}]}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front}
spec: {parentRefs: [{name: front}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 8085, protocol: HTTP}
`

// A Job finds the others ready, and all that it has printed is shown; the port of a listener that an edit adds is opened, and told.
func TestUpRunsJobsAndOpensPortsOfEdits(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mesh.yaml")
	if err := os.WriteFile(file, []byte(jobsAndGateway), 0o600); err != nil {
		t.Fatal(err)
	}
	s := upIn(t, dir, "--yes")
	wait.Until(t, "the Job has ended", func() bool { return strings.Contains(s.output(), "report-1.default/report: ended with exit code 0") })
	answered := strings.Index(s.output(), `"peer":"spiffe://cluster.local/ns/default/sa/report"`)
	last := strings.Index(s.output(), "report-1.default.report | end without a newline\n")
	if ended := strings.Index(s.output(), "report-1.default/report: ended"); answered < 0 || last < answered || ended < last {
		t.Errorf("want the answer, the last line and the end of the Job, in this order")
	}
	editFile(t, file, "  - {name: http, port: 8085, protocol: HTTP}\n", "  - {name: http, port: 8085, protocol: HTTP}\n  - {name: more, port: 8086, protocol: HTTP}\n")
	opened := regexp.MustCompile(`(?m)^edit: (http://\S+) is port 8086 of front-istio-1\.default$`)
	wait.Until(t, "the new port is told", func() bool { return opened.MatchString(s.output()) })
	wait.Until(t, "the new port answers", func() bool {
		answer, err := tryIn("web-0.default", request("front-istio", 8086)) // nothing may listen there yet
		return err == nil && strings.Contains(answer, `"service":"web"`)
	})
	if body := fetch(t, opened.FindStringSubmatch(s.output())[1]); !strings.Contains(body, `"peer":"spiffe://cluster.local/ns/default/sa/front-istio"`) {
		t.Errorf("through the gateway: %q", body)
	}
}
