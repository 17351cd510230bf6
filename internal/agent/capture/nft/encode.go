package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

var hooks = map[string]*nftables.ChainHook{
	"prerouting": nftables.ChainHookPrerouting,
	"output":     nftables.ChainHookOutput,
}

var familyAndProtocolNumbers = map[string]byte{
	"ipv4": unix.NFPROTO_IPV4, "ipv6": unix.NFPROTO_IPV6,
	"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP,
}

// addTable puts a table's commands into the transaction. Chains come before all rules, because
// rules jump to them.
func addTable(c *nftables.Conn, t plan.Table) (err error) {
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
			for _, r := range rule.Nftables() {
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

func nativeChain(ch plan.Chain, table *nftables.Table) (*nftables.Chain, error) {
	chain := &nftables.Chain{Name: ch.Name, Table: table}
	if ch.Base.Hook == "" {
		return chain, nil
	}
	if hooks[ch.Base.Hook] == nil {
		return nil, fmt.Errorf("encode chain %s: invalid hook %q: want prerouting or output", ch.Name, ch.Base.Hook)
	}
	accept := nftables.ChainPolicyAccept
	chain.Type, chain.Hooknum, chain.Policy = nftables.ChainType(ch.Base.Type), hooks[ch.Base.Hook], &accept
	chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(ch.Base.Priority))
	return chain, nil
}

func encode(r plan.Rule) ([]expr.Any, error) {
	var exprs []expr.Any
	for _, m := range r.Matches {
		e, err := encodeMatch(m)
		if err != nil {
			return nil, err
		}
		exprs = append(exprs, e...)
	}
	action, err := encodeAction(r.Action)
	return append(append(exprs, &expr.Counter{}), action...), err
}

// encodeAction uses register 1 for what the action needs.
func encodeAction(a plan.Action) ([]expr.Any, error) {
	verdict := func(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k, Chain: a.Chain}} }
	port := &expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, a.Port)}
	mark := &expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(a.Mark)}
	packetMark := func(set bool) expr.Any {
		return &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: set}
	}
	switch a.Verb {
	case plan.Return:
		return verdict(expr.VerdictReturn), nil
	case plan.Accept:
		return verdict(expr.VerdictAccept), nil
	case plan.Drop:
		return verdict(expr.VerdictDrop), nil
	case plan.Jump:
		return verdict(expr.VerdictJump), nil
	case plan.Redirect:
		return []expr.Any{port, &expr.Redir{RegisterProtoMin: 1}}, nil
	case plan.TProxy:
		// Unspecified: of the packet's own family.
		return append([]expr.Any{port,
			&expr.TProxy{Family: unix.NFPROTO_UNSPEC, TableFamily: unix.NFPROTO_INET, RegPort: 1},
			mark, packetMark(true)}, verdict(expr.VerdictAccept)...), nil
	case plan.SetMark:
		return []expr.Any{mark, packetMark(true)}, nil
	case plan.SaveMark:
		return []expr.Any{packetMark(false), &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}, nil
	case plan.RestoreMark:
		return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, packetMark(true)}, nil
	case plan.SetZone:
		zone := &expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint16(uint16(a.Mark))}
		return []expr.Any{zone, &expr.Ct{Key: expr.CtKeyZONE, Register: 1, SourceRegister: true}}, nil
	}
	return nil, fmt.Errorf("invalid verb %q", a.Verb)
}

var stateBits = map[string]uint32{
	"invalid":             expr.CtStateBitINVALID,
	"related,established": expr.CtStateBitRELATED | expr.CtStateBitESTABLISHED,
}

// encodeMatch loads the field into register 1 and compares it there.
func encodeMatch(m plan.Match) ([]expr.Any, error) {
	op := expr.CmpOpEq
	if m.Not {
		op = expr.CmpOpNeq
	}
	meta := func(k expr.MetaKey, data []byte) []expr.Any {
		return []expr.Any{&expr.Meta{Key: k, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
	}
	switch m.Field {
	case plan.InInterface, plan.OutInterface:
		key := expr.MetaKeyIIFNAME
		if m.Field == plan.OutInterface {
			key = expr.MetaKeyOIFNAME
		}
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, m.Name)
		return meta(key, name), nil
	case plan.Family, plan.Protocol:
		key := expr.MetaKeyNFPROTO
		if m.Field == plan.Protocol {
			key = expr.MetaKeyL4PROTO
		}
		n, ok := familyAndProtocolNumbers[m.Name]
		if !ok {
			return nil, fmt.Errorf("invalid %s %q", m.Field, m.Name)
		}
		return meta(key, []byte{n}), nil
	case plan.Source, plan.Destination:
		return encodeAddress(m, op), nil
	case plan.TCPPort, plan.UDPPort, plan.UDPSource:
		return encodePort(m, op), nil
	case plan.SocketUID, plan.SocketGID, plan.PacketMark, plan.ConnMark:
		if m.From != m.To {
			return nil, fmt.Errorf("invalid range %d-%d of %s: want one number", m.From, m.To, m.Field)
		}
		number := binaryutil.NativeEndian.PutUint32(m.From)
		if m.Field == plan.ConnMark {
			return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: number}}, nil
		}
		return meta(numberKeys[m.Field], number), nil
	case plan.SocketCgroup:
		return encodeCgroup(m)
	case plan.ConnState:
		return encodeState(m)
	}
	return nil, fmt.Errorf("invalid field %q", m.Field)
}

var numberKeys = map[plan.Field]expr.MetaKey{
	plan.SocketUID: expr.MetaKeySKUID, plan.SocketGID: expr.MetaKeySKGID, plan.PacketMark: expr.MetaKeyMARK,
}

// encodeState tests whether any of the states' bits is set.
func encodeState(m plan.Match) ([]expr.Any, error) {
	bits, ok := stateBits[m.Name]
	if !ok || m.Not {
		return nil, fmt.Errorf("invalid match %q: want the state invalid, or related,established", m)
	}
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}, nil
}

// encodeCgroup compares the number of the socket's ancestor cgroup at the path's level. Where the
// socket's cgroup is less deep, the kernel does not evaluate the rest of the rule, so that a negated
// match would not hold either.
func encodeCgroup(m plan.Match) ([]expr.Any, error) {
	if m.Not {
		return nil, fmt.Errorf("invalid match %q: %s cannot be negated", m, m.Field)
	}
	id, err := cgroupID(m.Name)
	if err != nil {
		return nil, err
	}
	return []expr.Any{
		&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: m.CgroupLevel(), Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint64(id)},
	}, nil
}

// encodeAddress matches the version of IP first: the tables see both.
func encodeAddress(m plan.Match, op expr.CmpOp) []expr.Any {
	addr := m.Prefix.Addr()
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if addr.Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	size := uint32(addr.BitLen() / 8)
	if m.Field == plan.Destination {
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

func encodePort(m plan.Match, op expr.CmpOp) []expr.Any {
	proto, offset := byte(unix.IPPROTO_UDP), uint32(2)
	switch m.Field {
	case plan.TCPPort:
		proto = unix.IPPROTO_TCP
	case plan.UDPSource:
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

// cgroupRoots are where the unified hierarchy may be mounted, alone or together with the older ones.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// cgroupID returns the kernel's number of a cgroup of the unified hierarchy.
func cgroupID(path string) (uint64, error) {
	for _, root := range cgroupRoots {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			return 0, fmt.Errorf("find the cgroup: %w (it must exist before the rules do)", err)
		}
		return info.Sys().(*syscall.Stat_t).Ino, nil
	}
	return 0, fmt.Errorf("find the cgroup %s: the unified hierarchy (cgroup version 2) is not mounted; use --proxy-mark instead", path)
}
