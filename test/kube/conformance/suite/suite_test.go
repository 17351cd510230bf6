// Package suite_test is the conformance suite of the Gateway API, as a program that runs in a Pod.
//
// In a cluster in which this mesh is installed it reaches the Gateways' addresses as clients do, and the API server with its ServiceAccount. What it runs
// and with which options is said by the variables of its environment; the report is written to a ConfigMap.
package suite_test

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

func TestConformance(t *testing.T) {
	o := conformance.DefaultOptions(t)
	o.GatewayClassName = "istio"
	o.Implementation = confv1.Implementation{
		Organization: "pilothouse", Project: "pilothouse", URL: "https://github.com/pilothouse/pilothouse",
		Version: os.Getenv("VERSION"), Contact: []string{"https://github.com/pilothouse/pilothouse/issues"},
	}
	for _, p := range list("PROFILES") {
		o.ConformanceProfiles = append(o.ConformanceProfiles, suite.ConformanceProfileName(p))
	}
	for _, f := range list("FEATURES") {
		o.SupportedFeatures = append(o.SupportedFeatures, features.FeatureName(f))
	}
	address := func(variable string) []gatewayv1.GatewaySpecAddress {
		kind := gatewayv1.IPAddressType
		return []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: os.Getenv(variable)}}
	}
	o.UsableNetworkAddresses, o.UnusableNetworkAddresses = address("USABLE"), address("UNUSABLE")
	o.ManifestFS = append([]fs.FS{injected(t)}, o.ManifestFS...)
	o.SkipTests = list("SKIP")
	if run := os.Getenv("RUN"); strings.Contains(run, "*") {
		for _, one := range tests.ConformanceTests {
			if fits, err := path.Match(run, one.ShortName); err != nil {
				t.Fatal(err)
			} else if !fits {
				o.SkipTests = append(o.SkipTests, one.ShortName)
			}
		}
	} else {
		o.RunTest = run
	}
	o.ReportOutputPath = "/tmp/report.yaml"
	o.TimeoutConfig.NamespacesMustBeReady = 5 * time.Minute
	o.TimeoutConfig.MaxTimeToConsistency = 30 * time.Second
	o.TimeoutConfig.TestIsolation = 0
	// Runs after the suite's own cleanup, which writes the report.
	t.Cleanup(func() {
		report, err := os.ReadFile(o.ReportOutputPath)
		if err != nil {
			t.Error(err)
			return
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "report"}, Data: map[string]string{"report.yaml": string(report)}}
		if _, err := o.Clientset.CoreV1().ConfigMaps(os.Getenv("NAMESPACE")).Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	conformance.RunConformanceWithOptions(t, o)
}

// injected are the manifests of the mesh tests with namespaces whose Pods get a sidecar.
func injected(t *testing.T) fs.FS {
	const name, label = "mesh/manifests.yaml", "gateway-conformance: mesh"
	text, err := fs.ReadFile(conformance.Manifests, name)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), label); n != 2 {
		t.Fatalf("%s has %d namespaces, want 2", name, n)
	}
	return fstest.MapFS{name: {Data: []byte(strings.ReplaceAll(string(text), label, "istio-injection: enabled\n    "+label))}}
}

// list is a variable with words.
func list(name string) []string { return strings.Fields(os.Getenv(name)) }
