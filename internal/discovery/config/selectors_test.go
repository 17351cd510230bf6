package config_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
)

func TestDiscoverySelectorsAreValidated(t *testing.T) {
	for text, want := range map[string]string{
		"[{matchLabels: {a: b}}, {matchExpressions: [{key: a, operator: In, values: [b]}, {key: a, operator: Exists}]}]": "",
		"[{matchExpressions: [{key: a, operator: Near}]}]":                                                               `discoverySelectors[0].matchExpressions[0].operator: invalid operator "Near": want In, NotIn, Exists or DoesNotExist`,
		"[{}, {matchExpressions: [{key: a, operator: NotIn}]}]":                                                          "discoverySelectors[1].matchExpressions[0].values: empty: want the values that NotIn compares with",
		"[{matchExpressions: [{key: a, operator: Exists, values: [b]}]}]":                                                "discoverySelectors[0].matchExpressions[0].values: want none with Exists",
		"[{matchExpressions: [{operator: Exists}]}]":                                                                     "discoverySelectors[0].matchExpressions[0].key: empty: want the name of a label",
	} {
		_, verdicts := config.MeshConfig("discoverySelectors: " + text)
		var got []string
		for _, v := range verdicts {
			got = append(got, v.Error())
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// What says which endpoints to prefer has no effect, and that is told.
func TestTrafficDistributionIsNotApplied(t *testing.T) {
	r := decode.Documents("a.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata: {name: a, annotations: {networking.istio.io/traffic-distribution: PreferClose}}\n"+
		"spec: {clusterIP: 10.96.0.1, trafficDistribution: PreferSameZone, ports: [{port: 80}]}\n"))
	if len(r.Objects) != 1 {
		t.Fatalf("%+v", r)
	}
	var got []string
	for _, v := range config.Validate(r.Objects[0]) {
		got = append(got, v.Severity.String()+" "+v.Field+" "+v.Text[:11])
	}
	if want := "warning spec.trafficDistribution not applied, warning metadata.annotations[networking.istio.io/traffic-distribution] not applied"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", strings.Join(got, ", "), want)
	}
}
