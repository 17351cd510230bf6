package xds

import (
	"context"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The services of single types, next to the aggregated one. A client has a stream for each, so that
// the order in which types are sent cannot be kept between them: each stream has a Sub of its own.

// registerSingle adds the services of single types to a gRPC server.
func (v *service) registerSingle(g grpc.ServiceRegistrar) {
	clusterservice.RegisterClusterDiscoveryServiceServer(g, v)
	endpointservice.RegisterEndpointDiscoveryServiceServer(g, v)
	extensionservice.RegisterExtensionConfigDiscoveryServiceServer(g, v)
	listenerservice.RegisterListenerDiscoveryServiceServer(g, v)
	routeservice.RegisterRouteDiscoveryServiceServer(g, v)
}

// StreamClusters implements the cluster discovery service, state-of-the-world.
func (v *service) StreamClusters(g clusterservice.ClusterDiscoveryService_StreamClustersServer) error {
	return v.serve(g, false, CDS)
}

// DeltaClusters implements the cluster discovery service, incremental.
func (v *service) DeltaClusters(g clusterservice.ClusterDiscoveryService_DeltaClustersServer) error {
	return v.serve(g, true, CDS)
}

// StreamEndpoints implements the endpoint discovery service, state-of-the-world.
func (v *service) StreamEndpoints(g endpointservice.EndpointDiscoveryService_StreamEndpointsServer) error {
	return v.serve(g, false, EDS)
}

// DeltaEndpoints implements the endpoint discovery service, incremental.
func (v *service) DeltaEndpoints(g endpointservice.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return v.serve(g, true, EDS)
}

// StreamExtensionConfigs implements the extension configuration discovery service, state-of-the-world.
func (v *service) StreamExtensionConfigs(g extensionservice.ExtensionConfigDiscoveryService_StreamExtensionConfigsServer) error {
	return v.serve(g, false, ECDS)
}

// DeltaExtensionConfigs implements the extension configuration discovery service, incremental.
func (v *service) DeltaExtensionConfigs(g extensionservice.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer) error {
	return v.serve(g, true, ECDS)
}

// StreamListeners implements the listener discovery service, state-of-the-world.
func (v *service) StreamListeners(g listenerservice.ListenerDiscoveryService_StreamListenersServer) error {
	return v.serve(g, false, LDS)
}

// DeltaListeners implements the listener discovery service, incremental.
func (v *service) DeltaListeners(g listenerservice.ListenerDiscoveryService_DeltaListenersServer) error {
	return v.serve(g, true, LDS)
}

// StreamRoutes implements the route discovery service, state-of-the-world.
func (v *service) StreamRoutes(g routeservice.RouteDiscoveryService_StreamRoutesServer) error {
	return v.serve(g, false, RDS)
}

// DeltaRoutes implements the route discovery service, incremental.
func (v *service) DeltaRoutes(g routeservice.RouteDiscoveryService_DeltaRoutesServer) error {
	return v.serve(g, true, RDS)
}

// FetchClusters returns an error: see refuseFetch.
func (v *service) FetchClusters(context.Context, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	return refuseFetch("Clusters")
}

// FetchEndpoints returns an error: see refuseFetch.
func (v *service) FetchEndpoints(context.Context, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	return refuseFetch("Endpoints")
}

// FetchExtensionConfigs returns an error: see refuseFetch.
func (v *service) FetchExtensionConfigs(context.Context, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	return refuseFetch("ExtensionConfigs")
}

// FetchListeners returns an error: see refuseFetch.
func (v *service) FetchListeners(context.Context, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	return refuseFetch("Listeners")
}

// FetchRoutes returns an error: see refuseFetch.
func (v *service) FetchRoutes(context.Context, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	return refuseFetch("Routes")
}

// refuseFetch refuses a single request: it has no acknowledgement, so that nothing of a proxy's state could
// be known.
func refuseFetch(what string) (*discoveryv3.DiscoveryResponse, error) {
	return nil, status.Errorf(codes.Unimplemented, "Fetch%[1]s is not served: use Stream%[1]s or Delta%[1]s", what)
}
