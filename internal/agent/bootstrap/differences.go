package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// CheckDifferences returns an error unless a text is an encoded bootstrap that may be merged into the one that Build makes: one that
// leaves alone what the agent needs. The error names the field. [agent B26]
func CheckDifferences(text []byte) error {
	_, err := differences(text)
	return err
}

func differences(text []byte) (*bootstrapv3.Bootstrap, error) {
	if len(text) > mesh.MaxBootstrap {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(text), mesh.MaxBootstrap)
	}
	d := &bootstrapv3.Bootstrap{}
	if err := proto.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("parse a bootstrap: %w", err)
	}
	if n := len(d.ProtoReflect().GetUnknown()); n > 0 {
		return nil, fmt.Errorf("parse a bootstrap: %d bytes of fields that the agent does not know", n)
	}
	var err error
	d.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if why := mesh.OwnBootstrapField(string(f.Name())); why != "" {
			err = fmt.Errorf("%s must not be changed: %s", f.Name(), why)
		}
		return err == nil
	})
	return d, err
}

// Merged returns the bootstrap with differences, both encoded as protobuf, in which Envoy reads files called *.pb: the agent does not have
// the types of all extensions, which JSON needs. It is merged as Envoy merges ISTIO_BOOTSTRAP_OVERRIDE: values are replaced,
// messages merged, and lists get longer; a duration is one value. It changes Message.
func (b *Bootstrap) Merged(text []byte) ([]byte, error) {
	d, err := differences(text)
	if err != nil {
		return nil, fmt.Errorf("merge what discovery changes in the bootstrap: %w", err)
	}
	whole, err := b.Complete()
	if err != nil {
		return nil, err
	}
	clearDurations(whole.ProtoReflect(), d.ProtoReflect())
	proto.Merge(whole, d)
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	return out, nil
}

// clearDurations clears in dst the durations that src has: the fraction of a second of one must not stay beside the seconds of the other.
func clearDurations(dst, src protoreflect.Message) {
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsList() || f.IsMap() || !dst.Has(f):
		case f.Message().FullName() == "google.protobuf.Duration":
			dst.Clear(f)
		default:
			clearDurations(dst.Get(f).Message(), v.Message())
		}
		return true
	})
}
