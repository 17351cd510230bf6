package sds

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// TestAKeyProviderThatEnvoyLacks: Envoy rejects a secret with a provider that it does not know, whatever its fallback says.
func TestAKeyProviderThatEnvoyLacks(t *testing.T) {
	with, other := &corev3.Extension{Name: "cryptomb", Category: keyProviderCategory}, &corev3.Extension{Name: "cryptomb", Category: "envoy.filters.http"}
	const (
		provided, plain, refused = "provider", "key", "problem"
		tellsPlain, tellsRefused = "uses the workload's key itself", `no private key provider \"cryptomb\"`
	)
	for name, tt := range map[string]struct {
		extensions  []*corev3.Extension
		fallback    bool
		gives, says string
	}{
		"it has it":                     {[]*corev3.Extension{other, with}, false, provided, ""},
		"a client without a list":       {nil, false, provided, ""},
		"missing, with a fallback":      {[]*corev3.Extension{other}, true, plain, tellsPlain},
		"missing, without a fallback":   {[]*corev3.Extension{other}, false, refused, tellsRefused},
		"there, and a fallback as well": {[]*corev3.Extension{with}, true, provided, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := config(filepath.Join(t.TempDir(), "socket"), &value{s: secretA})
			c.KeyProvider, c.Log = &KeyProvider{Name: "cryptomb", PollDelay: 1, Fallback: tt.fallback}, slog.New(slog.NewTextHandler(&log, nil))
			client := dial(t, serveConfig(t, c))
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			node := &corev3.Node{Id: "n", Extensions: tt.extensions}

			is := func(what, problem, got string) {
				t.Helper()
				if problem != "" {
					got = refused
					if !strings.Contains(problem, "set privateKeyProvider.cryptomb.fallback") {
						t.Errorf("%s: problem %q", what, problem)
					}
				}
				if got != tt.gives {
					t.Errorf("%s: gives %s, want %s", what, got, tt.gives)
				}
			}
			world, err := client.StreamSecrets(ctx)
			if err != nil {
				t.Fatal(err)
			}
			// A request after the first has no node.
			for _, r := range []*discoveryv3.DiscoveryRequest{{Node: node, ResourceNames: []string{RootsName}}, {ResourceNames: []string{LeafName}}} {
				if err := world.Send(r); err != nil {
					t.Fatal(err)
				}
				got, err := world.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if r.GetNode() == nil {
					is("StreamSecrets", problemOf(got.GetResourceErrors()), keyOf(t, got))
				}
			}
			delta, err := client.DeltaSecrets(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, ResourceNamesSubscribe: []string{LeafName}}); err != nil {
				t.Fatal(err)
			}
			got, err := delta.Recv()
			if err != nil {
				t.Fatal(err)
			}
			world2 := &discoveryv3.DiscoveryResponse{}
			for _, r := range got.GetResources() {
				world2.Resources = append(world2.Resources, r.GetResource())
			}
			is("DeltaSecrets", problemOf(got.GetResourceErrors()), keyOf(t, world2))
			one, err := client.FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{Node: node, ResourceNames: []string{LeafName}})
			if err != nil {
				is("FetchSecrets", err.Error(), "")
			} else {
				is("FetchSecrets", "", keyOf(t, one))
			}
			if got := log.String(); !strings.Contains(got, tt.says) || tt.says == "" && got != "" {
				t.Errorf("logs %s, want %q", got, tt.says)
			}
			if n := strings.Count(log.String(), tellsPlain); n > 1 {
				t.Errorf("it is told %d times that the key is used, want once", n)
			}
		})
	}
}

func problemOf(errors []*discoveryv3.ResourceError) string {
	if len(errors) == 0 {
		return ""
	}
	return errors[0].GetErrorDetail().GetMessage()
}

// keyOf says how the one secret in r has its key.
func keyOf(t *testing.T, r *discoveryv3.DiscoveryResponse) string {
	t.Helper()
	for _, s := range secretsIn(t, r) {
		switch {
		case s.GetTlsCertificate().GetPrivateKeyProvider() != nil:
			return "provider"
		case s.GetTlsCertificate().GetPrivateKey() != nil:
			return "key"
		}
	}
	return "nothing"
}
