package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// NameTableType is the type URL of istio.networking.nds.v1.NameTable, the names that an agent resolves. An agent
// subscribes to it on its proxy's stream; there is one resource, without a name. [agent N2]
const NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"

// The registries of a NameInfo.
const (
	KubernetesRegistry = "Kubernetes"
	ExternalRegistry   = "External"
)

// NameInfo is one host of a name table.
type NameInfo struct {
	// Host is in lower case, and may begin with "*.".
	Host string `json:"-"`
	// IPs are its addresses, at least one.
	IPs []netip.Addr `json:"ips"`
	// Registry is KubernetesRegistry for hosts that also have short names, made of Short and Namespace.
	Registry  string `json:"registry,omitempty"`
	Short     string `json:"shortname,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Others are further names of the host.
	Others []string `json:"altHosts,omitempty"`
}

// NameTableJSON returns the value that has the JSON of a name table as Istio shows it.
func NameTableJSON(list []NameInfo) any {
	table := make(map[string]NameInfo, len(list))
	for _, n := range list {
		table[n.Host] = n
	}
	return map[string]any{"table": table}
}

// Field numbers of NameTable, of its map's entries and of NameInfo.
const (
	tableEntries           = 1
	entryHost, entryInfo   = 1, 2
	infoIPs, infoRegistry  = 1, 2
	infoShort, infoSpace   = 3, 4
	infoOthers             = 5
	maxNameBytes, maxNames = 255, 1 << 20
)

// AppendNameInfo appends one entry of an encoded name table. The entries of a table in the order of their hosts are
// its encoding.
func AppendNameInfo(b []byte, n NameInfo) []byte {
	var info []byte
	for _, ip := range n.IPs {
		info = appendText(info, infoIPs, ip.String())
	}
	info = appendText(info, infoRegistry, n.Registry)
	info = appendText(info, infoShort, n.Short)
	info = appendText(info, infoSpace, n.Namespace)
	for _, o := range n.Others {
		info = appendText(info, infoOthers, o)
	}
	entry := appendText(nil, entryHost, n.Host)
	entry = protowire.AppendBytes(protowire.AppendTag(entry, entryInfo, protowire.BytesType), info)
	return protowire.AppendBytes(protowire.AppendTag(b, tableEntries, protowire.BytesType), entry)
}

func appendText(b []byte, n protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), text)
}

var errNameTable = errors.New("name table: invalid encoding")

// ParseNameTable decodes a name table, sorted by host. What cannot be resolved is left out: hosts that are no DNS names,
// addresses that cannot be parsed, and hosts without an address. It returns an error if the encoding is invalid, or if there
// are more than a million hosts. [agent N4]
func ParseNameTable(text []byte) ([]NameInfo, error) {
	var out []NameInfo
	err := eachText(text, func(n protowire.Number, entry []byte) error {
		if n != tableEntries {
			return nil
		}
		var one NameInfo
		var info []byte
		if err := eachText(entry, func(n protowire.Number, v []byte) error {
			switch n {
			case entryHost:
				one.Host = HostName(string(v))
			case entryInfo:
				info = v
			}
			return nil
		}); err != nil {
			return err
		}
		if err := one.parse(info); err != nil {
			return err
		}
		if len(one.IPs) == 0 || !isDNSName(one.Host) {
			return nil
		}
		if len(out) == maxNames {
			return fmt.Errorf("name table: more than %d hosts", maxNames)
		}
		out = append(out, one)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b NameInfo) int { return cmp.Compare(a.Host, b.Host) })
	return out, nil
}

func (n *NameInfo) parse(info []byte) error {
	return eachText(info, func(number protowire.Number, v []byte) error {
		switch number {
		case infoIPs:
			if ip, err := netip.ParseAddr(string(v)); err == nil && ip.Zone() == "" {
				n.IPs = append(n.IPs, ip.Unmap())
			}
		case infoRegistry:
			n.Registry = string(v)
		case infoShort:
			n.Short = HostName(string(v))
		case infoSpace:
			n.Namespace = HostName(string(v))
		case infoOthers:
			if o := HostName(string(v)); isDNSName(o) {
				n.Others = append(n.Others, o)
			}
		}
		return nil
	})
}

// eachText calls f with each length-delimited field.
func eachText(b []byte, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errNameTable
		}
		b = b[size:]
		if typ != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
				return errNameTable
			}
			b = b[size:]
			continue
		}
		v, size := protowire.ConsumeBytes(b)
		if size < 0 {
			return errNameTable
		}
		b = b[size:]
		if err := f(n, v); err != nil {
			return err
		}
	}
	return nil
}

// isDNSName reports whether a name without a final dot can be asked for.
func isDNSName(name string) bool {
	if name == "" || len(name) > maxNameBytes-2 {
		return false
	}
	label := 0
	for i := range len(name) {
		if name[i] != '.' {
			label++
			continue
		}
		if label == 0 || label > 63 {
			return false
		}
		label = 0
	}
	return label > 0 && label <= 63
}
