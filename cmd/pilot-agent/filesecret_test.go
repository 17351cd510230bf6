package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/agenttest"
)

// TestFileSecretsReachEnvoy: a cluster that names a trust bundle gets it from the agent. A file that
// does not exist is reported, and affects neither other clusters nor the readiness of the Pod.
func TestFileSecretsReachEnvoy(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "")
	roots, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	term := pki.Validity{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
	root, err := pki.Sign(pki.RootTemplate("elsewhere.example", term), nil, roots.Public(), roots)
	if err != nil {
		t.Fatal(err)
	}
	a.Write("roots.pem", pki.EncodeCerts(root))
	there, missing := filepath.Join(a.Dir, "roots.pem"), filepath.Join(a.Dir, "none.pem")
	plane.Give(agenttest.ClusterType, map[string]proto.Message{
		"there": tlsCluster(t, "there", there), "missing": tlsCluster(t, "missing", missing),
	})
	plane.Start()
	a.Start()
	agenttest.Until(t, "Envoy has the bundle", func() error {
		code, body, err := a.Get(a.Admin, "/config_dump?resource=dynamic_active_secrets")
		if err == nil && (code != http.StatusOK || !strings.Contains(body, `"file-root:`+there+`"`)) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	agenttest.Until(t, "the proxy is ready, and says that a file is missing, but not which", func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err == nil && (code != http.StatusOK || !strings.Contains(body, "no such file") || strings.Contains(body, missing)) {
			err = fmt.Errorf("%d %q", code, body)
		}
		return err
	})
	if _, body, err := a.Get(a.Status, "/debug/status"); err != nil || !strings.Contains(body, missing) {
		t.Errorf("/debug/status does not name the file: %s (%v)", body, err)
	}
}

// tlsCluster is a cluster without endpoints that trusts what a file holds.
func tlsCluster(t *testing.T, name, file string) *clusterv3.Cluster {
	t.Helper()
	return secretCluster(t, name, "file-root:"+file, corev3.ApiConfigSource_GRPC)
}

// secretCluster is a cluster without endpoints that trusts a secret, which Envoy requests by a variant of the protocol.
func secretCluster(t *testing.T, name, secret string, variant corev3.ApiConfigSource_ApiType) *clusterv3.Cluster {
	t.Helper()
	context := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{
			Name: secret,
			SdsConfig: &corev3.ConfigSource{
				ResourceApiVersion: corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(time.Second),
				ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
					ApiType: variant, TransportApiVersion: corev3.ApiVersion_V3,
					GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
						EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "sds-grpc"},
					}}},
				}},
			},
		}},
	}}
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		TransportSocket: &corev3.TransportSocket{
			Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, context)},
		},
	}
}
