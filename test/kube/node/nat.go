package node

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/test/kube/node/podnet"
)

// tableName is the nftables table with the rules of Services.
const tableName = "cluster-services"

// natPriority is after that of capture, dstnat: the first rule that translates a connection decides, so that a
// captured connection keeps its virtual address.
const natPriority = -90

// writeRules replaces the rules of Services in the network namespace of the calling thread, all at once.
func writeRules(rules []podnet.Rule) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("write the rules of Services: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}
	// A table must exist to be deleted.
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	nat := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityRef(natPriority),
	})
	reject := c.AddChain(&nftables.Chain{
		Name: "refuse", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityRef(0),
	})
	for _, r := range rules {
		match := matchTo(r)
		if len(r.To) == 0 {
			c.AddRule(&nftables.Rule{Table: table, Chain: reject, Exprs: append(match, refusal(r.Protocol)...)})
		}
		for i, to := range r.To {
			exprs := match
			if left := len(r.To) - i; left > 1 {
				exprs = append(append([]expr.Any{}, match...),
					&expr.Numgen{Register: 1, Modulus: uint32(left), Type: unix.NFT_NG_RANDOM},
					&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)})
			}
			addr := to.Addr().As4()
			exprs = append(append([]expr.Any{}, exprs...),
				&expr.Immediate{Register: 1, Data: addr[:]},
				&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2})
			c.AddRule(&nftables.Rule{Table: table, Chain: nat, Exprs: exprs})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write the rules of Services: %w", err)
	}
	return nil
}

// matchTo matches packets to the virtual address.
func matchTo(r podnet.Rule) []expr.Any {
	addr := r.From.Addr().As4()
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr[:]},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocolNumber(r.Protocol)}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, r.From.Port())},
	}
}

func protocolNumber(p corev1.Protocol) byte {
	if p == corev1.ProtocolUDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// refusal refuses a packet as a host does where nobody listens.
func refusal(p corev1.Protocol) []expr.Any {
	if p == corev1.ProtocolUDP {
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}}
	}
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}

// icmpPortUnreachable is the code of ICMP's message that nobody listens at a port.
const icmpPortUnreachable = 3
