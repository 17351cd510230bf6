package sds

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/pki"
)

func TestRequestsAreReadAsEnvoyWritesThem(t *testing.T) {
	text, err := proto.Marshal(&discoveryv3.DiscoveryRequest{
		VersionInfo: "v", Node: &corev3.Node{Id: "n", Metadata: &structpb.Struct{}, Extensions: []*corev3.Extension{{Name: "x"}, {Name: "qat", Category: keyProviderCategory}}},
		ResourceNames: []string{"default", "ROOTCA"}, TypeUrl: TypeURL, ResponseNonce: "7",
		ErrorDetail: &statuspb.Status{Code: 13, Message: "bad key", Details: []*anypb.Any{{TypeUrl: "t"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &request{names: []string{"default", "ROOTCA"}, typeURL: TypeURL, nonce: "7", refused: true, reason: "bad key", client: extensions{listed: true, keyProviders: []string{"qat"}}}
	got, err := decode(text)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(request{}, extensions{})); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	for i := range text { // cut anywhere, it must not be read past its end
		_, _ = decode(text[:i])
	}
	if _, err := decode([]byte{0xff}); err == nil {
		t.Error("nonsense was read")
	}
}

func TestResponsesAreWrittenAsEnvoyReadsThem(t *testing.T) {
	inline := func(s string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(s)}}
	}
	want := &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: TypeURL, Nonce: "1"}
	const pair, roots = "file-cert:/c~/k", "file-root:/r"
	for _, s := range []*tlsv3.Secret{
		{Name: pair, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline("fc"), PrivateKey: inline("fk")}}},
		{Name: roots, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline("fr")}}},
		{Name: LeafName, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline("ca"), PrivateKey: inline("ka")}}},
		{Name: RootsName, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline("r")}}},
	} {
		a, err := anypb.New(s)
		if err != nil {
			t.Fatal(err)
		}
		want.Resources = append(want.Resources, a)
	}
	r := &response{version: "v", nonce: "1"}
	for _, name := range []string{pair, roots, LeafName, RootsName} {
		r.resources = append(r.resources, named{name: name, body: finds(secretA)(name).encode()})
	}
	got := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(r.encode(), got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func FuzzDecode(f *testing.F) {
	text, err := proto.Marshal(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"default"}, TypeUrl: TypeURL, ErrorDetail: &statuspb.Status{Message: "m"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		ours, err := decode(text)
		var theirs discoveryv3.DiscoveryRequest
		if proto.Unmarshal(text, &theirs) != nil || err != nil || len(theirs.GetResourceNames()) > maxNames {
			return
		}
		if d := cmp.Diff(theirs.GetResourceNames(), ours.names); d != "" || ours.typeURL != theirs.GetTypeUrl() || ours.nonce != theirs.GetResponseNonce() || ours.refused != (theirs.GetErrorDetail() != nil) {
			t.Errorf("%v read as %+v", &theirs, ours)
		}
	})
}

func FuzzDecodeDelta(f *testing.F) {
	text, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{
		ResourceNamesSubscribe: []string{"default"}, ResourceNamesUnsubscribe: []string{"ROOTCA"}, TypeUrl: TypeURL, ResponseNonce: "1",
		InitialResourceVersions: map[string]string{"default": "v"}, ErrorDetail: &statuspb.Status{Message: "m"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		ours, err := decodeDelta(text)
		var theirs discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(text, &theirs) != nil || err != nil || len(theirs.GetResourceNamesSubscribe())+len(theirs.GetResourceNamesUnsubscribe())+len(theirs.GetInitialResourceVersions()) > maxNames {
			return
		}
		if !slices.Equal(theirs.GetResourceNamesSubscribe(), ours.subscribe) || !slices.Equal(theirs.GetResourceNamesUnsubscribe(), ours.unsubscribe) ||
			!maps.Equal(theirs.GetInitialResourceVersions(), ours.versions) ||
			ours.typeURL != theirs.GetTypeUrl() || ours.nonce != theirs.GetResponseNonce() || ours.refused != (theirs.GetErrorDetail() != nil) {
			t.Errorf("%v read as %+v", &theirs, ours)
		}
	})
}

// FuzzStreams gives both variants of a stream one request after another. No request may crash the server, make it answer a
// name that was not requested, or keep more names than the bound.
func FuzzStreams(f *testing.F) {
	one, err := proto.Marshal(ask("", LeafName, "nosuch"))
	if err != nil {
		f.Fatal(err)
	}
	two, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{LeafName}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(one, one)
	f.Add(two, one)
	f.Add(two, two)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s, d := &stream{}, &delta{}
		for i, text := range [][]byte{first, second} {
			secret := []*pki.Secret{secretA, secretB}[i]
			if r, err := decode(text); err == nil {
				if _, err := s.request(r); err != nil {
					return
				}
				checkResponse(t, s.response(finds(secret)), s.names)
			}
			if r, err := decodeDelta(text); err == nil {
				if _, err := d.request(r); err != nil {
					return
				}
				checkResponse(t, d.response(finds(secret)), d.subscribed())
			}
		}
	})
}

func checkResponse(t *testing.T, r *response, names []string) {
	t.Helper()
	if len(names) > maxNames {
		t.Fatalf("%d names", len(names))
	}
	if r == nil {
		return
	}
	for _, n := range r.resources {
		if !slices.Contains(names, n.name) {
			t.Errorf("%q was not requested", n.name)
		}
	}
	into := proto.Message(&discoveryv3.DiscoveryResponse{})
	if r.delta {
		into = &discoveryv3.DeltaDiscoveryResponse{}
	}
	if err := proto.Unmarshal(r.encode(), into); err != nil {
		t.Errorf("the response cannot be read: %v", err)
	}
}

func TestKeyProviderAndRevocationListAreWrittenAsEnvoyReadsThem(t *testing.T) {
	var got tlsv3.Secret
	if err := proto.Unmarshal(encodeRoots(RootsName, []byte("r"), []byte("crl")), &got); err != nil {
		t.Fatal(err)
	}
	if v := got.GetValidationContext(); string(v.GetTrustedCa().GetInlineBytes()) != "r" || string(v.GetCrl().GetInlineBytes()) != "crl" {
		t.Errorf("roots: %v", &got)
	}
	for name, typ := range keyProviderTypes {
		p := &KeyProvider{Name: name, PollDelay: 2*time.Second + 3*time.Millisecond, Fallback: true}
		got.Reset()
		if err := proto.Unmarshal(encodePair(LeafName, []byte("c"), []byte("k"), p), &got); err != nil {
			t.Fatal(err)
		}
		c := got.GetTlsCertificate()
		if c.GetPrivateKey() != nil || string(c.GetCertificateChain().GetInlineBytes()) != "c" || c.GetPrivateKeyProvider().GetProviderName() != name || !c.GetPrivateKeyProvider().GetFallback() {
			t.Errorf("%s: %v", name, c)
		}
		config := c.GetPrivateKeyProvider().GetTypedConfig()
		if config.GetTypeUrl() != typ {
			t.Errorf("%s: type %s, want %s", name, config.GetTypeUrl(), typ)
		}
		// The types are in Envoy's contrib module: private_key = 1, poll_delay = 2.
		var key corev3.DataSource
		var delay durationpb.Duration
		err := fields(config.GetValue(), func(n protowire.Number, text []byte) error {
			if n == 1 {
				return proto.Unmarshal(text, &key)
			}
			return proto.Unmarshal(text, &delay)
		})
		if err != nil || string(key.GetInlineBytes()) != "k" || delay.AsDuration() != p.PollDelay {
			t.Errorf("%s: key %v, delay %v, error %v", name, &key, &delay, err)
		}
	}
}
