package discovery

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// metrics returns the values of all metrics, by name and labels.
func (p *plane) metrics() map[string]float64 {
	p.t.Helper()
	_, text := p.get(p.addr.Monitoring, "/metrics")
	out := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && lines.Text()[0] != '#' {
			out[lines.Text()[:i]], _ = strconv.ParseFloat(lines.Text()[i+1:], 64)
		}
	}
	return out
}

// Each metric with a name of Istio's counts what that name says.
func TestMetricsWithNamesOfIstio(t *testing.T) {
	p := synced(t)
	before := p.metrics()
	c := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	c.expect("RDS", "9080")
	step := func(what, yaml string, want map[string]float64) {
		t.Helper()
		earlier := p.metrics()
		p.emit(yaml, false)
		wait.Until(t, what, func() bool {
			now := p.metrics()
			for name, by := range want {
				if now[name]-earlier[name] != by {
					return false
				}
			}
			return true
		})
	}
	step("a route", route("{name: first, route: [{destination: {host: reviews}}]}"), map[string]float64{
		`pilot_inbound_updates{type="config"}`: 1, `pilot_push_triggers{type="config"}`: 1, `pilot_push_triggers{type="endpoint"}`: 0,
		"pilot_virt_services": 1, `pilot_k8s_cfg_events{event="add",type="VirtualService"}`: 1, `pilot_k8s_cfg_events{event="update",type="VirtualService"}`: 0,
	})
	step("a Pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-2, namespace: shop, labels: {app: reviews}}\nstatus: {phase: Running, podIP: 10.99.0.2}\n", map[string]float64{
		`pilot_inbound_updates{type="eds"}`: 1, `pilot_push_triggers{type="endpoint"}`: 1, `pilot_push_triggers{type="config"}`: 0,
		`pilot_k8s_reg_events{event="add",type="Pods"}`: 1, `pilot_k8s_reg_events{event="update",type="Pods"}`: 0, `pilot_k8s_cfg_events{event="add",type="Pod"}`: 0,
	})
	step("the Pod with another address", "apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-2, namespace: shop, labels: {app: reviews}}\nstatus: {phase: Running, podIP: 10.99.0.3}\n", map[string]float64{
		`pilot_k8s_reg_events{event="add",type="Pods"}`: 0, `pilot_k8s_reg_events{event="update",type="Pods"}`: 1,
	})
	step("a service", "apiVersion: v1\nkind: Service\nmetadata: {name: more, namespace: shop}\nspec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 80}]}\n", map[string]float64{
		`pilot_inbound_updates{type="svc"}`: 1, `pilot_push_triggers{type="service"}`: 1, "pilot_services": 1, `pilot_k8s_reg_events{event="add",type="Services"}`: 1,
	})
	step("a policy that only moves proxies to another class", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict, namespace: shop}\nspec: {selector: {matchLabels: {app: other}}, mtls: {mode: STRICT}}\n", map[string]float64{
		`pilot_inbound_updates{type="config"}`: 1, `pilot_push_triggers{type="config"}`: 1,
	})
	step("what no proxy gets", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop}\n", map[string]float64{
		`pilot_push_triggers{type="config"}`: 0, `pilot_push_triggers{type="service"}`: 0, `pilot_inbound_updates{type="config"}`: 0, `pilot_k8s_cfg_events{event="add",type="ServiceAccount"}`: 1,
	})
	p.batch(object.Batch{Changes: []object.Change{{Key: object.Key{Kind: object.Service, Namespace: "shop", Name: "more"}}}})
	wait.Until(t, "a service is removed", func() bool { return p.metrics()[`pilot_inbound_updates{type="svcdelete"}`] == 1 })
	if n := p.metrics()[`pilot_k8s_reg_events{event="delete",type="Services"}`]; n != 1 {
		t.Errorf("%v services were deleted, want 1", n)
	}
	c.wait("everything is accepted", func() bool {
		now := p.metrics()
		for _, name := range []string{"pilot_proxy_convergence_time_count", "pilot_proxy_queue_time_count", "pilot_xds_send_time_count", `pilot_xds_config_size_bytes_count{type="cds"}`} {
			if now[name] <= before[name] {
				return false
			}
		}
		return now["pilot_xds_recv_max"] > 100
	})
	for name, want := range map[string]float64{
		"pilot_total_xds_internal_errors": 0, `pilot_total_xds_rejects{type="cds"}`: 0, `pilot_xds_expired_nonce{type="lds"}`: 0, "pilot_sds_certificate_errors_total": 0,
		`istiod_managed_clusters{cluster_type="local"}`: 1, `istiod_managed_clusters{cluster_type="remote"}`: 0,
	} {
		if n, ok := p.metrics()[name]; !ok || n != want {
			t.Errorf("%s %v, present: %v; want %v", name, n, ok, want)
		}
	}
	if life := p.metrics()["citadel_server_root_cert_expiry_seconds"]; life < 1 || life > 86400*366*20 {
		t.Errorf("the root expires in %v s", life)
	}
}
