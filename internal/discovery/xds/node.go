package xds

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds on a node, besides maxNode for all of it. Metadata has its own in package mesh.
const (
	maxExtensions    = 4096
	maxMetadataKeys  = 512
	maxMetadataValue = 128 << 10 // bytes, encoded, of a value that is read
	maxNodeText      = 256       // bytes, of a name or version in a node
	maxBuildVersion  = 4096      // bytes, encoded
)

// decodeNode reads the encoded node of a stream's first request; of its metadata, which
// may hold all annotations of a Pod, only what is used is decoded. The error is a refusal
// that says what is wrong with it.
func decodeNode(b []byte) (mesh.Node, error) {
	d := nodeDecoder{metadata: map[string]any{}}
	err := eachField(b, d.field)
	if err == nil {
		if d.out.NodeID, err = mesh.DecodeNodeID(d.id); err == nil {
			d.out.Metadata, err = mesh.DecodeMetadata(d.metadata)
			d.config.into(&d.out.Metadata)
		}
	}
	if err == nil {
		d.out.UserAgent = d.userAgent()
		err = checkTexts(d.out, d.id)
	}
	if err == nil {
		return d.out, nil
	}
	text := err.Error()
	if d.out.ID != "" {
		text = fmt.Sprintf("node %s: %s", printable.Quote(d.id, maxNodeText), text)
	}
	return mesh.Node{}, &refusal{codes.InvalidArgument, reasonNode, text}
}

// checkTexts returns an error if a text of a node is not printable: they are listed, compared and
// logged, and no honest proxy has such.
func checkTexts(n mesh.Node, id string) error {
	m := n.Metadata
	for name, v := range map[string]string{
		"id": id, "user agent": n.UserAgent, "locality": n.Locality.String(), "metadata NAME": m.Name, "metadata NAMESPACE": m.Namespace,
		"metadata SERVICE_ACCOUNT": m.ServiceAccount, "metadata CLUSTER_ID": m.ClusterID, "metadata NETWORK": m.Network, "metadata ISTIO_VERSION": m.IstioVersion,
		"metadata AUTO_REGISTER_GROUP": m.AutoRegisterGroup,
	} {
		if !printable.Is(v) {
			return fmt.Errorf("invalid %s %s: want printable characters", name, printable.Quote(v, maxNodeText))
		}
	}
	for k, v := range m.Labels {
		if !printable.Is(k) || !printable.Is(v) {
			return fmt.Errorf("invalid metadata LABELS, label %s: want printable characters", printable.Quote(k+"="+v, maxNodeText))
		}
	}
	return nil
}

// errNoNode is a first request that does not say who sends it.
var errNoNode error = &refusal{codes.InvalidArgument, reasonNode, "first request without a node"}

// nodeDecoder reads an envoy.config.core.v3.Node.
type nodeDecoder struct {
	out           mesh.Node
	id            string
	metadata      map[string]any
	config        proxyConfig
	keys          int
	name, version string
	build         corev3.BuildVersion
}

func (d *nodeDecoder) field(n protowire.Number, v []byte) (err error) {
	switch n {
	case 1:
		d.id, err = text("node id", v, 1024)
	case 2:
		if len(v) <= maxNodeText && printable.Is(string(v)) {
			d.out.Service = string(v)
		}
	case 3:
		err = eachField(v, func(n protowire.Number, v []byte) error {
			if n != 1 {
				return nil
			}
			return d.entry(v)
		})
	case 4:
		err = eachField(v, d.locality)
	case 6:
		d.name, err = text("user agent", v, maxNodeText)
	case 7:
		d.version, err = text("user agent's version", v, maxNodeText)
	case 8:
		if len(v) > maxBuildVersion {
			return fmt.Errorf("user agent's build version of %d bytes: want at most %d", len(v), maxBuildVersion)
		}
		err = proto.Unmarshal(v, &d.build)
	case 9:
		err = d.extension(v)
	}
	return err
}

// entry reads one key and value of the metadata.
func (d *nodeDecoder) entry(v []byte) error {
	if d.keys++; d.keys > maxMetadataKeys {
		return fmt.Errorf("node metadata: more than %d keys: want at most that many", maxMetadataKeys)
	}
	var key string
	var value []byte
	err := eachField(v, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			if len(v) <= maxNodeText {
				key = string(v)
			}
		case 2:
			value = v
		}
		return nil
	})
	if err == nil && mesh.IsProxyConfig(key) {
		d.config = decodeProxyConfig(value)
	}
	if err != nil {
		return err
	}
	if !mesh.ReadsMetadata(key) {
		d.text(key, value)
		return nil
	}
	if len(value) > maxMetadataValue {
		return fmt.Errorf("node metadata %s of %d bytes: want at most %d", key, len(value), maxMetadataValue)
	}
	var decoded structpb.Value
	if err := proto.Unmarshal(value, &decoded); err != nil {
		return fmt.Errorf("node metadata %s: %w", key, err)
	}
	d.metadata[key] = decoded.AsInterface()
	return nil
}

// text keeps the value of a key, an encoded structpb.Value, if it is a text that EnvoyFilters may select the proxy by. What cannot be read, or
// is not printable, is as if it were not there.
func (d *nodeDecoder) text(key string, value []byte) {
	const stringValue = 3
	said, found := "", false
	err := eachField(value, func(n protowire.Number, v []byte) error {
		if n == stringValue && len(v) <= maxNodeText {
			said, found = string(v), true
		}
		return nil
	})
	if err == nil && found && mesh.IsText(key, said) && printable.Is(key) && printable.Is(said) {
		d.metadata[key] = said
	}
}

// proxyConfig is what is used of a node's ProxyConfig.
type proxyConfig struct {
	notApplied     mesh.ProxyConfigFields
	readinessProbe bool
	topology       mesh.Topology
	tracing        mesh.Tracing
	accessLogs     bool
}

func (c proxyConfig) into(m *mesh.Metadata) {
	m.NotApplied, m.ReadinessProbe, m.Topology, m.Tracing, m.AccessLogService = c.notApplied, c.readinessProbe, c.topology, c.tracing, c.accessLogs
}

// decodeProxyConfig reads an encoded ProxyConfig, a structpb.Value. Nothing else is copied, and nothing refused: what cannot be read is as if
// it were not there.
func decodeProxyConfig(config []byte) (out proxyConfig) {
	err := eachKey(config, func(name string, v []byte) error {
		var decoded structpb.Value
		if used := mesh.IsTopology(name) || mesh.IsTracing(name) || mesh.IsAccessLogService(name); used && len(v) <= maxMetadataValue {
			if err := proto.Unmarshal(v, &decoded); err != nil {
				return err
			}
		}
		if mesh.IsTopology(name) {
			out.topology = mesh.DecodeTopology(decoded.AsInterface())
		} else if mesh.IsAccessLogService(name) {
			out.accessLogs = mesh.DecodeAccessLogService(decoded.AsInterface())
		} else if mesh.IsTracing(name) {
			whole := false
			if out.tracing, whole = mesh.DecodeTracing(decoded.AsInterface()); !whole || len(v) > maxMetadataValue {
				out.notApplied |= mesh.TracingNotApplied
			}
		}
		return eachKey(v, func(inner string, _ []byte) error {
			out.notApplied |= mesh.ProxyConfigField(name, inner)
			out.readinessProbe = out.readinessProbe || mesh.IsReadinessProbe(name)
			return nil
		})
	})
	if err != nil {
		return proxyConfig{}
	}
	return out
}

// eachKey calls f with every key of an encoded structpb.Value that is a struct, and its encoded
// value. Of a longer key it is the first maxNodeText bytes.
func eachKey(b []byte, f func(key string, v []byte) error) error {
	const structValue, structFields, entryKey, entryValue = 5, 1, 1, 2
	return eachField(b, func(n protowire.Number, v []byte) error {
		if n != structValue {
			return nil
		}
		return eachField(v, func(n protowire.Number, v []byte) error {
			if n != structFields {
				return nil
			}
			var key string
			var value []byte
			err := eachField(v, func(n protowire.Number, v []byte) error {
				switch n {
				case entryKey:
					key = string(v[:min(len(v), maxNodeText)])
				case entryValue:
					value = v
				}
				return nil
			})
			if err != nil {
				return err
			}
			return f(key, value)
		})
	})
}

func (d *nodeDecoder) locality(n protowire.Number, v []byte) (err error) {
	l := &d.out.Locality
	switch n {
	case 1:
		l.Region, err = text("region", v, maxNodeText)
	case 2:
		l.Zone, err = text("zone", v, maxNodeText)
	case 3:
		l.Subzone, err = text("sub-zone", v, maxNodeText)
	}
	return err
}

func (d *nodeDecoder) extension(v []byte) error {
	if d.out.Extensions == nil {
		d.out.Extensions = map[string]bool{}
	}
	if len(d.out.Extensions) == maxExtensions {
		return fmt.Errorf("more than %d extensions: want at most that many", maxExtensions)
	}
	return eachField(v, func(n protowire.Number, v []byte) error {
		if n != 1 {
			return nil
		}
		name, err := text("extension", v, maxNodeText)
		d.out.Extensions[name] = true
		return err
	})
}

func (d *nodeDecoder) userAgent() string {
	version := d.version
	if b := d.build.GetVersion(); b != nil {
		version = fmt.Sprintf("%d.%d.%d", b.GetMajorNumber(), b.GetMinorNumber(), b.GetPatch())
	}
	if version == "" {
		return d.name
	}
	return d.name + "/" + version
}

// nodeCost is the approximate memory of a node during its stream, in bytes: as it is, as the key by
// which the registry finds its class, and as the names under which it is counted.
func nodeCost(n mesh.Node) int {
	m := n.Metadata
	size := len(n.ID) + len(n.Domain) + len(m.Name) + len(m.Namespace) + len(m.ServiceAccount) + len(m.ClusterID) + len(m.Network) + len(m.IstioVersion) + len(m.AutoRegisterGroup) +
		len(n.UserAgent) + len(n.Service) + len(m.Texts.String()) + len(m.Tracing.Tags) + len(n.Locality.Region) + len(n.Locality.Zone) + len(n.Locality.Subzone) + 64*len(m.InstanceIPs)
	for k, v := range m.Labels {
		size += costOf(k) + costOf(v)
	}
	return 3 * size
}
