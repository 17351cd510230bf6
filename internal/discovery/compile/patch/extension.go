package patch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Phase is where the filter of an extension is among those of the control plane.
type Phase = extensions.TrafficExtension_ExecutionPhase

// Place says which connections pass the filter of an extension, and where in their filters it is.
type Place struct {
	Phase Phase
	// Traffic selects listeners and filter chains; one that fits is enough, and none is for all.
	Traffic []Traffic
}

// Traffic is what a workload asks for, which a gateway's is, too, or is asked for, at these ports, or at all.
type Traffic struct {
	Client, Server bool
	Ports          []uint32
}

// in reports whether the filter is in listeners of a context.
func (p *Place) in(c Context) bool { return p.selects(c, func([]uint32) bool { return true }) }

// at reports whether the filter is in listeners or filter chains of a context for a port, 0 for those that are not for one.
func (p *Place) at(c Context, port uint32) bool {
	return p.selects(c, func(ports []uint32) bool { return len(ports) == 0 || slices.Contains(ports, port) })
}

// OfPorts reports whether ports select what the filter is in.
func (p *Place) OfPorts() bool {
	return p != nil && slices.ContainsFunc(p.Traffic, func(t Traffic) bool { return len(t.Ports) > 0 })
}

// Listening returns the place with the ports at which a router listens for those of its servers.
func (p *Place) Listening(at map[uint32][]uint32) *Place {
	if p == nil {
		return nil
	}
	out := &Place{Phase: p.Phase}
	for _, t := range p.Traffic {
		ports := t.Ports
		for _, port := range t.Ports {
			ports = append(ports[:len(ports):len(ports)], at[port]...)
		}
		t.Ports = ports
		out.Traffic = append(out.Traffic, t)
	}
	return out
}

func (p *Place) selects(c Context, fits func(ports []uint32) bool) bool {
	return len(p.Traffic) == 0 || slices.ContainsFunc(p.Traffic, func(t Traffic) bool {
		return (t.Client && c != Inbound || t.Server && c == Inbound) && fits(t.Ports)
	})
}

// The indexes of the patches that ParseExtension returns.
const (
	extensionFilter = iota
	extensionConfig
)

// The names of the variables by which agents learn how to fetch a module. [agent X10]
const (
	pullSecretVariable = "ISTIO_META_WASM_IMAGE_PULL_SECRET" // #nosec G101 -- a name
	pullPolicyVariable = "ISTIO_META_WASM_IMAGE_PULL_POLICY"
	versionVariable    = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"
)

// Of what kind of extension a filter is; the first is spelt so by Istio.
const (
	wasmPluginPrefix       = "extenstions.istio.io/wasmplugin/"
	trafficExtensionPrefix = "extensions.istio.io/trafficextension/"
)

// fetchTimeout bounds one request for a module.
const fetchTimeout = 30 * time.Second

// ExtensionName returns the name of the filter and of the configuration of an extension; that of a WasmPlugin is Istio's, which EnvoyFilters
// name.
func ExtensionName(k object.Key) string {
	prefix := trafficExtensionPrefix
	if k.Kind == object.WasmPlugin {
		prefix = wasmPluginPrefix
	}
	return prefix + k.Namespace + "." + k.Name
}

// Guards reports whether an extension decides about requests: if there is something wrong with it, requests are denied.
func Guards(spec *extensions.TrafficExtension) bool {
	return (spec.GetPhase() == extensions.TrafficExtension_AUTHN || spec.GetPhase() == extensions.TrafficExtension_AUTHZ) && !opens(spec)
}

// opens reports whether requests pass without the extension when it fails: its failStrategy decides, and for a script the phase.
func opens(spec *extensions.TrafficExtension) bool {
	if spec.GetWasm() != nil {
		return spec.GetWasm().GetFailStrategy() == extensions.FailStrategy_FAIL_OPEN
	}
	return spec.GetPhase() != extensions.TrafficExtension_AUTHN && spec.GetPhase() != extensions.TrafficExtension_AUTHZ
}

// ParseExtension returns the patches that an extension is made of, a filter at its place and its configuration, none if there is an error,
// and what is wrong with it. Fields are those of the object. [control-plane 1.11.5, 1.11.6]
func ParseExtension(k object.Key, spec *extensions.TrafficExtension) ([]*Patch, []Fault) {
	e := extension{name: ExtensionName(k), at: "spec.wasm", spec: spec}
	if k.Kind == object.WasmPlugin {
		e.at = "spec"
	}
	place := &Place{Phase: spec.GetPhase(), Traffic: e.traffic()}
	var filter, config proto.Message
	network := false
	switch {
	case spec.GetWasm() != nil:
		network = spec.GetWasm().GetType() == extensions.PluginType_NETWORK
		plugin := e.plugin()
		if network {
			config = &networkwasmv3.Wasm{Config: plugin}
		} else {
			config = &httpwasmv3.Wasm{Config: plugin}
		}
	case spec.GetLua() != nil:
		config = e.script()
	default:
		e.fail("spec", "has neither wasm nor lua; set one of them")
	}
	if slices.ContainsFunc(e.faults, func(f Fault) bool { return f.Severity < Partly }) {
		return nil, e.faults
	}
	to := networking.EnvoyFilter_HTTP_FILTER
	if network {
		to = networking.EnvoyFilter_NETWORK_FILTER
		filter = &listenerv3.Filter{Name: e.name, ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: e.discovery(config, true)}}
	} else {
		filter = &hcmv3.HttpFilter{Name: e.name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: e.discovery(config, false)}}
	}
	return []*Patch{
		{Index: extensionFilter, ApplyTo: to, Value: filter, Place: place, Discovers: discoveries(filter)},
		{Index: extensionConfig, ApplyTo: networking.EnvoyFilter_EXTENSION_CONFIG, Operation: add, Value: &corev3.TypedExtensionConfig{Name: e.name, TypedConfig: pack(config)}},
	}, e.faults
}

// extension makes the patches of one object.
type extension struct {
	// name is that of its filter, and at the path of the configuration of a module.
	name, at string
	spec     *extensions.TrafficExtension
	faults   []Fault
}

func (e *extension) fail(field, format string, args ...any) {
	e.faults = append(e.faults, Fault{Field: field, Text: fmt.Sprintf(format, args...)})
}

func (e *extension) warn(field, text string) {
	e.faults = append(e.faults, Fault{Field: field, Severity: Partly, Text: "not applied: " + text})
}

// discovery says where a filter has its configuration from, and what is in force without one: everything is denied, or nothing is.
func (e *extension) discovery(config proto.Message, network bool) *corev3.ExtensionConfigSource {
	var rules *rbacv3.RBAC
	if !opens(e.spec) {
		rules = &rbacv3.RBAC{} // it allows nothing
	}
	var without proto.Message = &httprbacv3.RBAC{Rules: rules}
	if network {
		without = &networkrbacv3.RBAC{Rules: rules, StatPrefix: "wasm"}
	}
	return &corev3.ExtensionConfigSource{
		ConfigSource: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		},
		TypeUrls:      []string{pack(config).TypeUrl, pack(without).TypeUrl}, // agents send the second for a module that cannot be fetched
		DefaultConfig: pack(without),
	}
}

func (e *extension) traffic() (out []Traffic) {
	for i, m := range e.spec.GetMatch() {
		t := Traffic{Client: m.GetMode() != typev1.WorkloadMode_SERVER, Server: m.GetMode() != typev1.WorkloadMode_CLIENT}
		for j, p := range m.GetPorts() {
			if n := p.GetNumber(); n == 0 || n > 65535 {
				e.fail(fmt.Sprintf("spec.match[%d].ports[%d].number", i, j), "invalid port %d: want 1–65535", n)
			}
			t.Ports = append(t.Ports, p.GetNumber())
		}
		out = append(out, t)
	}
	return out
}

func (e *extension) script() *luav3.Lua {
	code := e.spec.GetLua().GetInlineCode()
	if code == "" {
		e.fail("spec.lua.inlineCode", "is empty; set the script")
	}
	return &luav3.Lua{DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: code}}}
}

var failurePolicies = map[extensions.FailStrategy]wasmv3.FailurePolicy{
	extensions.FailStrategy_FAIL_CLOSE: wasmv3.FailurePolicy_FAIL_CLOSED, extensions.FailStrategy_FAIL_OPEN: wasmv3.FailurePolicy_FAIL_OPEN,
	extensions.FailStrategy_FAIL_RELOAD: wasmv3.FailurePolicy_FAIL_RELOAD,
}

// plugin returns the configuration of a module.
func (e *extension) plugin() *wasmv3.PluginConfig {
	w := e.spec.GetWasm()
	if w.GetVerificationKey() != "" {
		e.warn(e.at+".verificationKey", "signatures of modules are not verified; set sha256, and remove it")
	}
	if w.GetImagePullSecret() != "" {
		e.warn(e.at+".imagePullSecret", "modules are fetched without credentials, which a registry that wants some refuses; use one that wants none, or a URL with http, https or file")
	}
	out := &wasmv3.PluginConfig{
		Name: e.name, RootId: w.GetPluginName(), FailurePolicy: failurePolicies[w.GetFailStrategy()],
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{Runtime: "envoy.wasm.runtime.v8"}},
	}
	if len(w.GetPluginConfig().GetFields()) > 0 {
		text, err := json.Marshal(w.GetPluginConfig().AsMap()) // unlike protojson's, the text is the same each time
		if err != nil {
			e.fail(e.at+".pluginConfig", "cannot be written as JSON: %v", err)
		}
		out.Configuration = pack(wrapperspb.String(string(text)))
	}
	vm := out.GetVmConfig()
	vm.EnvironmentVariables = e.variables()
	vm.Code = e.code(vm)
	if vars := vm.EnvironmentVariables; len(vars.HostEnvKeys)+len(vars.KeyValues) == 0 {
		vm.EnvironmentVariables = nil
	}
	return out
}

func (e *extension) variables() *wasmv3.EnvironmentVariables {
	out := &wasmv3.EnvironmentVariables{KeyValues: map[string]string{}}
	for i, v := range e.spec.GetWasm().GetVmConfig().GetEnv() {
		at := fmt.Sprintf("%s.vmConfig.env[%d]", e.at, i)
		_, twice := out.KeyValues[v.GetName()]
		switch {
		case v.GetName() == "":
			e.fail(at+".name", "is empty; set the name of the variable")
		case twice || slices.Contains(out.HostEnvKeys, v.GetName()):
			e.fail(at+".name", "the variable %q is there twice; remove one", v.GetName())
		case v.GetName() == pullSecretVariable || v.GetName() == pullPolicyVariable || v.GetName() == versionVariable:
			e.fail(at+".name", "the variable %q is the control plane's; use another name", v.GetName())
		case v.GetValueFrom() == extensions.EnvValueSource_HOST && v.GetValue() != "":
			e.fail(at+".value", "cannot be set together with valueFrom HOST; remove one of them")
		case v.GetValueFrom() == extensions.EnvValueSource_HOST:
			out.HostEnvKeys = append(out.HostEnvKeys, v.GetName())
		default:
			out.KeyValues[v.GetName()] = v.GetValue()
		}
	}
	return out
}

var (
	checksum  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	urlScheme = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9+.-]*)://`)
)

// code says where a module is; variables of the machine tell the agent how to fetch it.
func (e *extension) code(vm *wasmv3.VmConfig) *corev3.AsyncDataSource {
	w := e.spec.GetWasm()
	url, sum := w.GetUrl(), w.GetSha256()
	field := e.at + ".url"
	if sum != "" && !checksum.MatchString(sum) {
		e.fail(e.at+".sha256", "invalid checksum %q: want 64 hexadecimal digits", sum)
	}
	scheme := "oci"
	if m := urlScheme.FindStringSubmatch(url); m != nil {
		scheme = strings.ToLower(m[1])
		url = scheme + url[len(m[1]):]
	} else if url != "" {
		url = "oci://" + url
	}
	rest := strings.TrimPrefix(url, scheme+"://")
	switch {
	case w.GetUrl() == "":
		e.fail(field, "is empty; set the URL of the module")
		return nil
	case strings.ContainsFunc(url, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		e.fail(field, "invalid URL %q: want no space or control character", w.GetUrl())
		return nil
	case scheme == "file":
		if !strings.HasPrefix(rest, "/") || rest == "/" {
			e.fail(field, "invalid URL %q: want file:// and the absolute path of a file", w.GetUrl())
		}
		if sum != "" {
			e.warn(e.at+".sha256", "a file of the proxy's is used as it is; remove it, or use another URL")
		}
		return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: rest}}}}
	case scheme != "http" && scheme != "https" && scheme != "oci":
		e.fail(field, "invalid URL %q: want a URL with oci, http, https or file", w.GetUrl())
		return nil
	case rest == "" || rest[0] == '/':
		e.fail(field, "invalid URL %q: want a host after %s://", w.GetUrl(), scheme)
		return nil
	}
	if _, digest, ok := strings.Cut(url, "@sha256:"); ok && sum != "" && digest != sum {
		e.fail(e.at+".sha256", "is %s, and the URL has %s; use one checksum", sum, digest)
	}
	vars := vm.EnvironmentVariables.KeyValues
	if w.GetImagePullPolicy() != extensions.PullPolicy_UNSPECIFIED_POLICY {
		vars[pullPolicyVariable] = w.GetImagePullPolicy().String()
	}
	vars[versionVariable] = version(e.spec)
	return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		// Agents fetch modules, and need no cluster.
		HttpUri: &corev3.HttpUri{Uri: url, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}, Timeout: durationpb.New(fetchTimeout)}, Sha256: sum,
	}}}
}

// version is another one for each change of an extension, and no other one when only its status changes, as resourceVersion would be.
func version(spec *extensions.TrafficExtension) string {
	sum := sha256.Sum256(marshal.Must(spec))
	return hex.EncodeToString(sum[:8])
}

// The ranks of filters, in the order in which requests pass them. [control-plane 1.9.27, 1.11.5]
const (
	rankPeer           = iota // what the client tells of itself
	rankAuthnExtension        // extensions with a phase
	rankAuthn                 // tokens
	rankAuthnClass            // patches with a filterClass: after the filters that authenticate
	rankAuthzExtension
	rankAuthz // policies
	rankAuthzClass
	rankStatsExtension
	rankStatsClass
	rankOther // those that count, and the one that answers
)

// ranks are those of the filters that extensions and patches insert, by name.
type ranks map[string]int

var (
	phaseRanks = map[Phase]int{
		extensions.TrafficExtension_AUTHN: rankAuthnExtension, extensions.TrafficExtension_AUTHZ: rankAuthzExtension, extensions.TrafficExtension_STATS: rankStatsExtension,
	}
	classRanks = map[networking.EnvoyFilter_Patch_FilterClass]int{
		networking.EnvoyFilter_Patch_AUTHN: rankAuthnClass, networking.EnvoyFilter_Patch_AUTHZ: rankAuthzClass, networking.EnvoyFilter_Patch_STATS: rankStatsClass,
	}
)

func ranksOf(patches []*Patch) ranks {
	out := ranks{}
	for _, p := range patches {
		if rank, ok := classRanks[p.Class]; ok {
			out[p.name()] = rank
		} else if p.Place != nil {
			if rank, ok := phaseRanks[p.Place.Phase]; ok {
				out[p.name()] = rank
			}
		}
	}
	return out
}

func (ranks ranks) of(name string) int {
	switch canonical(name) {
	case "envoy.filters.http.header_to_metadata", "envoy.filters.http.header_mutation":
		return rankPeer
	case "envoy.filters.http.jwt_authn":
		return rankAuthn
	case "envoy.filters.http.rbac", "envoy.filters.http.ext_authz", "envoy.filters.network.rbac", "envoy.filters.network.ext_authz":
		return rankAuthz
	}
	if rank, ok := ranks[name]; ok {
		return rank
	}
	return rankOther
}

// place returns where ADD puts the filter of a patch among filters: after those that come before its class, and before the one that answers,
// which is the last.
func (ranks ranks) place(p *Patch, names []string) int {
	rank, ok := classRanks[p.Class]
	if !ok {
		rank = rankOther
	}
	return ranks.after(names, rank)
}

// placeOf returns where the filter of an extension goes among filters: before those that authenticate, between them and those that
// authorize, after these, or before the one that answers, which is the last; and after the extensions that are there already.
func (ranks ranks) placeOf(p *Place, names []string) int {
	rank, ok := phaseRanks[p.Phase]
	if !ok {
		rank = rankOther
	}
	return ranks.after(names, rank)
}

// after returns the index after the last filter with a rank up to this one, but for the one that answers.
func (ranks ranks) after(names []string, rank int) int {
	for i := len(names) - 1; i > 0; i-- {
		if ranks.of(names[i-1]) <= rank {
			return i
		}
	}
	return 0
}

// placed puts the filters of extensions into a listener.
func (ranks ranks) placed(in Context) func(*listenerv3.Listener, *Patch) (bool, error) {
	return func(l *listenerv3.Listener, p *Patch) (bool, error) {
		return eachChain(l, &Patch{}, func(fc *listenerv3.FilterChain) (matched bool, err error) {
			port := listenerPort(l)
			if in == Inbound && virtual(l.Name) {
				port = fc.GetFilterChainMatch().GetDestinationPort().GetValue()
			}
			if !p.Place.at(in, port) || strings.HasSuffix(fc.Name, "-blackhole") {
				return false, nil
			}
			if f, ok := p.Value.(*listenerv3.Filter); ok {
				fc.Filters = slices.Insert(fc.Filters, ranks.placeOf(p.Place, filterNames(fc.Filters)), proto.CloneOf(f))
				return true, nil
			}
			for _, f := range fc.Filters {
				h := &hcmv3.HttpConnectionManager{}
				if !f.GetTypedConfig().MessageIs(h) {
					continue
				}
				if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
					return true, err
				}
				h.HttpFilters = slices.Insert(h.HttpFilters, ranks.placeOf(p.Place, filterNames(h.HttpFilters)), proto.CloneOf(p.Value.(*hcmv3.HttpFilter)))
				setConfig(f, pack(h))
				matched = true
			}
			return matched, nil
		})
	}
}
