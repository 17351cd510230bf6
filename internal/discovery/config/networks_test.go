package config_test

import (
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
)

func TestMeshNetworks(t *testing.T) {
	m, verdicts := config.MeshNetworks(`networks:
  network-2:
    endpoints: [{fromRegistry: two}, {fromCidr: 10.0.0.0/8}]
    gateways: [{registryServiceName: gw.istio-system.svc.cluster.local, port: 15443}, {address: 192.0.2.1}]
`)
	n := m.GetNetworks()["network-2"]
	if len(verdicts) > 0 || len(n.GetEndpoints()) != 2 || n.GetGateways()[1].GetAddress() != "192.0.2.1" || n.GetGateways()[0].GetPort() != 15443 {
		t.Errorf("%v, verdicts %v", m, verdicts)
	}
	if m, verdicts := config.MeshNetworks("networks: {}"); m == nil || len(verdicts) > 0 {
		t.Errorf("no networks: %v, verdicts %v", m, verdicts)
	}
	for text, want := range map[string]string{
		"networks: {n: {endpoints: [{fromCidr: x}]}}":                      "networks[n].endpoints[0].fromCidr",
		"networks: {n: {endpoints: [{}]}}":                                 "networks[n].endpoints[0]",
		"networks: {n: {gateways: [{address: gw.example.com}]}}":           "networks[n].gateways[0].address",
		"networks: {n: {gateways: [{registryServiceName: gw}]}}":           "networks[n].gateways[0].registryServiceName",
		"networks: {n: {gateways: [{address: 192.0.2.1, port: 65536}]}}":   "networks[n].gateways[0].port",
		"networks: {n: {gateways: [{address: 192.0.2.1, locality: r/z}]}}": "networks[n].gateways[0].locality",
		"networks: {'a b': {}}":                                            "networks[a b]",
	} {
		_, verdicts := config.MeshNetworks(text)
		if !slices.ContainsFunc(verdicts, func(v config.Verdict) bool { return v.Field == want }) {
			t.Errorf("%s: verdicts %v, want one about %s", text, verdicts, want)
		}
	}
}
