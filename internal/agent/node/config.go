package node

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Annotations that decide configuration. [agent 1.3]
const (
	annotationConfig    = "proxy.istio.io/config"
	annotationDiscovery = "sidecar.istio.io/discoveryAddress"
	annotationStatus    = "status.sidecar.istio.io/port"

	defaultServiceCluster = "istio-proxy"
)

// configure makes the effective proxy configuration; later inputs win field by field:
// defaults, mesh file, environment, the configuration annotation, single annotations,
// flags.
func (f *Facts) configure(in Input) error {
	f.Config = mesh.DefaultProxyConfig()
	f.ConfigSource = []string{"defaults"}
	fromMesh, err := defaultConfig(in.MeshFile)
	if err != nil {
		return fmt.Errorf("read mesh configuration file: %w", err)
	}
	for _, src := range []struct {
		name string
		text []byte
	}{
		{"mesh configuration file", fromMesh},
		{"environment PROXY_CONFIG", []byte(in.Env["PROXY_CONFIG"])},
		{"file PROXY_CONFIG_FILE", in.ConfigFile},
		{"annotation " + annotationConfig, []byte(f.Annotations[annotationConfig])},
	} {
		if strings.TrimSpace(string(src.text)) == "" {
			continue
		}
		if err := apply(f.Config, src.text); err != nil {
			return fmt.Errorf("read proxy configuration from %s: %w", src.name, err)
		}
		f.ConfigSource = append(f.ConfigSource, src.name)
	}
	if err := f.annotate(); err != nil {
		return err
	}
	return f.flags(in)
}

// annotate applies the annotations that set one field each.
func (f *Facts) annotate() error {
	if v := f.Annotations[annotationDiscovery]; v != "" {
		f.Config.DiscoveryAddress = v
		f.ConfigSource = append(f.ConfigSource, "annotation "+annotationDiscovery)
	}
	if v := f.Annotations[annotationStatus]; v != "" {
		port, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			return fmt.Errorf("read annotation %s: %q is no port", annotationStatus, v)
		}
		f.Config.StatusPort = int32(port)
		f.ConfigSource = append(f.ConfigSource, "annotation "+annotationStatus)
	}
	return nil
}

// flags applies what the command line decides; CPU limits only where neither it nor the
// configuration says how many workers to run. [agent F5, F8, F9]
func (f *Facts) flags(in Input) error {
	if in.Flags.ServiceCluster != "" {
		f.Config.ClusterName = &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: in.Flags.ServiceCluster}
	}
	if in.Flags.TemplateFile != "" {
		f.Config.ProxyBootstrapTemplatePath = in.Flags.TemplateFile
	}
	limit := in.CPULimit
	if v := in.Env["ISTIO_CPU_LIMIT"]; v != "" {
		cores, err := strconv.ParseFloat(v, 64)
		if err != nil || cores < 0 || cores > math.MaxInt16 {
			return fmt.Errorf("read environment ISTIO_CPU_LIMIT: %q is no number of cores", v)
		}
		limit = int(math.Ceil(cores))
	}
	set := f.Config.GetConcurrency()
	switch {
	case in.Flags.Concurrency < 0 || in.Flags.Concurrency > math.MaxInt16 || set.GetValue() < 0:
		return fmt.Errorf("read concurrency: want a number of workers, or 0 for one a CPU")
	case in.Flags.Concurrency > 0:
		f.Config.Concurrency = wrapperspb.Int32(int32(in.Flags.Concurrency))
	case set == nil && limit > 0:
		f.Config.Concurrency = wrapperspb.Int32(int32(limit))
	case set != nil && set.GetValue() == 0 && limit > 0:
		f.Warnings = append(f.Warnings, fmt.Sprintf(
			"concurrency 0 runs a worker for every CPU of the machine, but the CPU limit is %d: set concurrency, or leave it out", limit))
	}
	return nil
}

// defaultConfig cuts the proxy's part out of a mesh configuration file.
func defaultConfig(file []byte) ([]byte, error) {
	if len(file) == 0 {
		return nil, nil
	}
	var whole struct {
		DefaultConfig      json.RawMessage `json:"defaultConfig"`
		DefaultConfigSnake json.RawMessage `json:"default_config"`
	}
	if err := yaml.Unmarshal(file, &whole); err != nil {
		return nil, err
	}
	if whole.DefaultConfig == nil {
		return whole.DefaultConfigSnake, nil
	}
	return whole.DefaultConfig, nil
}

// apply lays a YAML or JSON proxy configuration over dst: every field that the text names
// is replaced, the zero value included, but proxyMetadata is merged key by key. Fields
// that this agent does not know are passed over, since charts are newer than agents.
func apply(dst *meshv1.ProxyConfig, text []byte) error {
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	var named map[string]json.RawMessage
	if err := json.Unmarshal(asJSON, &named); err != nil {
		return fmt.Errorf("want a map of fields: %w", err)
	}
	src := &meshv1.ProxyConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(asJSON, src); err != nil {
		return blame(named, err)
	}
	metadata := overlay(dst.GetProxyMetadata(), src.GetProxyMetadata())
	to, from := dst.ProtoReflect(), src.ProtoReflect()
	for key := range named {
		if fd := fieldNamed(to.Descriptor().Fields(), key); fd != nil {
			to.Clear(fd)
			if from.Has(fd) {
				to.Set(fd, from.Get(fd))
			}
		}
	}
	if len(metadata) > 0 {
		dst.ProxyMetadata = metadata
	}
	return nil
}

// blame finds the field that does not parse, since the parser's own error does not say.
func blame(named map[string]json.RawMessage, whole error) error {
	for key, value := range named {
		alone, err := json.Marshal(map[string]json.RawMessage{key: value})
		if err != nil {
			return whole
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(alone, &meshv1.ProxyConfig{}); err != nil {
			return fmt.Errorf("field %s: %s does not fit: %w", key, value, err)
		}
	}
	return whole
}

// fieldNamed finds a field by either of the names that protojson takes.
func fieldNamed(fields protoreflect.FieldDescriptors, key string) protoreflect.FieldDescriptor {
	if fd := fields.ByJSONName(key); fd != nil {
		return fd
	}
	return fields.ByName(protoreflect.Name(key))
}

// EffectiveYAML is the configuration as the start log and the node's metadata show it.
func EffectiveYAML(c *meshv1.ProxyConfig) (string, error) {
	b, err := protojson.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode proxy configuration: %w", err)
	}
	b, err = yaml.JSONToYAML(b)
	return string(b), err
}

// configMap is the configuration as plain JSON values.
func configMap(c proto.Message) (map[string]any, error) {
	b, err := protojson.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode proxy configuration: %w", err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("encode proxy configuration: %w", err)
	}
	return m, nil
}
