package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// extraCluster is a bootstrap in which discovery has added a static cluster and a tag of statistics.
func extraCluster(name string) *bootstrapv3.Bootstrap {
	return &bootstrapv3.Bootstrap{
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}}},
		StatsConfig:     &metricsv3.StatsConfig{StatsTags: []*metricsv3.TagSpecifier{{TagName: "zone_of_" + name, TagValue: &metricsv3.TagSpecifier_FixedValue{FixedValue: "here"}}}},
	}
}

// has returns a condition: Envoy's bootstrap has the clusters, and not another one.
func has(a *agenttest.Process, cluster, not string) func() error {
	return func() error {
		_, dump, err := a.Get(a.Admin, "/config_dump?resource=bootstrap")
		if err == nil && !strings.Contains(dump, `"`+cluster+`"`) {
			_, dump, err = a.Get(a.Admin, "/config_dump")
		}
		switch {
		case err != nil:
			return err
		case !strings.Contains(dump, `"`+cluster+`"`):
			return fmt.Errorf("no cluster %s in %.300s", cluster, dump)
		case not != "" && strings.Contains(dump, `"`+not+`"`):
			return fmt.Errorf("there is a cluster %s", not)
		}
		return nil
	}
}

// logs returns a condition: the agent's log has a text.
func logs(a *agenttest.Process, text string) func() error {
	return func() error {
		if !strings.Contains(a.Output(), text) {
			return errors.New("the log does not say it")
		}
		return nil
	}
}

const (
	merged = "Envoy's bootstrap has what discovery changes in it"
	alone  = "Envoy's bootstrap is the agent's alone"
)

// TestBootstrapFromDiscovery: with BOOTSTRAP_XDS_AGENT Envoy starts with what discovery changes in the bootstrap; the next agent does so
// while discovery is away, and a change is taken over by a new Envoy.
func TestBootstrapFromDiscovery(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.GiveBootstrap(extraCluster("extra"))
	plane.Start()
	without := agenttest.New(t, plane, "")
	without.Start()
	agenttest.Until(t, "Envoy runs", has(without, "prometheus_stats", "extra"))
	without.Stop()
	if strings.Contains(without.Output(), "discovery changes in") {
		t.Error("an agent that is not to ask speaks of it")
	}

	a := agenttest.New(t, plane, "proxyMetadata: {BOOTSTRAP_XDS_AGENT: 'true', BOOTSTRAP_XDS_WAIT: 60s}", "ISTIO_BOOTSTRAP_OVERRIDE=o.yaml")
	a.Write("o.yaml", []byte("static_resources: {clusters: [{name: of-the-override, type: STATIC}]}"))
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	agenttest.Until(t, "Envoy has what discovery changes", has(a, "extra", ""))
	agenttest.Until(t, "Envoy has the override, too", has(a, "of-the-override", ""))
	agenttest.Until(t, "the agent's own is there", has(a, "prometheus_stats", ""))
	agenttest.Until(t, "the log says it", logs(a, merged))
	kept := filepath.Join(a.Dir, "etc/istio/proxy/bootstrap-copy")
	if st, err := os.Stat(kept); err != nil || st.Mode() != 0o600 {
		t.Errorf("the kept copy: %v, %v", st, err)
	}
	a.Stop()

	plane.Stop()
	b := a.Again()
	b.Cmd.Env = append(b.Cmd.Env, "BOOTSTRAP_XDS_WAIT=0.1s")
	b.Start()
	agenttest.Until(t, "without discovery Envoy has the kept one", has(b, "extra", ""))
	agenttest.Until(t, "the log says it", logs(b, "the kept copy"))
	plane.GiveBootstrap(extraCluster("changed"))
	plane.Start()
	agenttest.Until(t, "a new Envoy has what discovery changes now", has(b, "changed", "extra"))
	agenttest.Until(t, "the proxy is ready", b.Ready)
	agenttest.Until(t, "the log says it", logs(b, "discovery has changed Envoy's bootstrap"))
}

// Envoy is started although discovery says nothing, or something that Envoy refuses or does not start with.
func TestBootstrapThatCannotBeUsed(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := busy.Addr().(*net.TCPAddr).Port
	twice := extraCluster("extra")
	twice.StaticResources.Clusters = append(twice.StaticResources.Clusters, extraCluster("prometheus_stats").StaticResources.Clusters...)
	onBusyPort := extraCluster("extra")
	onBusyPort.StaticResources.Listeners = []*listenerv3.Listener{{Name: "busy", FilterChains: tlsListener(t, strconv.Itoa(port)).FilterChains,
		Address: tlsListener(t, strconv.Itoa(port)).Address}}
	onBusyPort.StaticResources.Listeners[0].FilterChains[0].TransportSocket = nil
	for _, tt := range []struct {
		name  string
		given *bootstrapv3.Bootstrap
		says  string
		again string // what the next agent says
	}{
		{"of a control plane that has none", nil, "the control plane has none", ""},
		{"that changes what the agent needs", &bootstrapv3.Bootstrap{Node: &corev3.Node{Id: "x"}}, "node must not be changed", ""},
		{"that Envoy refuses", twice, "since Envoy refuses what discovery changes in it", ""},
		{"that Envoy cannot start with", onBusyPort, "Envoy does not start with what discovery changes in the bootstrap", "since Envoy does not start with what discovery changes in it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plane := agenttest.NewPlane(t)
			if tt.given != nil {
				plane.GiveBootstrap(tt.given)
			}
			plane.Start()
			a := agenttest.New(t, plane, "", "BOOTSTRAP_XDS_AGENT=true", "BOOTSTRAP_XDS_WAIT=60s")
			a.Start()
			agenttest.Until(t, "the log says it", logs(a, tt.says))
			agenttest.Until(t, "the proxy is ready", a.Ready)
			agenttest.Until(t, "Envoy has the agent's own bootstrap", has(a, "prometheus_stats", "extra"))
			a.Stop()
			if strings.Contains(a.Output(), merged) != (tt.again != "") {
				t.Error("the log speaks of a merged bootstrap, or not")
			}
			if tt.again == "" {
				return
			}
			b := a.Again()
			b.Start()
			agenttest.Until(t, "the proxy is ready again", b.Ready)
			if !strings.Contains(b.Output(), tt.again) {
				t.Error("the next agent does not say why it does not use it")
			}
		})
	}
}
