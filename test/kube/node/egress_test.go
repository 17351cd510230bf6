package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// The API server, which is not on the Pods' network, reaches a Service: so it does webhooks.
func TestAPIServerReachesServices(t *testing.T) {
	c := start(t, nil)
	c.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: app, image: pilothouse/app, args: ["-service=web", "-http=:9080"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 9080}]}
`)
	wait.NoError(t, "the Service answers through the API server", func() error {
		text, err := c.Client.CoreV1().Services(c.namespace).ProxyGet("http", "web", "80", "/", nil).DoRaw(t.Context())
		if err == nil && !strings.Contains(string(text), `"web"`) {
			err = fmt.Errorf("the answer is %q", text)
		}
		return err
	})
}
