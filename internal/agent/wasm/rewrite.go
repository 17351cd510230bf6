package wasm

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Types of the configuration of extensions.
const (
	httpFilter    = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	networkFilter = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm"
	httpRBAC      = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	networkRBAC   = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC"
	udpaStruct    = "type.googleapis.com/udpa.type.v1.TypedStruct"
	xdsStruct     = "type.googleapis.com/xds.type.v3.TypedStruct"
)

// Numbers of the fields on the way to a module, by their messages.
const (
	extensionName, extensionConfig   = 1, 2 // TypedExtensionConfig
	anyType, anyValue                = 1, 2 // google.protobuf.Any, and TypedStruct
	filterConfig                     = 1    // Wasm
	pluginVM, pluginFailOpen         = 3, 5 // PluginConfig
	pluginFailurePolicy              = 7
	vmCode, vmEnvironment            = 3, 7 // VmConfig
	codeLocal, codeRemote            = 1, 2 // AsyncDataSource
	remoteURI, remoteSHA256          = 1, 2 // RemoteDataSource
	uriText, uriTimeout              = 1, 3 // HttpUri
	durationSeconds, durationNanos   = 1, 2 // google.protobuf.Duration
	environmentValues                = 2    // EnvironmentVariables
	entryKey, entryValue             = 1, 2
	localFilename                    = 1 // DataSource
	rbacRules, networkRBACStatPrefix = 1, 3
	failOpenPolicy                   = 3 // FailurePolicy.FAIL_OPEN
)

// Variables by which a control plane tells the agent how to fetch a module. They do not reach the module.
const (
	secretVariable  = "ISTIO_META_WASM_IMAGE_PULL_SECRET" // #nosec G101 -- a name
	policyVariable  = "ISTIO_META_WASM_IMAGE_PULL_POLICY"
	versionVariable = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"
)

// Module says where a module is, and how it is fetched.
type Module struct {
	// URL is http, https or oci. SHA256 is hexadecimal, empty if any content is accepted.
	URL, SHA256 string
	// Timeout bounds a fetch; 0 is the cache's.
	Timeout time.Duration
	// Secret is a Docker configuration with credentials, encoded as JSON; nil for none. SecretMissing says that there is one that the
	// control plane does not have.
	Secret        []byte
	SecretMissing bool
	// Always says that a module is fetched again when Version has changed, although one of the same URL is there.
	Always  bool
	Version string
}

// extension is the configuration of an extension with a module that is fetched.
type extension struct {
	name   string
	module Module
	// failOpen says that requests pass without the extension.
	failOpen bool
	network  bool
	// local returns the TypedExtensionConfig with a file in place of the module.
	local func(file string) ([]byte, error)
}

// parse reads a TypedExtensionConfig; nil is one without a module that is fetched.
func parse(config []byte) (*extension, error) {
	name, typed := last(config, extensionName), last(config, extensionConfig)
	typ, value := string(last(typed, anyType)), last(typed, anyValue)
	e := &extension{name: string(name)}
	inner := typ
	if typ == udpaStruct || typ == xdsStruct {
		inner = string(last(value, anyType))
	}
	if inner != httpFilter && inner != networkFilter {
		return nil, nil
	}
	e.network = inner == networkFilter
	var change func(file string) ([]byte, error) // of the Any's value
	if inner == typ {
		code := last(last(last(value, filterConfig), pluginVM), vmCode)
		remote, ok := field(code, codeRemote)
		if !ok {
			return nil, nil
		}
		if err := e.readBinary(value, remote); err != nil {
			return nil, err
		}
		change = func(file string) ([]byte, error) { return localBinary(value, file) }
	} else {
		s := &structpb.Struct{}
		if err := proto.Unmarshal(last(value, anyValue), s); err != nil {
			return nil, fmt.Errorf("extension %q: parse its struct: %w", e.name, err)
		}
		ok, err := e.readStruct(s)
		if err != nil || !ok {
			return nil, err
		}
		change = func(file string) ([]byte, error) { return localStruct(value, s, file) }
	}
	if e.module.URL == "" {
		return nil, fmt.Errorf("extension %q: its remote module has no http_uri: want a URL", e.name)
	}
	e.local = func(file string) ([]byte, error) {
		v, err := change(file)
		if err != nil {
			return nil, fmt.Errorf("extension %q: %w", e.name, err)
		}
		return replace(config, extensionConfig, replace(typed, anyValue, v)), nil
	}
	return e, nil
}

// readBinary reads an encoded Wasm.
func (e *extension) readBinary(wasm, remote []byte) error {
	plugin := last(wasm, filterConfig)
	uri := last(remote, remoteURI)
	e.module.URL, e.module.SHA256 = string(last(uri, uriText)), string(last(remote, remoteSHA256))
	d := last(uri, uriTimeout)
	e.module.Timeout = time.Duration(varint(d, durationSeconds))*time.Second + time.Duration(varint(d, durationNanos))
	e.failOpen = varint(plugin, pluginFailOpen) != 0 || varint(plugin, pluginFailurePolicy) == failOpenPolicy
	values := map[string]string{}
	_ = each(last(last(plugin, pluginVM), vmEnvironment), func(n protowire.Number, v []byte, _ []byte) {
		if n == environmentValues {
			values[string(last(v, entryKey))] = string(last(v, entryValue))
		}
	})
	return e.readVariables(values)
}

// readVariables reads what the control plane says by variables.
func (e *extension) readVariables(values map[string]string) error {
	m := &e.module
	m.Always, m.Version = values[policyVariable] == "Always", values[versionVariable]
	secret, ok := values[secretVariable]
	if !ok {
		return nil
	}
	if m.SecretMissing = secret == ""; m.SecretMissing {
		return nil
	}
	m.Secret = []byte(secret)
	if !json.Valid(m.Secret) {
		text, err := base64.StdEncoding.DecodeString(secret)
		if err != nil || !json.Valid(text) {
			return fmt.Errorf("extension %q: invalid %s: want a Docker configuration in JSON", e.name, secretVariable)
		}
		m.Secret = text
	}
	return nil
}

// localBinary returns an encoded Wasm with a file in place of the module.
func localBinary(wasm []byte, file string) ([]byte, error) {
	plugin := last(wasm, filterConfig)
	vm := last(plugin, pluginVM)
	local := appendBytes(nil, codeLocal, appendBytes(nil, localFilename, []byte(file)))
	vm = replace(vm, vmCode, local)
	if variables, ok := field(vm, vmEnvironment); ok {
		var kept []byte
		err := each(variables, func(n protowire.Number, v, whole []byte) {
			if n != environmentValues || !isOwn(string(last(v, entryKey))) {
				kept = append(kept, whole...)
			}
		})
		if err != nil {
			return nil, err
		}
		vm = replace(vm, vmEnvironment, kept)
	}
	return replace(wasm, filterConfig, replace(plugin, pluginVM, vm)), nil
}

func isOwn(variable string) bool {
	return variable == secretVariable || variable == policyVariable || variable == versionVariable
}

// substitute is the TypedExtensionConfig that is used if the module cannot be had: requests pass, or all are denied.
func (e *extension) substitute() []byte {
	typ, value := httpRBAC, []byte(nil)
	if !e.failOpen {
		value = appendBytes(nil, rbacRules, nil) // rules that allow nothing
	}
	if e.network {
		typ = networkRBAC
		value = appendBytes(value, networkRBACStatPrefix, []byte("wasm"))
	}
	typed := appendBytes(appendBytes(nil, anyType, []byte(typ)), anyValue, value)
	return appendBytes(appendBytes(nil, extensionName, []byte(e.name)), extensionConfig, typed)
}

// readStruct reads a Wasm in the form of a struct; false if it has no module that is fetched.
func (e *extension) readStruct(s *structpb.Struct) (bool, error) {
	plugin := s.GetFields()["config"].GetStructValue()
	vm := member(plugin, "vm_config", "vmConfig").GetStructValue()
	remote := member(member(vm, "code").GetStructValue(), "remote").GetStructValue()
	if remote == nil {
		return false, nil
	}
	uri := member(remote, "http_uri", "httpUri").GetStructValue()
	e.module.URL, e.module.SHA256 = member(uri, "uri").GetStringValue(), member(remote, "sha256").GetStringValue()
	if text := member(uri, "timeout").GetStringValue(); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return false, fmt.Errorf("extension %q: invalid timeout %q: want a duration such as 10s", e.name, text)
		}
		e.module.Timeout = d
	}
	e.failOpen = member(plugin, "fail_open", "failOpen").GetBoolValue() || member(plugin, "failure_policy", "failurePolicy").GetStringValue() == "FAIL_OPEN"
	values := map[string]string{}
	for k, v := range keyValues(vm).GetFields() {
		values[k] = v.GetStringValue()
	}
	return true, e.readVariables(values)
}

func keyValues(vm *structpb.Struct) *structpb.Struct {
	return member(member(vm, "environment_variables", "environmentVariables").GetStructValue(), "key_values", "keyValues").GetStructValue()
}

// localStruct returns an encoded TypedStruct with a file in place of the module. It changes s.
func localStruct(typed []byte, s *structpb.Struct, file string) ([]byte, error) {
	vm := member(s.GetFields()["config"].GetStructValue(), "vm_config", "vmConfig").GetStructValue()
	code, err := structpb.NewStruct(map[string]any{"local": map[string]any{"filename": file}})
	if err != nil {
		return nil, err
	}
	vm.Fields["code"] = structpb.NewStructValue(code)
	values := keyValues(vm).GetFields()
	for _, name := range []string{secretVariable, policyVariable, versionVariable} {
		delete(values, name)
	}
	text, err := proto.Marshal(s)
	if err != nil {
		return nil, err
	}
	return replace(typed, anyValue, text), nil
}

// member returns a member of a struct by one of its names.
func member(s *structpb.Struct, names ...string) *structpb.Value {
	for _, n := range names {
		if v, ok := s.GetFields()[n]; ok {
			return v
		}
	}
	return nil
}

// errMalformed is an encoded message that is not well formed.
var errMalformed = errors.New("a malformed message")

// each calls f with each length-delimited field, its value and the whole field; other fields have a nil value.
func each(b []byte, f func(n protowire.Number, value, whole []byte)) error {
	for len(b) > 0 {
		n, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return errMalformed
		}
		size := protowire.ConsumeFieldValue(n, typ, b[tag:])
		if size < 0 {
			return errMalformed
		}
		var value []byte
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(b[tag:])
		}
		f(n, value, b[:tag+size])
		b = b[tag+size:]
	}
	return nil
}

// field returns the last length-delimited field with a number.
func field(b []byte, number protowire.Number) (value []byte, ok bool) {
	_ = each(b, func(n protowire.Number, v, _ []byte) {
		if n == number && v != nil {
			value, ok = v, true
		}
	})
	return value, ok
}

func last(b []byte, number protowire.Number) []byte {
	v, _ := field(b, number)
	return v
}

// varint returns the last varint with a number.
func varint(b []byte, number protowire.Number) (out uint64) {
	_ = each(b, func(n protowire.Number, v, whole []byte) {
		if n != number || v != nil {
			return
		}
		_, typ, tag := protowire.ConsumeTag(whole)
		if typ == protowire.VarintType {
			out, _ = protowire.ConsumeVarint(whole[tag:])
		}
	})
	return out
}

// replace returns a message with one field of a number, in place of those that it has.
func replace(b []byte, number protowire.Number, value []byte) []byte {
	var out []byte
	_ = each(b, func(n protowire.Number, _, whole []byte) {
		if n != number {
			out = append(out, whole...)
		}
	})
	return appendBytes(out, number, value)
}

func appendBytes(b []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
}
