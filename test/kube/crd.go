package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/gateway-api/pkg/consts" // the module whose files are read

	"github.com/pilothouse/pilothouse/test/require"
)

// CRDs is a set of custom resource definitions.
type CRDs struct{ module, pattern string }

// The sets, of the versions that go.mod has.
var (
	Istio                  = CRDs{"istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml"}
	GatewayAPI             = CRDs{gatewayModule, "config/crd/standard/*.yaml"}
	GatewayAPIEarlier      = CRDs{gatewayModule, "config/crd/standard/gateway.networking.k8s.io_[bghr]*.yaml"} // without the kinds that came last: ListenerSet and those of routes of TCP, TLS and UDP
	GatewayAPIExperimental = CRDs{gatewayModule, "config/crd/experimental/gateway*.yaml"}                      // instead of GatewayAPI
)

const gatewayModule = "sigs.k8s.io/gateway-api"

// GatewayAPIVersion is the version of the sets GatewayAPI and GatewayAPIExperimental.
const GatewayAPIVersion = consts.BundleVersion

var (
	crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	crdKind     = "CustomResourceDefinition"
)

// InstallCRDs installs sets of CRDs, where they are not installed yet, and waits until all their kinds are served. They
// stay for other tests. All at once is faster than one after another.
func (c *Cluster) InstallCRDs(t testing.TB, sets ...CRDs) {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, s := range sets {
		crds, err := s.Objects()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, crds...)
	}
	if err := c.InstallObjects(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

// Objects reads the definitions of the set from the module in the module cache of Go.
func (s CRDs) Objects() ([]*unstructured.Unstructured, error) {
	root, err := require.Repository()
	if err != nil {
		return nil, err
	}
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", s.module)
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find the CRDs of %s: go list -m: %w", s.module, err)
	}
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), s.pattern))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("find the CRDs of %s: no file matches %s (%w)", s.module, s.pattern, err)
	}
	var crds []*unstructured.Unstructured
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		objects, err := Decode(string(text))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, o := range objects {
			if o.GetKind() == crdKind { // Gateway API has an admission policy next to them
				crds = append(crds, o)
			}
		}
	}
	return crds, nil
}

// InstallObjects creates CRDs, where they do not exist yet, and waits until all their kinds are served.
func (c *Cluster) InstallObjects(ctx context.Context, crds []*unstructured.Unstructured) error {
	client := c.Dynamic.Resource(crdResource)
	err := parallel(ctx, len(crds), func(ctx context.Context, n int) error {
		_, err := client.Create(ctx, crds[n], metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("install %s: %w", describe(crds[n]), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.served(ctx, crds)
}

// served waits until discovery has the kinds of CRDs: it learns of them last.
func (c *Cluster) served(ctx context.Context, crds []*unstructured.Unstructured) error {
	resources := servedResources(crds)
	return c.until(ctx, "discovery has the kinds of all CRDs", func(context.Context) error {
		c.Mapper.Reset()
		for _, r := range resources {
			if _, err := c.Mapper.KindFor(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// servedResources lists the resources of all versions of CRDs that are served.
func servedResources(crds []*unstructured.Unstructured) []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, crd := range crds {
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, v := range versions {
			version, _ := v.(map[string]any)
			name, _ := version["name"].(string)
			if served, _ := version["served"].(bool); served {
				out = append(out, schema.GroupVersionResource{Group: group, Version: name, Resource: plural})
			}
		}
	}
	return out
}
