package cluster

import (
	"strconv"
	"strings"
)

// Directions of a cluster's name.
const (
	Outbound = "outbound"
	Inbound  = "inbound"
)

// Name is direction|PORT|SUBSET|HOST, the name by which routes, endpoints and metrics
// know a cluster. Inbound clusters have neither subset nor host. [control-plane 1.12.1]
func Name(direction string, port uint32, subset, host string) string {
	return direction + "|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

// Key is a cluster's name taken apart.
type Key struct {
	Direction string
	Port      uint32
	Subset    string
	Host      string
}

// String is the name again; it round-trips with ParseName.
func (k Key) String() string { return Name(k.Direction, k.Port, k.Subset, k.Host) }

// ParseName takes a name that Name made apart; false for any other, the fixed names included.
func ParseName(name string) (Key, bool) {
	p := strings.Split(name, "|")
	if len(p) != 4 || (p[0] != Outbound && p[0] != Inbound) {
		return Key{}, false
	}
	port, err := strconv.ParseUint(p[1], 10, 32)
	if err != nil {
		return Key{}, false
	}
	return Key{Direction: p[0], Port: uint32(port), Subset: p[2], Host: p[3]}, true
}

// SNI is outbound_.PORT_.SUBSET_.HOST: the server name that a mesh client sends by
// default, so that servers and gateways can tell service and subset. The name is the
// same for no subset, with nothing between the separators. [control-plane 1.12.12]
func SNI(port uint32, subset, host string) string {
	return Outbound + "_." + strconv.FormatUint(uint64(port), 10) + "_." + subset + "_." + host
}

// statName ends a cluster's name for metrics with ";", which no name holds, so that a
// tag extractor can tell where the name ends.
func statName(name string) string { return name + ";" }
