package sds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestRequestsAreReadAsEnvoyWritesThem(t *testing.T) {
	text, err := proto.Marshal(&discoveryv3.DiscoveryRequest{
		VersionInfo: "v", Node: &corev3.Node{Id: "n", Metadata: &structpb.Struct{}, Extensions: []*corev3.Extension{{Name: "x"}}},
		ResourceNames: []string{"default", "ROOTCA"}, TypeUrl: TypeURL, ResponseNonce: "7",
		ErrorDetail: &statuspb.Status{Code: 13, Message: "bad key", Details: []*anypb.Any{{TypeUrl: "t"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &request{names: []string{"default", "ROOTCA"}, typeURL: TypeURL, nonce: "7", refused: true, reason: "bad key"}
	got, err := decode(text)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(request{})); err != nil || d != "" {
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
	r := &response{version: "v", nonce: "1", resources: [][]byte{
		encodeSecret(fileSecrets[pair], pair), encodeSecret(fileSecrets[roots], roots), encodeSecret(secretA, LeafName), encodeSecret(secretA, RootsName),
	}}
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
