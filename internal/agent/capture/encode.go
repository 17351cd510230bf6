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

// addTable puts a table's commands into the transaction. Chains come before all rules, because
// rules jump to them.
func addTable(c *nftables.Conn, t Table) (err error) {
	table := c.AddTable(&nftables.Table{Name: t.Name, Family: nftables.TableFamilyINet})
	chains := make([]*nftables.Chain, len(t.Chains))
	for i, ch := range t.Chains {
		if chains[i], err = nativeChain(ch, table); err != nil {
			return err
		}
		c.AddChain(chains[i])
	}
	for i, ch := range t.Chains {
		for _, rule := range ch.Rules {
			for _, r := range rule.native() {
				exprs, err := encode(r)
				if err != nil {
					return fmt.Errorf("encode rule %q of chain %s: %w", r, ch.Name, err)
				}
				c.AddRule(&nftables.Rule{Table: table, Chain: chains[i], Exprs: exprs})
			}
		}
	}
	return nil
}

// rules is how many rules the kernel will have.
func (t Table) rules() (n int) {
	for _, ch := range t.Chains {
		for _, r := range ch.Rules {
			n += len(r.native())
		}
	}
	return n
}

func nativeChain(ch Chain, table *nftables.Table) (*nftables.Chain, error) {
	chain := &nftables.Chain{Name: ch.Name, Table: table}
	if ch.Base.Hook == "" {
		return chain, nil
	}
	if hooks[ch.Base.Hook] == nil {
		return nil, fmt.Errorf("encode chain %s: no hook %q is known", ch.Name, ch.Base.Hook)
	}
	accept := nftables.ChainPolicyAccept
	chain.Type, chain.Hooknum, chain.Policy = nftables.ChainType(ch.Base.Type), hooks[ch.Base.Hook], &accept
	chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(ch.Base.Priority))
	return chain, nil
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
	action, err := r.Action.encode()
	return append(append(exprs, &expr.Counter{}), action...), err
}

// encode uses register 1 for what the action needs.
func (a Action) encode() ([]expr.Any, error) {
	verdict := func(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k, Chain: a.Chain}} }
	port := &expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, a.Port)}
	mark := &expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(a.Mark)}
	packetMark := func(set bool) expr.Any {
		return &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: set}
	}
	switch a.Verb {
	case Return:
		return verdict(expr.VerdictReturn), nil
	case Accept:
		return verdict(expr.VerdictAccept), nil
	case Drop:
		return verdict(expr.VerdictDrop), nil
	case Jump:
		return verdict(expr.VerdictJump), nil
	case Redirect:
		return []expr.Any{port, &expr.Redir{RegisterProtoMin: 1}}, nil
	case TProxy:
		// Unspecified: whichever of both families the packet is of.
		return append([]expr.Any{port,
			&expr.TProxy{Family: unix.NFPROTO_UNSPEC, TableFamily: unix.NFPROTO_INET, RegPort: 1},
			mark, packetMark(true)}, verdict(expr.VerdictAccept)...), nil
	case SetMark:
		return []expr.Any{mark, packetMark(true)}, nil
	case SaveMark:
		return []expr.Any{packetMark(false), &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}, nil
	case RestoreMark:
		return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, packetMark(true)}, nil
	case SetZone:
		zone := &expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint16(uint16(a.Mark))}
		return []expr.Any{zone, &expr.Ct{Key: expr.CtKeyZONE, Register: 1, SourceRegister: true}}, nil
	}
	return nil, fmt.Errorf("no verb %q is known", a.Verb)
}

var stateBits = map[string]uint32{
	"invalid":             expr.CtStateBitINVALID,
	"related,established": expr.CtStateBitRELATED | expr.CtStateBitESTABLISHED,
}

// encode loads the field into register 1 and compares it there.
func (m Match) encode() ([]expr.Any, error) {
	op := expr.CmpOpEq
	if m.Not {
		op = expr.CmpOpNeq
	}
	meta := func(k expr.MetaKey, data []byte) []expr.Any {
		return []expr.Any{&expr.Meta{Key: k, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
	}
	switch m.Field {
	case InInterface, OutInterface:
		key := expr.MetaKeyIIFNAME
		if m.Field == OutInterface {
			key = expr.MetaKeyOIFNAME
		}
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, m.Name)
		return meta(key, name), nil
	case Family, Protocol:
		key := expr.MetaKeyNFPROTO
		if m.Field == Protocol {
			key = expr.MetaKeyL4PROTO
		}
		n, ok := names[m.Name]
		if !ok {
			return nil, fmt.Errorf("no %s %q is known", m.Field, m.Name)
		}
		return meta(key, []byte{n}), nil
	case Source, Destination:
		return m.encodeAddress(op), nil
	case TCPPort, UDPPort, UDPSource:
		return m.encodePort(op), nil
	case SocketUID, SocketGID, PacketMark, ConnMark:
		if m.From != m.To {
			return nil, fmt.Errorf("%s takes no range", m.Field)
		}
		number := binaryutil.NativeEndian.PutUint32(m.From)
		if m.Field == ConnMark {
			return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: number}}, nil
		}
		return meta(numberKeys[m.Field], number), nil
	case SocketCgroup:
		return m.encodeCgroup()
	case ConnState:
		return m.encodeState()
	}
	return nil, fmt.Errorf("no field %q is known", m.Field)
}

var numberKeys = map[Field]expr.MetaKey{
	SocketUID: expr.MetaKeySKUID, SocketGID: expr.MetaKeySKGID, PacketMark: expr.MetaKeyMARK,
}

// encodeState asks whether any of the states' bits is set.
func (m Match) encodeState() ([]expr.Any, error) {
	bits, ok := stateBits[m.Name]
	if !ok || m.Not {
		return nil, fmt.Errorf("no %s %q is known", m.Field, m.value())
	}
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}, nil
}

// encodeCgroup compares the number of the socket's ancestor cgroup at the path's level. Where there
// is none so deep, the kernel leaves the rule, so that what is negated would not hold either.
func (m Match) encodeCgroup() ([]expr.Any, error) {
	if m.Not {
		return nil, fmt.Errorf("%s cannot be negated", m.Field)
	}
	id, err := cgroupID(m.Name)
	if err != nil {
		return nil, err
	}
	return []expr.Any{
		&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: cgroupLevel(m.Name), Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint64(id)},
	}, nil
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
	proto, offset := byte(unix.IPPROTO_UDP), uint32(2)
	switch m.Field {
	case TCPPort:
		proto = unix.IPPROTO_TCP
	case UDPSource:
		offset = 0
	}
	from := binary.BigEndian.AppendUint16(nil, uint16(m.From))
	to := binary.BigEndian.AppendUint16(nil, uint16(m.To))
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
	}
	if m.From == m.To {
		return append(exprs, &expr.Cmp{Op: op, Register: 1, Data: from})
	}
	return append(exprs, &expr.Range{Op: op, Register: 1, FromData: from, ToData: to})
}
