package xds

import (
	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// Dump is what a view has in the form of Envoy's own config dump: a part for each type, in
// sending order.
func Dump(v *View) *adminv3.ConfigDump {
	out := &adminv3.ConfigDump{}
	for t := range numTypes {
		out.Configs = append(out.Configs, marshal.MustAny(types[t].dump(v.Of(t))))
	}
	return out
}

// DumpResources is what a view has of some types, the resources alone.
func DumpResources(v *View, of ...Type) *adminv3.ConfigDump {
	out := &adminv3.ConfigDump{}
	for _, t := range of {
		for r := range v.Of(t).All() {
			out.Configs = append(out.Configs, r.any())
		}
	}
	return out
}

// any decodes what was encoded when the resource was made.
func (r *Resource) any() *anypb.Any {
	a := &anypb.Any{}
	if err := proto.Unmarshal(r.Body, a); err != nil {
		panic("xds: body of " + r.Name + ": " + err.Error())
	}
	return a
}

func dumpClusters(resources TypeView) proto.Message {
	d := &adminv3.ClustersConfigDump{}
	for r := range resources.All() {
		d.DynamicActiveClusters = append(d.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: r.Version, Cluster: r.any()})
	}
	return d
}

func dumpEndpoints(resources TypeView) proto.Message {
	d := &adminv3.EndpointsConfigDump{}
	for r := range resources.All() {
		d.DynamicEndpointConfigs = append(d.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: r.Version, EndpointConfig: r.any()})
	}
	return d
}

func dumpListeners(resources TypeView) proto.Message {
	d := &adminv3.ListenersConfigDump{}
	for r := range resources.All() {
		d.DynamicListeners = append(d.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: r.Name, ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{VersionInfo: r.Version, Listener: r.any()},
		})
	}
	return d
}

func dumpRoutes(resources TypeView) proto.Message {
	d := &adminv3.RoutesConfigDump{}
	for r := range resources.All() {
		d.DynamicRouteConfigs = append(d.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: r.Version, RouteConfig: r.any()})
	}
	return d
}
