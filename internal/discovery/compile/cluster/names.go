package cluster

import (
	"strconv"
	"strings"
)

// Directions of a cluster's name.
const (
	Outbound = "outbound"
	Inbound  = "inbound"
	// OutboundUDP is the direction of clusters of ports of UDP: a service may have one of TCP with the same number.
	OutboundUDP = "outbound-udp"
)

// Name returns the name of a cluster in routes, endpoints and metrics: DIRECTION|PORT|SUBSET|HOST.
// Inbound clusters have neither subset nor host. [control-plane 1.12.1]
func Name(direction string, port uint32, subset, host string) string {
	return direction + "|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

// Key has the parts of a cluster's name.
type Key struct {
	Direction string
	Port      uint32
	Subset    string
	Host      string
}

// String returns the name; ParseName is its inverse.
func (k Key) String() string { return Name(k.Direction, k.Port, k.Subset, k.Host) }

// ParseName parses a result of Name; it returns false for any other name, such as BlackHoleCluster.
func ParseName(name string) (Key, bool) {
	p := strings.Split(name, "|")
	if len(p) != 4 || (p[0] != Outbound && p[0] != Inbound && p[0] != OutboundUDP) {
		return Key{}, false
	}
	port, err := strconv.ParseUint(p[1], 10, 32)
	if err != nil {
		return Key{}, false
	}
	return Key{Direction: p[0], Port: uint32(port), Subset: p[2], Host: p[3]}, true
}

// SNI returns outbound_.PORT_.SUBSET_.HOST, the server name that clients in the mesh send by default,
// from which servers and gateways get service and subset. SUBSET may be empty. [control-plane 1.12.12]
func SNI(port uint32, subset, host string) string {
	return Outbound + "_." + strconv.FormatUint(uint64(port), 10) + "_." + subset + "_." + host
}

// ParseSNI parses a result of SNI; it returns false for any other name.
func ParseSNI(name string) (Key, bool) {
	rest, ok := strings.CutPrefix(name, Outbound+"_.")
	if !ok {
		return Key{}, false
	}
	number, rest, ok := strings.Cut(rest, "_.")
	if !ok {
		return Key{}, false
	}
	port, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return Key{}, false
	}
	subset, host, ok := strings.Cut(rest, "_.")
	if !ok {
		return Key{}, false
	}
	return Key{Direction: Outbound, Port: uint32(port), Subset: subset, Host: host}, true
}

// statName appends ";", which no name contains, so that tag extractors find the end of the name.
func statName(name string) string { return name + ";" }
