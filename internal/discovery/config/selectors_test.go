package config_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
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
