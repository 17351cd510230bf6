package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensions "istio.io/api/extensions/v1alpha1"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1 "istio.io/api/type/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// dice turns bytes into choices; past the end everything is 0.
type dice struct{ data []byte }

func (d *dice) roll(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

func (d *dice) oneIn(n int) bool { return d.roll(n) == 0 }

func pick[T any](d *dice, list ...T) T { return list[d.roll(len(list))] }

// The pools from which everything takes its names, small so that objects meet.
var (
	spaces   = []string{"x", "y", "istio-system"}
	names    = []string{"a", "b", "c", "d", "e"}
	versions = []string{"v1", "v2"}
	clusters = []string{"", "", "two"} // "" is the control plane's own
	networks = []string{"", "net-1", "net-2"}
	foreign  = []string{"out.example.com", "*.example.com", "a.x.svc.cluster.local", "a", "a.x"}
)

func (d *dice) ip() string { return fmt.Sprintf("10.9.0.%d", 1+d.roll(5)) }

func (d *dice) host() string {
	switch d.roll(6) {
	case 0:
		return pick(d, foreign...)
	case 1:
		return pick(d, names...) + "." + pick(d, spaces...) + ".svc.cluster.local"
	case 2:
		return "*." + pick(d, spaces...) + ".svc.cluster.local"
	}
	return pick(d, names...)
}

func (d *dice) labels() map[string]string {
	l := map[string]string{"app": pick(d, names...)}
	if d.oneIn(2) {
		l["version"] = pick(d, versions...)
	}
	if d.oneIn(4) {
		l["gateway.networking.k8s.io/gateway-name"] = pick(d, names...)
	}
	return l
}

func (d *dice) exportTo() []string {
	return pick(d, nil, nil, []string{"*"}, []string{"."}, []string{"x"}, []string{"y", "."})
}

// change makes a random change to a random object: a new value three times of four.
func (d *dice) change() object.Change {
	kind := pick(d, object.Service, object.Pod, object.Pod, object.EndpointSlice, object.ServiceEntry, object.WorkloadEntry,
		object.VirtualService, object.VirtualService, object.DestinationRule, object.PeerAuthentication, object.AuthorizationPolicy, object.RequestAuthentication, object.Sidecar, object.EnvoyFilter, object.EnvoyFilter, object.WasmPlugin, object.TrafficExtension, object.Telemetry, object.Telemetry, object.Namespace, object.Node, object.Gateway,
		object.KubernetesGateway, object.ListenerSet, object.HTTPRoute, object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute, object.ReferenceGrant, object.GatewayClass, object.BackendTLSPolicy, object.ConfigMap,
		object.Ingress, object.Ingress, object.IngressClass)
	key := object.Key{Kind: kind, Namespace: pick(d, spaces...), Name: pick(d, names...)}
	switch kind {
	case object.Namespace, object.Node:
		key.Name, key.Namespace = pick(d, spaces...), ""
		key.Cluster = pick(d, clusters...)
	case object.GatewayClass, object.IngressClass:
		key.Name, key.Namespace = "istio", ""
	case object.Service, object.Pod, object.EndpointSlice:
		key.Cluster = pick(d, clusters...)
	}
	if d.oneIn(4) {
		return object.Change{Key: key}
	}
	o := &object.Object{Key: key, Meta: object.Meta{Created: time.Unix(int64(d.roll(3)), 0)}}
	switch kind {
	case object.Namespace:
		o.Meta.Labels = map[string]string{"topology.istio.io/network": pick(d, networks...)}
	case object.Node:
		o.Spec = &object.NodeSpec{Region: pick(d, "r1", "r2"), Zone: pick(d, "z1", "z2")}
	case object.Service:
		o.Spec = d.service(o)
		if d.oneIn(3) {
			o.Meta.Labels = map[string]string{"topology.istio.io/network": pick(d, networks...)}
			o.Spec.(*object.ServiceSpec).ExternalAddresses = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 1+d.roll(2)))}
			o.Spec.(*object.ServiceSpec).ExternalHostnames = pick(d, nil, []string{"lb.example.com"})
		}
		if d.oneIn(3) {
			if o.Meta.Labels == nil {
				o.Meta.Labels = map[string]string{}
			}
			o.Meta.Labels[pick(d, mesh.SessionLabel, mesh.SessionHeaderLabel)] = pick(d, "one", "two")
		}
	case object.Pod:
		o.Meta.Labels = d.labels()
		if d.oneIn(2) {
			o.Meta.Labels["security.istio.io/tlsMode"] = "istio"
		}
		if d.oneIn(6) {
			o.Meta.Labels[mesh.DrainingLabel] = "true"
		}
		if d.oneIn(3) {
			o.Meta.Labels["istio-locality"] = pick(d, "r1.z1", "r1.z2", "r2.z1")
		}
		o.Spec = &object.PodSpec{
			IPs: []netip.Addr{netip.MustParseAddr(d.ip())}, Ready: !d.oneIn(4), ServiceAccount: pick(d, "", "one", "two"),
			Ports: []object.ContainerPort{{Name: "named", Port: uint32(8000 + d.roll(3))}}, NodeName: pick(d, "", "x", "y"),
		}
	case object.EndpointSlice:
		o.Spec = &object.EndpointSliceSpec{
			Service:   pick(d, names...),
			Ports:     []object.SlicePort{{Name: "http", Port: uint32(8080 + d.roll(2))}},
			Endpoints: []object.SliceEndpoint{{Addresses: []netip.Addr{netip.MustParseAddr(d.ip())}, Ready: !d.oneIn(3), Terminating: d.oneIn(4), Serving: !d.oneIn(4), Pod: pick(d, names...)}},
		}
	case object.ServiceEntry:
		o.Spec = d.serviceEntry()
	case object.WorkloadEntry:
		o.Spec = &networking.WorkloadEntry{Address: d.ip(), Labels: d.labels(), ServiceAccount: pick(d, "", "vm"), Weight: uint32(d.roll(3))}
	case object.VirtualService:
		o.Spec = d.virtualService()
	case object.DestinationRule:
		o.Spec = d.destinationRule()
	case object.PeerAuthentication:
		o.Spec = d.peerAuthentication()
	case object.AuthorizationPolicy:
		o.Spec = d.authorizationPolicy()
		o.Meta.Annotations = pick(d, nil, nil, map[string]string{"istio.io/dry-run": "true"})
	case object.RequestAuthentication:
		o.Spec = d.requestAuthentication()
	case object.Telemetry:
		o.Spec = d.telemetry()
	case object.Sidecar:
		o.Spec = d.sidecar()
	case object.EnvoyFilter:
		o.Spec = d.envoyFilter()
	case object.WasmPlugin:
		o.Spec = d.wasmPlugin()
	case object.TrafficExtension:
		o.Spec = d.trafficExtension()
	case object.IngressClass:
		o.Spec = &object.IngressClassSpec{Controller: pick(d, mesh.IngressController, mesh.IngressController, "example.com/other")}
	case object.Ingress:
		o.Spec = d.ingress()
		if d.oneIn(3) {
			o.Meta.Annotations = map[string]string{object.IngressClassAnnotation: pick(d, "istio", "istio", "other", "")}
		}
	case object.ConfigMap:
		o.Spec = &object.ConfigMapSpec{Data: map[string]string{pick(d, "ca.crt", "ca.crt", "other"): pick(d, otherRoot, otherRoot, "")}}
	case object.Gateway:
		o.Spec = &networking.Gateway{Selector: map[string]string{"app": pick(d, names...)}, Servers: d.servers()}
	default:
		o.Spec = d.gatewayAPI(kind)
	}
	return object.Change{Key: key, Object: o}
}

// servers are up to three of a Gateway.
func (d *dice) servers() (out []*networking.Server) {
	for range 1 + d.roll(3) {
		s := &networking.Server{Hosts: []string{pick(d, "*", "*.local", "./*", "x/*.local", "a.x.svc.cluster.local", "*.example.com", "out.example.com")}}
		if d.oneIn(3) {
			s.Port = &networking.Port{Number: pick[uint32](d, 15443, 15444), Protocol: "TLS"}
			s.Tls = &networking.ServerTLSSettings{Mode: pick(d, networking.ServerTLSSettings_AUTO_PASSTHROUGH, networking.ServerTLSSettings_SIMPLE)}
		} else if d.oneIn(3) {
			s.Port = &networking.Port{Number: pick[uint32](d, 443, 15444, 81), Name: pick(d, "one", "two"), Protocol: pick(d, "HTTPS", "TLS", "TCP")}
			s.Tls = pick(d, nil, &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_ISTIO_MUTUAL}, &networking.ServerTLSSettings{},
				&networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, ServerCertificate: "/c", PrivateKey: "/k"})
		} else {
			s.Port = &networking.Port{Number: pick[uint32](d, 80, 81, 15443), Protocol: pick(d, "HTTP", "HTTP2", "GRPC")}
			s.Tls = pick(d, nil, nil, &networking.ServerTLSSettings{HttpsRedirect: true})
			s.Bind = pick(d, "", "", "10.9.0.4")
		}
		out = append(out, s)
	}
	return out
}

// meshNetworks are networks by range, by cluster and by the name of a Service; nil for none.
func (d *dice) meshNetworks() *meshv1.MeshNetworks {
	if d.oneIn(3) {
		return nil
	}
	n := &meshv1.Network{}
	if d.oneIn(2) {
		n.Endpoints = []*meshv1.Network_NetworkEndpoints{{Ne: &meshv1.Network_NetworkEndpoints_FromCidr{FromCidr: pick(d, "10.9.0.0/30", "10.0.0.0/8")}}}
	} else {
		n.Endpoints = []*meshv1.Network_NetworkEndpoints{{Ne: &meshv1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "two"}}}
	}
	if d.oneIn(2) {
		n.Gateways = []*meshv1.Network_IstioNetworkGateway{{Gw: &meshv1.Network_IstioNetworkGateway_Address{Address: "192.0.2.9"}}}
	} else {
		n.Gateways = []*meshv1.Network_IstioNetworkGateway{{Gw: &meshv1.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: "a.x.svc.cluster.local"}, Port: 443}}
	}
	return &meshv1.MeshNetworks{Networks: map[string]*meshv1.Network{pick(d, "net-1", "net-2"): n}}
}

// denials are up to two, in place of policies that are broken.
func (d *dice) denials() []model.Denial {
	var out []model.Denial
	for i := range d.roll(3) {
		out = append(out, model.Denial{
			Name: names[i], Namespace: pick(d, "", "x", "y", "istio-system"), Labels: pick(d, "", "app=a", "app=b"), Everything: d.oneIn(2),
		})
	}
	return out
}

func (d *dice) service(o *object.Object) *object.ServiceSpec {
	s := &object.ServiceSpec{Selector: map[string]string{"app": pick(d, names...)}}
	switch d.roll(5) {
	case 0:
		s.Headless = true
	case 1:
		s.Type, s.ExternalName, s.Selector = "ExternalName", pick(d, "out.example.com", d.host(), d.host()), nil
	default:
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", 1+d.roll(4)))}
	}
	s.TrafficDistribution = pick(d, "", "", "PreferSameZone", "PreferSameNode")
	s.NodeLocal = d.oneIn(4)
	if e := d.exportTo(); len(e) > 0 {
		o.Meta.Annotations = map[string]string{"networking.istio.io/exportTo": e[0]}
	}
	for _, p := range []object.ServicePort{
		{Name: "http", Port: 80, TargetPort: 8080}, {Name: "tcp", Port: 90}, {Name: "auto", Port: 80},
		{Name: "grpc", Port: 81, TargetName: "named"}, {Name: "https", Port: 443}, {Name: "mysql", Port: 90}, {Name: "udp", Port: 53, Protocol: "UDP"},
	} {
		free := true
		for _, q := range s.Ports {
			free = free && q.Port != p.Port
		}
		if free && d.oneIn(2) {
			s.Ports = append(s.Ports, p)
		}
	}
	return s
}

func (d *dice) serviceEntry() *networking.ServiceEntry {
	s := &networking.ServiceEntry{
		Hosts:      []string{pick(d, foreign...)},
		Location:   networking.ServiceEntry_Location(d.roll(2)),
		Resolution: networking.ServiceEntry_Resolution(d.roll(5)),
		ExportTo:   d.exportTo(),
		Ports: []*networking.ServicePort{pick(d,
			&networking.ServicePort{Number: 80, Name: "http", Protocol: "HTTP"}, &networking.ServicePort{Number: 443, Name: "tls", Protocol: "TLS"},
			&networking.ServicePort{Number: 90, Name: "tcp", Protocol: "TCP"}, &networking.ServicePort{Number: 80, Name: "any"})},
	}
	if d.oneIn(2) { // so that some are one service
		s.Hosts, s.Location, s.Resolution, s.ExportTo = []string{"out.example.com"}, 0, pick(d, networking.ServiceEntry_STATIC, networking.ServiceEntry_DNS), pick(d, nil, nil, []string{"."})
	}
	if d.oneIn(2) {
		s.Addresses = []string{pick(d, "10.97.0.1", "10.97.0.0/16", "10.96.0.1")}
	}
	switch {
	case d.oneIn(3):
		s.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": pick(d, names...)}}
	case d.oneIn(2):
		s.Endpoints = []*networking.WorkloadEntry{{Address: d.ip(), Locality: pick(d, "", "r1/z1", "r2/z1"), Labels: d.labels()}}
	}
	return s
}

func (d *dice) virtualService() *networking.VirtualService {
	v := &networking.VirtualService{Hosts: []string{d.host()}, ExportTo: d.exportTo(), Gateways: pick(d, nil, nil, []string{"mesh"}, []string{"a", "x/b"}, []string{"x/a", "mesh", "y/b", "c"})}
	for range 1 + d.roll(2) {
		h := &networking.HTTPRoute{Name: pick(d, "", "one")}
		if d.oneIn(2) {
			m := &networking.HTTPMatchRequest{}
			switch d.roll(5) {
			case 4:
				m.Gateways = pick(d, []string{"mesh"}, []string{"a"}, []string{"x/a"})
			case 0:
				m.SourceLabels = map[string]string{"app": pick(d, names...)}
			case 1:
				m.SourceNamespace = pick(d, spaces...)
			case 2:
				m.Port = pick(d, uint32(80), 81)
			default:
				m.Headers = map[string]*networking.StringMatch{"x-h": {MatchType: &networking.StringMatch_Exact{Exact: pick(d, names...)}}}
			}
			h.Match = []*networking.HTTPMatchRequest{m}
		}
		weight := int32(d.roll(101))
		h.Route = []*networking.HTTPRouteDestination{
			{Destination: &networking.Destination{Host: d.host(), Subset: pick(d, "", "v1", "v2")}, Weight: weight},
			{Destination: &networking.Destination{Host: d.host(), Port: &networking.PortSelector{Number: pick(d, uint32(80), 90)}}, Weight: 100 - weight},
		}
		v.Http = append(v.Http, h)
	}
	if d.oneIn(5) { // a delegate
		v.Hosts, v.Gateways = nil, nil
		return v
	}
	for len(d.data) > 0 && d.oneIn(3) { // past the end all dice are 0
		h := &networking.HTTPRoute{Delegate: &networking.Delegate{Name: pick(d, names...), Namespace: pick(d, append(spaces, "")...)}}
		if d.oneIn(2) {
			h.Match = []*networking.HTTPMatchRequest{{
				SourceLabels: pick(d, nil, nil, map[string]string{"version": pick(d, versions...)}), SourceNamespace: pick(d, "", pick(d, spaces...)),
				Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: "/d"}},
			}}
		}
		v.Http = append([]*networking.HTTPRoute{h}, v.Http...)
	}
	d.connectionRoutes(v)
	return v
}

// connectionRoutes adds tls and tcp routes, one of each kind to every second VirtualService.
func (d *dice) connectionRoutes(v *networking.VirtualService) {
	to := func() []*networking.RouteDestination {
		one := &networking.RouteDestination{Destination: &networking.Destination{Host: d.host(), Port: pick(d, nil, &networking.PortSelector{Number: 90})}}
		if d.oneIn(2) {
			return []*networking.RouteDestination{one}
		}
		one.Weight = int32(d.roll(101))
		return []*networking.RouteDestination{one, {Destination: &networking.Destination{Host: d.host(), Subset: pick(d, "", "v1")}, Weight: 100 - one.Weight}}
	}
	subnets := func() []string {
		return pick(d, nil, nil, []string{"10.97.0.0/16"}, []string{"10.96.0.1", "10.97.0.0/16"}, []string{"0.0.0.0/0"})
	}
	from := func() (labels map[string]string, namespace string, gateways []string) {
		switch d.roll(5) {
		case 0:
			labels = map[string]string{"app": pick(d, names...)}
		case 1:
			namespace = pick(d, spaces...)
		case 2:
			gateways = pick(d, []string{"mesh"}, []string{"a"})
		}
		return labels, namespace, gateways
	}
	for range d.roll(4) / 2 {
		route := &networking.TCPRoute{Route: to()}
		for range d.roll(3) {
			m := &networking.L4MatchAttributes{Port: pick[uint32](d, 0, 90, 81, 15444), DestinationSubnets: subnets()}
			m.SourceLabels, m.SourceNamespace, m.Gateways = from()
			m.SourceSubnet = pick(d, "", "", "", "10.9.0.0/16", "0.0.0.0/0")
			route.Match = append(route.Match, m)
		}
		v.Tcp = append(v.Tcp, route)
	}
	for range d.roll(4) / 2 {
		route := &networking.TLSRoute{Route: to()}
		for range 1 + d.roll(2) {
			m := &networking.TLSMatchAttributes{SniHosts: []string{pick(d, "out.example.com", "*.example.com", "a.x.svc.cluster.local", "*"), "b.example.com"}, DestinationSubnets: subnets()}
			m.SourceLabels, m.SourceNamespace, m.Gateways = from()
			route.Match = append(route.Match, m)
		}
		v.Tls = append(v.Tls, route)
	}
}

func (d *dice) destinationRule() *networking.DestinationRule {
	r := &networking.DestinationRule{Host: d.host(), ExportTo: d.exportTo()}
	if d.oneIn(4) {
		r.WorkloadSelector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": pick(d, names...)}}
	}
	policy := func() *networking.TrafficPolicy {
		switch d.roll(8) {
		case 5:
			return &networking.TrafficPolicy{OutlierDetection: &networking.OutlierDetection{}, LoadBalancer: &networking.LoadBalancerSettings{
				LocalityLbSetting: &networking.LocalityLoadBalancerSetting{FailoverPriority: []string{pick(d, "app", "version=v1"), pick(d, "version", "topology.kubernetes.io/region")}},
			}}
		case 7:
			return &networking.TrafficPolicy{OutlierDetection: &networking.OutlierDetection{}, LoadBalancer: &networking.LoadBalancerSettings{
				ZoneAwareLbSetting: &networking.ZoneAwareLoadBalancerSetting{FailoverPriority: []string{pick(d, "app", "version=v1")}},
			}}
		case 6:
			return &networking.TrafficPolicy{ProxyProtocol: &networking.TrafficPolicy_ProxyProtocol{Version: networking.TrafficPolicy_ProxyProtocol_VERSION(d.roll(2))}}
		case 4:
			return &networking.TrafficPolicy{ConnectionPool: &networking.ConnectionPoolSettings{Tcp: &networking.ConnectionPoolSettings_TCPSettings{
				IdleTimeout: durationpb.New(time.Duration(1+d.roll(3)) * time.Minute),
			}}}
		case 0:
			return &networking.TrafficPolicy{OutlierDetection: &networking.OutlierDetection{}}
		case 1:
			return &networking.TrafficPolicy{LoadBalancer: &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{
				ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName{HttpHeaderName: "x-user"}},
			}}}
		case 2:
			return &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_TLSmode(d.roll(4))}}
		case 3:
			return &networking.TrafficPolicy{LoadBalancer: &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_Simple{
				Simple: networking.LoadBalancerSettings_SimpleLB(d.roll(6)),
			}}}
		}
		return nil
	}
	r.TrafficPolicy = policy()
	for _, v := range versions {
		if d.oneIn(2) {
			r.Subsets = append(r.Subsets, &networking.Subset{Name: v, Labels: map[string]string{"version": v}, TrafficPolicy: policy()})
		}
	}
	return r
}

func (d *dice) peerAuthentication() *security.PeerAuthentication {
	p := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_Mode(d.roll(4))}}
	if d.oneIn(2) {
		p.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": pick(d, names...)}}
		p.PortLevelMtls = map[uint32]*security.PeerAuthentication_MutualTLS{8080: {Mode: security.PeerAuthentication_MutualTLS_Mode(d.roll(4))}}
	}
	return p
}

func (d *dice) authorizationPolicy() *security.AuthorizationPolicy {
	p := &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_Action(d.roll(4))}
	if d.oneIn(2) {
		p.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": pick(d, names...)}}
	}
	if d.oneIn(4) {
		p.Selector, p.TargetRefs = nil, d.targets()
	}
	if p.Action == security.AuthorizationPolicy_CUSTOM {
		p.ActionDetail = &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: pick(d, "http", "grpc", "grpc", "none")}}
	}
	for range d.roll(3) {
		p.Rules = append(p.Rules, &security.Rule{To: []*security.Rule_To{{Operation: &security.Operation{Methods: []string{pick(d, "GET", "PUT")}}}}})
	}
	return p
}

// targets are Gateways of the Gateway API, and what is none.
func (d *dice) targets() (out []*typev1.PolicyTargetReference) {
	for range 1 + d.roll(2) {
		out = append(out, &typev1.PolicyTargetReference{Group: "gateway.networking.k8s.io", Kind: pick(d, "Gateway", "Gateway", "Gateway", "GatewayClass"), Name: pick(d, names...)})
	}
	return out
}

func (d *dice) requestAuthentication() *security.RequestAuthentication {
	p := &security.RequestAuthentication{}
	if d.oneIn(2) {
		p.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": pick(d, names...)}}
	}
	if d.oneIn(4) {
		p.Selector, p.TargetRef = nil, d.targets()[0]
	}
	for range d.roll(3) {
		p.JwtRules = append(p.JwtRules, &security.JWTRule{
			Issuer: pick(d, "one.example", "https://three.example"), Jwks: pick(d, "", "", pki.NoKeys), JwksUri: pick(d, "", "https://a.example/keys"),
		})
	}
	return p
}

// providers are those of gen's meshes and one that none has.
var providers = []string{"envoy", "json", "als", "otel", "zipkin", "sky", "spans", "dog", "none"}

// extensionProviders are those of access logs and tracing, to a service that there may be.
func (d *dice) extensionProviders() (out []*meshv1.MeshConfig_ExtensionProvider) {
	service, port := pick(d, "a.x.svc.cluster.local", "x/a.x.svc.cluster.local", "out.example.com"), uint32(80+d.roll(2))
	for _, p := range []*meshv1.MeshConfig_ExtensionProvider{
		{Name: "json", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{EnvoyFileAccessLog: &meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{Path: pick(d, "", "/log")}}},
		{Name: "als", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyHttpAls{EnvoyHttpAls: &meshv1.MeshConfig_ExtensionProvider_EnvoyHttpGrpcV3LogProvider{Service: service, Port: port}}},
		{Name: "zipkin", Provider: &meshv1.MeshConfig_ExtensionProvider_Zipkin{Zipkin: &meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: service, Port: port, MaxTagLength: pick[uint32](d, 0, 9)}}},
		{Name: "sky", Provider: &meshv1.MeshConfig_ExtensionProvider_Skywalking{Skywalking: &meshv1.MeshConfig_ExtensionProvider_SkyWalkingTracingProvider{Service: service, Port: port}}},
		{Name: "spans", Provider: &meshv1.MeshConfig_ExtensionProvider_Opentelemetry{Opentelemetry: &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{
			Service: service, Port: port, Http: pick(d, nil, &meshv1.MeshConfig_ExtensionProvider_HttpService{Path: "/spans"}),
		}}},
		{Name: "dog", Provider: &meshv1.MeshConfig_ExtensionProvider_Datadog{Datadog: &meshv1.MeshConfig_ExtensionProvider_DatadogTracingProvider{Service: service, Port: port}}},
		{Name: "otel", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyOtelAls{EnvoyOtelAls: &meshv1.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider{Service: service, Port: port}}},
	} {
		if !d.oneIn(4) {
			out = append(out, p)
		}
	}
	return out
}

func (d *dice) telemetry() *telemetry.Telemetry {
	t := &telemetry.Telemetry{}
	if d.oneIn(2) {
		t.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": pick(d, names...)}}
	}
	if d.oneIn(5) {
		t.Selector, t.TargetRefs = nil, d.targets()
	}
	for range d.roll(3) {
		l := &telemetry.AccessLogging{Match: &telemetry.AccessLogging_LogSelector{Mode: telemetry.WorkloadMode(d.roll(3))}}
		for range d.roll(3) {
			l.Providers = append(l.Providers, &telemetry.ProviderRef{Name: pick(d, providers...)})
		}
		if d.oneIn(3) {
			l.Disabled = wrapperspb.Bool(d.oneIn(2))
		}
		if d.oneIn(3) {
			l.Filter = &telemetry.AccessLogging_Filter{Expression: pick(d, "true", "response.code >= 400")}
		}
		t.AccessLogging = append(t.AccessLogging, l)
	}
	for range d.roll(3) {
		t.Metrics = append(t.Metrics, d.metrics())
	}
	for range d.roll(3) {
		t.Tracing = append(t.Tracing, d.tracing())
	}
	return t
}

func (d *dice) tracing() *telemetry.Tracing {
	t := &telemetry.Tracing{Match: pick(d, nil, &telemetry.Tracing_TracingSelector{Mode: telemetry.WorkloadMode(d.roll(3))})}
	if !d.oneIn(3) {
		t.Providers = []*telemetry.ProviderRef{{Name: pick(d, providers...)}}
	}
	if d.oneIn(3) {
		t.RandomSamplingPercentage = wrapperspb.Double(float64(d.roll(3)))
	}
	for _, flag := range []**wrapperspb.BoolValue{&t.DisableSpanReporting, &t.UseRequestIdForTraceSampling, &t.EnableIstioTags, &t.DisableContextPropagation} {
		if d.oneIn(5) {
			*flag = wrapperspb.Bool(d.oneIn(2))
		}
	}
	if d.oneIn(3) {
		t.CustomTags = map[string]*telemetry.Tracing_CustomTag{"t": {Type: &telemetry.Tracing_CustomTag_Literal{Literal: &telemetry.Tracing_Literal{Value: pick(d, "a", "b")}}}}
	}
	return t
}

func (d *dice) metrics() *telemetry.Metrics {
	m := &telemetry.Metrics{}
	for range d.roll(2) {
		m.Providers = append(m.Providers, &telemetry.ProviderRef{Name: pick(d, "prometheus", "prometheus", "none")})
	}
	for range d.roll(3) {
		o := &telemetry.MetricsOverrides{Match: &telemetry.MetricSelector{Mode: telemetry.WorkloadMode(d.roll(3))}}
		switch d.roll(3) {
		case 0:
			o.Match.MetricMatch = &telemetry.MetricSelector_Metric{Metric: telemetry.MetricSelector_IstioMetric(d.roll(11))}
		case 1:
			o.Match.MetricMatch = &telemetry.MetricSelector_CustomMetric{CustomMetric: pick(d, "requests_total", "tcp_connections_opened_total", "mine")}
		}
		if d.oneIn(2) {
			o.Disabled = wrapperspb.Bool(d.oneIn(2))
		}
		for range d.roll(3) {
			tag := &telemetry.MetricsOverrides_TagOverride{Operation: telemetry.MetricsOverrides_TagOverride_REMOVE}
			if d.oneIn(2) {
				tag = &telemetry.MetricsOverrides_TagOverride{Value: pick(d, "request.host", "string(destination.port)", "'x'", "nosuch(1)")}
			}
			if o.TagOverrides == nil {
				o.TagOverrides = map[string]*telemetry.MetricsOverrides_TagOverride{}
			}
			o.TagOverrides[pick(d, "source_app", "response_flags", "request_protocol", "mine")] = tag
		}
		m.Overrides = append(m.Overrides, o)
	}
	return m
}

// patches are what envoyFilter chooses from; some of them make what they match invalid, or match nothing.
var patches = []string{
	`{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: a.x.svc.cluster.local}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}`,
	`{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {portNumber: 80}}, patch: {operation: REMOVE}}`,
	`{applyTo: CLUSTER, match: {cluster: {portNumber: 8080}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 77}}}`,
	`{applyTo: CLUSTER, patch: {operation: ADD, value: {name: added, type: STATIC}}}`,
	`{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: -3s}}}`,
	`{applyTo: LISTENER, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 80}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 78}}}`,
	`{applyTo: LISTENER, match: {listener: {portNumber: 90}}, patch: {operation: REMOVE}}`,
	`{applyTo: LISTENER, match: {context: SIDECAR_INBOUND}, patch: {operation: ADD, value: {name: added, address: {pipe: {path: "@added"}}, filter_chains: [{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]}}}`,
	`{applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 9}}}}`,
	`{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND, proxy: {proxyVersion: '^1'}}, patch: {operation: INSERT_FIRST, value: {name: buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 8}}}}`,
	`{applyTo: FILTER_CHAIN, match: {listener: {portNumber: 8080}}, patch: {operation: MERGE, value: {transport_socket_connect_timeout: 9s}}}`,
	`{applyTo: ROUTE_CONFIGURATION, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}`,
	`{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: "a.x.svc.cluster.local:80"}}}, patch: {operation: MERGE, value: {require_tls: ALL}}}`,
	`{applyTo: VIRTUAL_HOST, match: {context: GATEWAY}, patch: {operation: ADD, value: {name: extra, domains: [extra.example]}}}`,
	`{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: ROUTE}}}}, patch: {operation: INSERT_BEFORE, value: {match: {path: /x}, direct_response: {status: 204}}}}`,
	`{applyTo: EXTENSION_CONFIG, match: {context: GATEWAY}, patch: {operation: ADD, value: {name: found, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 7}}}}`,
	`{applyTo: EXTENSION_CONFIG, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: found, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 6}}}}`,
	`{applyTo: EXTENSION_CONFIG, match: {proxy: {proxyVersion: '^1'}}, patch: {operation: ADD, value: {name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit, stat_prefix: a, max_connections: 5}}}}`,
	`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: found, config_discovery: {config_source: {ads: {}, resource_api_version: V3}, type_urls: [type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer]}}}}`,
	`{applyTo: NETWORK_FILTER, match: {context: SIDECAR_INBOUND}, patch: {operation: INSERT_FIRST, value: {name: tcp, config_discovery: {config_source: {ads: {}, initial_fetch_timeout: 1s}, type_urls: [type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit]}}}}`,
	`{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_config: {stats_tags: [{tag_name: a, fixed_value: x}]}}}}`,
	`{applyTo: BOOTSTRAP, match: {context: SIDECAR_INBOUND, proxy: {proxyVersion: '^1'}}, patch: {operation: MERGE, value: {stats_flush_interval: 9s, static_resources: {clusters: [{name: c, type: STATIC}]}}}}`,
	`{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, proxy: {metadata: {NAMESPACE: x}}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 79}}}`,
	`{applyTo: BOOTSTRAP, match: {context: GATEWAY}, patch: {operation: MERGE, value: {stats_flush_interval: 0.00001s}}}`,
}

func (d *dice) envoyFilter() *networking.EnvoyFilter {
	f := &networking.EnvoyFilter{Priority: int32(d.roll(3)) - 1}
	if d.oneIn(2) {
		f.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": pick(d, names...)}}
	}
	if d.oneIn(4) {
		f.WorkloadSelector, f.TargetRefs = nil, d.targets()
	}
	for range 1 + d.roll(3) {
		p := &networking.EnvoyFilter_EnvoyConfigObjectPatch{}
		text, err := yaml.YAMLToJSON([]byte(pick(d, patches...)))
		if err == nil {
			err = protojson.Unmarshal(text, p)
		}
		if err != nil {
			panic(err)
		}
		f.ConfigPatches = append(f.ConfigPatches, p)
	}
	return f
}

func (d *dice) wasmPlugin() *extensions.WasmPlugin {
	w := &extensions.WasmPlugin{
		Url: pick(d, "file:///a.wasm", "https://a.example/a.wasm"), Phase: extensions.PluginPhase(d.roll(4)), Type: extensions.PluginType(d.roll(3)),
		FailStrategy: extensions.FailStrategy(d.roll(3)),
	}
	if d.oneIn(2) {
		w.Priority = wrapperspb.Int32(int32(d.roll(2)))
	}
	switch d.roll(4) {
	case 0:
		w.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{"app": pick(d, names...)}}
	case 1:
		w.TargetRefs = d.targets()
	}
	for d.oneIn(3) && len(w.Match) < 3 {
		w.Match = append(w.Match, &extensions.WasmPlugin_TrafficSelector{Mode: typev1.WorkloadMode(d.roll(4)), Ports: d.extensionPorts()})
	}
	return w
}

func (d *dice) extensionPorts() []*typev1.PortSelector {
	return pick(d, nil, []*typev1.PortSelector{{Number: 80}}, []*typev1.PortSelector{{Number: 8080}, {Number: 443}})
}

func (d *dice) trafficExtension() *extensions.TrafficExtension {
	return &extensions.TrafficExtension{
		Phase:        extensions.TrafficExtension_ExecutionPhase(d.roll(4)),
		Match:        []*extensions.TrafficSelector{{Mode: typev1.WorkloadMode(d.roll(4)), Ports: d.extensionPorts()}},
		FilterConfig: &extensions.TrafficExtension_Lua{Lua: &extensions.LuaConfig{InlineCode: pick(d, "function envoy_on_request(h) end", "function envoy_on_response(h) end")}},
	}
}

func (d *dice) sidecar() *networking.Sidecar {
	s := &networking.Sidecar{}
	if d.oneIn(2) {
		s.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": pick(d, names...)}}
	}
	if !d.oneIn(3) {
		s.Egress = []*networking.IstioEgressListener{{Hosts: []string{pick(d, "./*", "*/*", "x/*", "*/a.x.svc.cluster.local", "~/*")}}}
	}
	for len(s.Egress) > 0 && d.oneIn(2) && len(s.Egress) < 4 {
		l := &networking.IstioEgressListener{
			Port:  &networking.SidecarPort{Number: pick[uint32](d, 80, 81, 90, 443), Protocol: pick(d, "HTTP", "TCP", "TLS", "MYSQL", "")},
			Hosts: []string{pick(d, "./*", "*/*", "x/*", "*/a.x.svc.cluster.local")}, Bind: pick(d, "", "", "127.0.0.3", "::1", "10.96.0.1"),
		}
		if l.Bind == "" && d.oneIn(3) {
			l.Port.Number, l.Bind = 0, pick(d, "unix:///var/run/e.sock", "unix:///var/run/f.sock", "unix://@e")
		}
		if d.oneIn(3) {
			l.CaptureMode = networking.CaptureMode_NONE
		}
		s.Egress = slices.Insert(s.Egress, 0, l)
	}
	if n := len(s.Egress); n > 0 && d.oneIn(4) {
		s.Egress[n-1].Bind, s.Egress[n-1].CaptureMode = pick(d, "127.0.0.4", "::1"), networking.CaptureMode(d.roll(3))
	}
	if d.oneIn(3) {
		s.OutboundTrafficPolicy = &networking.OutboundTrafficPolicy{Mode: networking.OutboundTrafficPolicy_Mode(d.roll(2))}
		if d.oneIn(2) {
			s.OutboundTrafficPolicy.EgressProxy = &networking.Destination{Host: pick(d, "a.x.svc.cluster.local", "b", "none.example.com"), Port: &networking.PortSelector{Number: 80}}
		}
	}
	if d.oneIn(3) {
		s.InboundConnectionPool = &networking.ConnectionPoolSettings{Tcp: &networking.ConnectionPoolSettings_TCPSettings{MaxConnections: int32(1 + d.roll(2))}}
	}
	for d.oneIn(2) && len(s.Ingress) < 3 {
		in := &networking.IstioIngressListener{
			Port:            &networking.SidecarPort{Number: pick[uint32](d, 8080, 8081, 9090, 15006), Protocol: pick(d, "HTTP", "TCP", "HTTPS", "GRPC", "", "UDP")},
			DefaultEndpoint: pick(d, "", "127.0.0.1:18080", "0.0.0.0:8080", "[::]:8081", "unix:///var/run/a.sock", "unix://@a"),
		}
		if d.oneIn(3) {
			in.CaptureMode, in.Bind = networking.CaptureMode_NONE, pick(d, "", "127.0.0.1", "::1")
		}
		if d.oneIn(3) {
			in.Tls = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, ServerCertificate: "/c", PrivateKey: "/k"}
		}
		if d.oneIn(3) {
			in.ConnectionPool = &networking.ConnectionPoolSettings{Http: &networking.ConnectionPoolSettings_HTTPSettings{Http1MaxPendingRequests: 3}}
		}
		s.Ingress = append(s.Ingress, in)
	}
	return s
}
