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

// An unknown value of what says which endpoints to prefer is told; the known ones are applied.
func TestTrafficDistribution(t *testing.T) {
	for value, want := range map[string]string{"PreferClose": "", "PreferSameZone": "", "PreferSameNode": "", "Nearby": `unknown preference "Nearby": want PreferClose, PreferSameZone or PreferSameNode`} {
		r := decode.Documents("a.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata: {name: a, annotations: {networking.istio.io/traffic-distribution: "+value+"}}\n"+
			"spec: {clusterIP: 10.96.0.1, trafficDistribution: "+value+", ports: [{port: 80}]}\n---\n"+
			"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a, annotations: {networking.istio.io/traffic-distribution: "+value+"}}\n"+
			"spec: {hosts: [a.example], ports: [{name: http, number: 80, protocol: HTTP}], resolution: DNS}\n"))
		if len(r.Objects) != 2 {
			t.Fatalf("%+v", r)
		}
		for i, fields := range [][]string{{"spec.trafficDistribution", "metadata.annotations[networking.istio.io/traffic-distribution]"}, {"metadata.annotations[networking.istio.io/traffic-distribution]"}} {
			var got, wanted []string
			for _, v := range config.Validate(r.Objects[i]) {
				got = append(got, v.Severity.String()+" "+v.Field+" "+v.Text)
			}
			for _, f := range fields {
				if want != "" {
					wanted = append(wanted, "warning "+f+" not applied: "+want)
				}
			}
			if strings.Join(got, ", ") != strings.Join(wanted, ", ") {
				t.Errorf("%s: %q, want %q", value, got, wanted)
			}
		}
	}
}
