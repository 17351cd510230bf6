package config_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// An unknown value can only come from the saved configuration of a newer version, since decoding
// rejects it. Treated as the default, a policy would allow what it forbids.
func TestUnknownEnumValuesAreErrors(t *testing.T) {
	for _, c := range []struct {
		kind  object.Kind
		spec  proto.Message
		field string
	}{
		{object.PeerAuthentication, &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: 17}}, "spec.mtls.mode"},
		{object.PeerAuthentication, &security.PeerAuthentication{
			PortLevelMtls: map[uint32]*security.PeerAuthentication_MutualTLS{80: {Mode: 17}},
		}, "spec.portLevelMtls[80].mode"},
		{object.ServiceEntry, &networking.ServiceEntry{
			Hosts: []string{"a.com"}, Resolution: 17, Ports: []*networking.ServicePort{{Number: 80, Name: "http"}},
		}, "spec.resolution"},
		{object.DestinationRule, &networking.DestinationRule{Host: "a", Subsets: []*networking.Subset{{
			Name: "v1", TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: 17}},
		}}}, "spec.subsets[0].trafficPolicy.tls.mode"},
		{object.Sidecar, &networking.Sidecar{
			Egress:                []*networking.IstioEgressListener{{Hosts: []string{"./*"}}},
			OutboundTrafficPolicy: &networking.OutboundTrafficPolicy{Mode: 17},
		}, "spec.outboundTrafficPolicy.mode"},
	} {
		o := object.Object{Key: object.Key{Kind: c.kind, Namespace: "n", Name: "a"}, Spec: c.spec}
		found := false
		for _, v := range config.Validate(o) {
			found = found || v.Severity == object.Error && v.Field == c.field && strings.HasPrefix(v.Text, "unknown value 17 of enum ")
		}
		if !found {
			t.Errorf("%s: want an error on %s, got %v", c.kind, c.field, config.Validate(o))
		}
	}
}
