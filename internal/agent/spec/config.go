package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/spelling"
)

// Annotations that decide configuration. [agent 1.3]
const (
	annotationConfig    = "proxy.istio.io/config"
	annotationDiscovery = "sidecar.istio.io/discoveryAddress"
	annotationStatus    = "status.sidecar.istio.io/port"

	defaultServiceCluster = "istio-proxy"
)

// configure makes the effective proxy configuration; later inputs override earlier ones, field by field:
// defaults, mesh file, environment, PROXY_CONFIG_FILE, the configuration annotation, annotations of one
// field, flags.
func (b *builder) configure() error {
	s := b.s
	s.Config, s.ConfigSources = mesh.DefaultProxyConfig(), []string{"defaults"}
	meshFile, err := b.file(b.set.Text("meshConfig"))
	if err != nil {
		return err
	}
	fromMesh, err := defaultConfig(meshFile)
	if err != nil {
		return fmt.Errorf("read mesh configuration file %s: %w", b.set.Text("meshConfig"), err)
	}
	fromFile, err := b.file(b.set.Text("PROXY_CONFIG_FILE"))
	if err != nil {
		return err
	}
	for _, src := range []struct {
		name string
		text []byte
	}{
		{"mesh configuration file", fromMesh},
		{"environment PROXY_CONFIG", []byte(b.set.Text("PROXY_CONFIG"))},
		{"file PROXY_CONFIG_FILE", fromFile},
		{"annotation " + annotationConfig, []byte(s.Node.Annotations[annotationConfig])},
	} {
		if strings.TrimSpace(string(src.text)) == "" {
			continue
		}
		if err := apply(s.Config, src.text); err != nil {
			return fmt.Errorf("read proxy configuration from %s: %w", src.name, err)
		}
		for _, text := range unknownFields(src.text) {
			b.warn("%s: %s", src.name, text)
		}
		s.ConfigSources = append(s.ConfigSources, src.name)
	}
	if err := b.configAnnotations(); err != nil {
		return err
	}
	return b.configFlags()
}

// configAnnotations applies the annotations that set one field each.
func (b *builder) configAnnotations() error {
	s := b.s
	if v := s.Node.Annotations[annotationDiscovery]; v != "" {
		s.Config.DiscoveryAddress = v
		s.ConfigSources = append(s.ConfigSources, "annotation "+annotationDiscovery)
	}
	if v := s.Node.Annotations[annotationStatus]; v != "" {
		port, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			return fmt.Errorf("annotation %s: invalid port %q: want 0–65535", annotationStatus, v)
		}
		s.Config.StatusPort = int32(port)
		s.ConfigSources = append(s.ConfigSources, "annotation "+annotationStatus)
	}
	return nil
}

// configFlags applies the flags that are fields of the configuration, and the CPU limit if neither
// a flag nor the configuration sets the number of workers. [agent F5, F8, F9]
func (b *builder) configFlags() error {
	config := b.s.Config
	if name := b.set.TextOr("serviceCluster", ""); name != "" {
		config.ClusterName = &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: name}
	}
	limit, workers := b.cpuLimit(), b.set.Int("concurrency")
	set := config.GetConcurrency()
	switch {
	case set.GetValue() < 0 || set.GetValue() > math.MaxInt16:
		return fmt.Errorf("proxy configuration concurrency: invalid number %d: want 0–%d", set.GetValue(), math.MaxInt16)
	case workers > 0:
		config.Concurrency = wrapperspb.Int32(int32(workers))
	case set == nil && limit > 0:
		config.Concurrency = wrapperspb.Int32(int32(limit))
	case set != nil && set.GetValue() == 0 && limit > 0:
		b.warn("concurrency 0 runs one worker per CPU of the machine, but the CPU limit is %d: set concurrency, or leave it out", limit)
	}
	return nil
}

// cpuLimit is the number of CPUs that Envoy may use, 0 for no limit. ISTIO_CPU_LIMIT is from the time when
// the container was started, so that a limit that changes later replaces it.
func (b *builder) cpuLimit() int {
	if _, given := b.set.Given("ISTIO_CPU_LIMIT"); !given || b.in.Host.CPULimit != b.s.cpuLimit {
		return b.in.Host.CPULimit
	}
	return int(math.Ceil(b.set.Float("ISTIO_CPU_LIMIT")))
}

// merge keeps the running agent's values of the fields that only another agent can change, and puts the
// environment over proxyMetadata.
func (b *builder) merge() error {
	s := b.s
	if r := b.in.Running; r != nil {
		s.Cold = changedFields(r.Config, s.Config, Cold)
		s.Config = keepFixed(r.Config, s.Config)
	}
	b.env = overlay(s.Config.GetProxyMetadata(), b.in.Env)
	b.set = b.set.WithEnvBeneath(s.Config.GetProxyMetadata())
	b.warnIgnored()
	return nil
}

// plaintext reports whether discovery is reached without TLS. [agent S8]
func plaintext(address string) bool { return strings.HasSuffix(address, ":15010") }

// overlay merges two maps; top's values win.
func overlay(bottom, top map[string]string) map[string]string {
	out := make(map[string]string, len(bottom)+len(top))
	maps.Copy(out, bottom)
	maps.Copy(out, top)
	return out
}

// defaultConfig returns the proxy configuration of a mesh configuration file, nil if it has none.
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

// apply merges a YAML or JSON proxy configuration into dst: every field that the text names
// is replaced, the zero value included, but proxyMetadata is merged key by key. Unknown fields
// are ignored, because charts can be newer than agents; unknownFields names them.
func apply(dst *meshv1.ProxyConfig, text []byte) error {
	asJSON, err := toJSON(text)
	if err != nil {
		return err
	}
	var named map[string]json.RawMessage
	if err := json.Unmarshal(asJSON, &named); err != nil {
		return fmt.Errorf("want a map of fields: %w", err)
	}
	src := &meshv1.ProxyConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(asJSON, src); err != nil {
		return fieldError(named, err)
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

// toJSON returns a YAML or JSON proxy configuration in protobuf's JSON mapping: with durations in seconds, which Istio also takes in Go's
// notation, such as 1m30s.
func toJSON(text []byte) ([]byte, error) {
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.UseNumber() // a large number stays what it is
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	return json.Marshal(inSeconds(tree, (&meshv1.ProxyConfig{}).ProtoReflect().Descriptor()))
}

// inSeconds returns a message with its durations in protobuf's notation. What is no valid duration, or not known, stays as it is.
func inSeconds(v any, md protoreflect.MessageDescriptor) any {
	if md == nil {
		return v
	}
	switch v := v.(type) {
	case string:
		if md.FullName() != "google.protobuf.Duration" {
			return v
		}
		d, err := time.ParseDuration(v)
		if err != nil {
			return v
		}
		b, err := protojson.Marshal(durationpb.New(d))
		if err != nil {
			return v
		}
		return json.RawMessage(b)
	case map[string]any:
		for key, value := range v {
			fd := fieldNamed(md.Fields(), key)
			switch {
			case fd == nil:
			case fd.IsMap():
				values, _ := value.(map[string]any)
				for k := range values {
					values[k] = inSeconds(values[k], fd.MapValue().Message())
				}
			default:
				v[key] = inSeconds(value, fd.Message())
			}
		}
	case []any:
		for i := range v {
			v[i] = inSeconds(v[i], md)
		}
	}
	return v
}

// unknownFields says which fields of a YAML or JSON proxy configuration have no effect, since nobody knows them, and what may have been
// meant; nothing of one that cannot be parsed, of which apply says it.
func unknownFields(text []byte) (out []string) {
	var named map[string]json.RawMessage
	if asJSON, err := toJSON(text); err != nil || json.Unmarshal(asJSON, &named) != nil {
		return nil
	}
	fields := (&meshv1.ProxyConfig{}).ProtoReflect().Descriptor().Fields()
	for _, key := range slices.Sorted(maps.Keys(named)) {
		if fieldNamed(fields, key) != nil {
			alone, err := json.Marshal(map[string]json.RawMessage{key: named[key]})
			if err != nil {
				continue
			}
			if err := protojson.Unmarshal(alone, &meshv1.ProxyConfig{}); err != nil {
				if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
					out = append(out, fmt.Sprintf("unknown field %s in %s has no effect", name, key))
				}
			}
			continue
		}
		text, least := fmt.Sprintf("unknown field %.100q has no effect", key), 4
		near := ""
		for i := range fields.Len() {
			name := fields.Get(i).JSONName()
			if d := spelling.Distance(strings.ToLower(key), strings.ToLower(name)); d < least && d < len(key) {
				near, least = name, d
			}
		}
		if near != "" {
			text += "; did you mean " + near + "?"
		}
		out = append(out, text)
	}
	return out
}

// fieldError names the field that cannot be parsed, because the parser's error does not.
func fieldError(named map[string]json.RawMessage, whole error) error {
	for key, value := range named {
		alone, err := json.Marshal(map[string]json.RawMessage{key: value})
		if err != nil {
			return whole
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(alone, &meshv1.ProxyConfig{}); err != nil {
			return fmt.Errorf("field %s: invalid value %s: %w", key, value, err)
		}
	}
	return whole
}

// fieldNamed finds a field by either of the names that protojson accepts.
func fieldNamed(fields protoreflect.FieldDescriptors, key string) protoreflect.FieldDescriptor {
	if fd := fields.ByJSONName(key); fd != nil {
		return fd
	}
	return fields.ByName(protoreflect.Name(key))
}

// EffectiveYAML returns the configuration as the log of the start shows it. [agent F13]
func EffectiveYAML(c *meshv1.ProxyConfig) (string, error) {
	b, err := protojson.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode proxy configuration: %w", err)
	}
	b, err = yaml.JSONToYAML(b)
	return string(b), err
}

// configMap returns the configuration as plain JSON values.
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
