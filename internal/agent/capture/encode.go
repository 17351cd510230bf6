package capture

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

var hooks = map[string]*nftables.ChainHook{
	"prerouting": nftables.ChainHookPrerouting,
	"output":     nftables.ChainHookOutput,
}

var names = map[string]byte{
	"ipv4": unix.NFPROTO_IPV4, "ipv6": unix.NFPROTO_IPV6,
	"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP,
}

// addTable puts a table's commands into the transaction and counts its rules. Chains come before
// all rules, because rules jump to them.
func addTable(c *nftables.Conn, t Table) (rules int, err error) {
	table := c.AddTable(&nftables.Table{Name: t.Name, Family: nftables.TableFamilyINet})
	chains := make([]*nftables.Chain, len(t.Chains))
	for i, ch := range t.Chains {
		chains[i] = &nftables.Chain{Name: ch.Name, Table: table}
		if ch.Base.Hook != "" {
			if hooks[ch.Base.Hook] == nil {
				return 0, fmt.Errorf("encode chain %s: no hook %q is known", ch.Name, ch.Base.Hook)
			}
			accept := nftables.ChainPolicyAccept
			chains[i].Type = nftables.ChainType(ch.Base.Type)
			chains[i].Hooknum = hooks[ch.Base.Hook]
			chains[i].Priority = nftables.ChainPriorityRef(nftables.ChainPriority(ch.Base.Priority))
			chains[i].Policy = &accept
		}
		c.AddChain(chains[i])
	}
	for i, ch := range t.Chains {
		for _, r := range ch.Rules {
			exprs, err := encode(r)
			if err != nil {
				return 0, fmt.Errorf("encode rule %q of chain %s: %w", r, ch.Name, err)
			}
			c.AddRule(&nftables.Rule{Table: table, Chain: chains[i], Exprs: exprs})
			rules++
		}
	}
	return rules, nil
}

func encode(r Rule) ([]expr.Any, error) {
	var exprs []expr.Any
	for _, m := range r.Matches {
		e, err := m.encode()
		if err != nil {
			return nil, err
		}
		exprs = append(exprs, e...)
	}
	exprs = append(exprs, &expr.Counter{})
	switch r.Action.Verb {
	case Return:
		return append(exprs, &expr.Verdict{Kind: expr.VerdictReturn}), nil
	case Jump:
		return append(exprs, &expr.Verdict{Kind: expr.VerdictJump, Chain: r.Action.Chain}), nil
	case Redirect:
		return append(exprs,
			&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, r.Action.Port)},
			&expr.Redir{RegisterProtoMin: 1}), nil
	}
	return nil, fmt.Errorf("no verb %q is known", r.Action.Verb)
}

// encode loads the field into register 1 and compares it there.
func (m Match) encode() ([]expr.Any, error) {
	op := expr.CmpOpEq
	if m.Not {
		op = expr.CmpOpNeq
	}
	cmp := func(data []byte) expr.Any { return &expr.Cmp{Op: op, Register: 1, Data: data} }
	meta := func(k expr.MetaKey) expr.Any { return &expr.Meta{Key: k, Register: 1} }
	switch m.Field {
	case InInterface, OutInterface:
		key := expr.MetaKeyIIFNAME
		if m.Field == OutInterface {
			key = expr.MetaKeyOIFNAME
		}
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, m.Name)
		return []expr.Any{meta(key), cmp(name)}, nil
	case Family, Protocol:
		key := expr.MetaKeyNFPROTO
		if m.Field == Protocol {
			key = expr.MetaKeyL4PROTO
		}
		n, ok := names[m.Name]
		if !ok {
			return nil, fmt.Errorf("no %s %q is known", m.Field, m.Name)
		}
		return []expr.Any{meta(key), cmp([]byte{n})}, nil
	case Source, Destination:
		return m.encodeAddress(op), nil
	case TCPPort, UDPPort:
		return m.encodePort(op), nil
	case SocketUID, SocketGID:
		if m.From != m.To {
			return nil, fmt.Errorf("%s takes no range", m.Field)
		}
		key := expr.MetaKeySKUID
		if m.Field == SocketGID {
			key = expr.MetaKeySKGID
		}
		return []expr.Any{meta(key), cmp(binaryutil.NativeEndian.PutUint32(m.From))}, nil
	}
	return nil, fmt.Errorf("no field %q is known", m.Field)
}

// encodeAddress asks for the version of IP first: the tables see both.
func (m Match) encodeAddress(op expr.CmpOp) []expr.Any {
	addr := m.Prefix.Addr()
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if addr.Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	size := uint32(addr.BitLen() / 8)
	if m.Field == Destination {
		offset += size
	}
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
	if m.Prefix.Bits() == 0 && !m.Not {
		return exprs
	}
	exprs = append(exprs, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size})
	if !m.Prefix.IsSingleIP() {
		exprs = append(exprs, &expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: size,
			Mask: net.CIDRMask(m.Prefix.Bits(), addr.BitLen()), Xor: make([]byte, size),
		})
	}
	return append(exprs, &expr.Cmp{Op: op, Register: 1, Data: m.Prefix.Masked().Addr().AsSlice()})
}

func (m Match) encodePort(op expr.CmpOp) []expr.Any {
	proto := byte(unix.IPPROTO_TCP)
	if m.Field == UDPPort {
		proto = unix.IPPROTO_UDP
	}
	from := binary.BigEndian.AppendUint16(nil, uint16(m.From))
	to := binary.BigEndian.AppendUint16(nil, uint16(m.To))
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	if m.From == m.To {
		return append(exprs, &expr.Cmp{Op: op, Register: 1, Data: from})
	}
	return append(exprs, &expr.Range{Op: op, Register: 1, FromData: from, ToData: to})
}
