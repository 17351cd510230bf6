package podplan

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"net/netip"
)

// hash is a number that follows from a name.
func hash(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// nth is an address of a range, counted from its first.
func nth(in netip.Prefix, n uint64) netip.Addr {
	raw := in.Masked().Addr().AsSlice()
	for i := len(raw) - 1; i >= 0 && n > 0; i-- {
		n += uint64(raw[i])
		raw[i] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

// rewritten is the text of a file with its changes, each object on the line where it was.
func rewritten(f File, docs []*document) []byte {
	untouched := true
	for _, d := range docs {
		untouched = untouched && d.changed == nil && !d.dropped
	}
	if untouched {
		return f.Text
	}
	var out bytes.Buffer
	for _, d := range docs {
		for lines := bytes.Count(out.Bytes(), []byte("\n")); lines < d.chunk.Line-1; lines++ {
			out.WriteByte('\n')
		}
		switch {
		case d.dropped:
		case d.changed != nil:
			text, err := json.Marshal(d.changed)
			if err != nil {
				text = []byte("{}") // it came from JSON
			}
			// After the marker, so that it is a document of its own, on its first line.
			out.WriteString("--- ")
			out.Write(text)
			out.WriteByte('\n')
		default:
			if out.Len() > 0 && !bytes.HasPrefix(d.chunk.Text, []byte("---")) {
				out.WriteString("---\n")
			}
			out.Write(d.chunk.Text)
			if !bytes.HasSuffix(d.chunk.Text, []byte("\n")) {
				out.WriteByte('\n')
			}
		}
	}
	return out.Bytes()
}

// Generated is the text of GeneratedFile: the Pods that were made, and the Services that were added. Pods in notReady,
// by their keys, are reported as not ready, so that they get no requests.
func (p *Plan) Generated(notReady map[string]bool) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	for _, object := range p.added {
		_ = enc.Encode(object) // maps and texts can be encoded
	}
	for _, pod := range p.Pods {
		if !pod.written {
			_ = enc.Encode(pod.object(!notReady[pod.Key()]))
		}
	}
	return out.Bytes()
}

// object is the Pod as a node reports it.
func (p Pod) object(ready bool) map[string]any {
	status := "False"
	if ready {
		status = "True"
	}
	meta := map[string]any{"name": p.Name, "namespace": p.Namespace, "labels": p.Labels}
	if p.Template != "" {
		meta["annotations"] = map[string]any{"inject.istio.io/templates": p.Template}
	}
	var containers []any
	for _, c := range p.Containers {
		ports := []any{}
		for _, port := range c.Ports {
			protocol := "TCP"
			if port.UDP {
				protocol = "UDP"
			}
			body := map[string]any{"containerPort": port.Number, "protocol": protocol}
			if port.Name != "" {
				body["name"] = port.Name
			}
			ports = append(ports, body)
		}
		containers = append(containers, map[string]any{"name": c.Name, "image": c.Image, "ports": ports})
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": meta,
		"spec": map[string]any{"serviceAccountName": p.ServiceAccount, "containers": containers},
		"status": map[string]any{
			"phase": "Running", "podIP": p.IP.String(), "conditions": []any{map[string]any{"type": "Ready", "status": status}},
		},
	}
}
