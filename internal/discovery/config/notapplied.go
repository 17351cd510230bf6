package config

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// consequence says what it means that a field is accepted and not applied.
type consequence struct {
	text string
	// rejected is set if the object without the field would allow what its author forbids.
	rejected bool
}

// consequences lists the fields, and the values of enumerations, that have no effect, by full name.
// TestEveryFieldIsAppliedOrNamed in package compile fails for a field that is missing here.
var consequences = map[protoreflect.FullName]consequence{
	"istio.networking.v1alpha3.OutlierDetection.consecutive_errors":                                              {text: "nothing is counted; use consecutive5xxErrors or consecutiveGatewayErrors"},
	"istio.mesh.v1alpha1.MeshConfig.proxy_http_port":                                                             {text: "no HTTP proxy port is opened"},
	"istio.mesh.v1alpha1.MeshConfig.hbone_idle_timeout":                                                          {text: "HBONE is not supported"},
	"istio.mesh.v1alpha1.ConfigSource.tls_settings":                                                              {text: "it is for sources of xDS, which are not read"},
	"istio.mesh.v1alpha1.ConfigSource.subscribed_resources":                                                      {text: "all of Istio's kinds are read from a directory"},
	"istio.mesh.v1alpha1.MeshConfig.CertificateData.spiffe_bundle_url":                                           {text: "no bundle is fetched, and proxies trust no root of this entry; put its certificates in pem"},
	"istio.mesh.v1alpha1.MeshConfig.CertificateData.cert_signers":                                                {text: "no certificates are requested from signers, and proxies trust no root of this entry; leave certSigners out to have them trusted"},
	"istio.mesh.v1alpha1.MeshConfig.inbound_cluster_stat_name":                                                   {text: "clusters have Istio's default names in statistics"},
	"istio.mesh.v1alpha1.MeshConfig.outbound_cluster_stat_name":                                                  {text: "clusters have Istio's default names in statistics"},
	"istio.mesh.v1alpha1.MeshConfig.certificates":                                                                {text: "no certificates are made for these names"},
	"istio.mesh.v1alpha1.MeshConfig.service_settings":                                                            {text: "endpoints of all clusters are used"},
	"istio.mesh.v1alpha1.MeshConfig.service_scope_configs":                                                       {text: "endpoints of all clusters are used"},
	"istio.mesh.v1alpha1.MeshConfig.verify_certificate_at_client":                                                {text: "servers' certificates are always verified; insecureSkipVerify in a DestinationRule turns that off for a host"},
	"istio.mesh.v1alpha1.MeshConfig.ca":                                                                          {text: "certificates are signed by the control plane's CA"},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.opencensus":                                                {text: noTracer},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.stackdriver":                                               {text: "proxies send nothing to Stackdriver"},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.sds":                                                       {text: "no secrets are fetched from it"},
	"istio.telemetry.v1alpha1.Metrics.reporting_interval":                                                        {text: "Envoy counts the bytes of connections that are not HTTP when they end; remove it"},
	"istio.mesh.v1alpha1.MeshConfig.service_entry_visibility":                                                    {text: "the visibility of ServiceEntries depends on exportTo and defaultServiceExportTo only; remove it"},
	"istio.mesh.v1alpha1.ServiceEntryVisibility.apply_to_sidecars":                                               {text: "a ServiceEntry that it hides would be visible to sidecars; restrict exportTo or defaultServiceExportTo, and remove it", rejected: true},
	"istio.networking.v1alpha3.SidecarPort.target_port":                                                          {text: "a listener's port is port.number, and its destination defaultEndpoint"},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.service_attribute_enrichment": {text: "spans have the name of the service as with ISTIO_CANONICAL, and no other attributes of it: these are of a Pod, and listeners are for all Pods of a service; set OTEL_RESOURCE_ATTRIBUTES in proxies and resourceDetectors.environment"},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.HttpHeader.env_name":                                       {text: "the control plane gives no variables of its environment away, and the header is left out; use value"},
}

const (
	noTracer = "the provider is not used: no spans are sent to it"
	// agentsOnly is the consequence for all fields of ProxyConfig.
	agentsOnly = "proxies that run get no ProxyConfig from the control plane; Pods get it when they are injected, other agents from --meshConfig and PROXY_CONFIG"
)

// notApplied reports the fields of an object that have no effect, in the order of their numbers, and
// unknown enum values. Within a message that has no effect, only errors are reported.
func (c *check) notApplied(at string, m protoreflect.Message) {
	c.fieldsNotApplied(at, m, nil, false)
}

// meshNotApplied does the same for the fields of mesh configuration that differ from the defaults.
func (c *check) meshNotApplied(m *meshv1.MeshConfig) {
	c.fieldsNotApplied("", m.ProtoReflect(), mesh.DefaultMeshConfig().ProtoReflect(), false)
	proxy, defaults := m.GetDefaultConfig().ProtoReflect(), mesh.DefaultProxyConfig().ProtoReflect()
	for _, f := range setFields(proxy, defaults) {
		if mesh.IsTopology(f.JSONName()) {
			continue // routers have it from here
		}
		c.warn("defaultConfig."+f.JSONName(), "not applied: %s", agentsOnly)
	}
}

// fieldsNotApplied reports only errors if covered is set: a message around m has been reported.
func (c *check) fieldsNotApplied(at string, m, defaults protoreflect.Message, covered bool) {
	for _, f := range setFields(m, defaults) {
		v, path := m.Get(f), f.JSONName()
		if at != "" {
			path = at + "." + path
		}
		name := f.FullName()
		if f.Enum() != nil && f.Cardinality() != protoreflect.Repeated {
			e := f.Enum().Values().ByNumber(v.Enum())
			if e == nil {
				c.fail(path, "unknown value %d of enum %s", v.Enum(), f.Enum().Name())
			} else if consequences[name].text == "" {
				name = e.FullName()
			}
		}
		q, found := consequences[name]
		switch {
		case found && q.rejected:
			c.fail(path, "not applied: %s", q.text)
		case found && !covered:
			c.warn(path, "not applied: %s", q.text)
		}
		switch {
		case f.IsMap():
			c.entriesNotApplied(path, f, v.Map(), covered || found)
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				c.fieldsNotApplied(item(path, i), v.List().Get(i).Message(), nil, covered || found)
			}
		default:
			c.fieldsNotApplied(path, v.Message(), nil, covered || found)
		}
	}
}

func (c *check) entriesNotApplied(path string, f protoreflect.FieldDescriptor, m protoreflect.Map, covered bool) {
	if f.MapValue().Message() == nil {
		return
	}
	entries := map[string]protoreflect.Message{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		entries[k.String()] = v.Message()
		return true
	})
	for _, k := range sorted(entries) {
		c.fieldsNotApplied(entry(path, k), entries[k], nil, covered)
	}
}

// setFields returns the fields of m that are set, in the order of their numbers; if defaults is not
// nil, those that differ from it, including those that are unset.
func setFields(m, defaults protoreflect.Message) []protoreflect.FieldDescriptor {
	var out []protoreflect.FieldDescriptor
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case defaults == nil && !m.Has(f):
		case defaults != nil && m.Has(f) == defaults.Has(f) && m.Get(f).Equal(defaults.Get(f)):
		case defaults != nil && !m.Has(f) && f.ContainingOneof() != nil: // another of the oneof is set instead
		default:
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number() - b.Number()) })
	return out
}
