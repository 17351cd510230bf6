package xds

import (
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// Dump is what a view has in the form of Envoy's own config dump: a part for each type, in
// sending order. Virtual hosts are in their route configurations, with the names that they have in whole ones.
func Dump(v *View) *adminv3.ConfigDump {
	out := &adminv3.ConfigDump{}
	for t := range numTypes {
		if dump := types[t].dump; dump != nil {
			out.Configs = append(out.Configs, marshal.MustAny(dump(v)))
		}
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
	if err := proto.Unmarshal(r.Encoded(), a); err != nil {
		panic("xds: body of " + r.Name + ": " + err.Error())
	}
	return a
}

func dumpClusters(v *View) proto.Message {
	d := &adminv3.ClustersConfigDump{}
	for r := range v.Of(CDS).All() {
		d.DynamicActiveClusters = append(d.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: r.Version, Cluster: r.any()})
	}
	return d
}

func dumpEndpoints(v *View) proto.Message {
	d := &adminv3.EndpointsConfigDump{}
	for r := range v.Of(EDS).All() {
		d.DynamicEndpointConfigs = append(d.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: r.Version, EndpointConfig: r.any()})
	}
	return d
}

func dumpExtensions(v *View) proto.Message {
	d := &adminv3.EcdsConfigDump{}
	for r := range v.Of(ECDS).All() {
		d.EcdsFilters = append(d.EcdsFilters, &adminv3.EcdsConfigDump_EcdsFilterConfig{VersionInfo: r.Version, EcdsFilter: r.any()})
	}
	return d
}

func dumpListeners(v *View) proto.Message {
	d := &adminv3.ListenersConfigDump{}
	for r := range v.Of(LDS).All() {
		d.DynamicListeners = append(d.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: r.Name, ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{VersionInfo: r.Version, Listener: r.any()},
		})
	}
	return d
}

func dumpRoutes(v *View) proto.Message {
	d := &adminv3.RoutesConfigDump{}
	hosts := virtualHosts(v)
	for r := range v.Of(RDS).All() {
		config := r.any()
		if separate := hosts[r.Name]; len(separate) > 0 {
			config = withVirtualHosts(r, separate)
		}
		d.DynamicRouteConfigs = append(d.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: r.Version, RouteConfig: config})
	}
	return d
}

// virtualHosts are the view's virtual hosts by the names of their route configurations.
func virtualHosts(v *View) map[string][]*routev3.VirtualHost {
	out := map[string][]*routev3.VirtualHost{}
	for r := range v.Of(VHDS).All() {
		h := &routev3.VirtualHost{}
		if err := r.any().UnmarshalTo(h); err != nil {
			panic("xds: body of " + r.Name + ": " + err.Error())
		}
		routes := routesOf(r.Name)
		h.Name = strings.TrimPrefix(h.Name, routes+"/")
		out[routes] = append(out[routes], h)
	}
	return out
}

// withVirtualHosts is a route configuration with more virtual hosts, which come first as in a whole one.
func withVirtualHosts(r *Resource, hosts []*routev3.VirtualHost) *anypb.Any {
	config := &routev3.RouteConfiguration{}
	if err := r.any().UnmarshalTo(config); err != nil {
		panic("xds: body of " + r.Name + ": " + err.Error())
	}
	config.VirtualHosts = append(hosts, config.VirtualHosts...)
	return marshal.MustAny(config)
}
