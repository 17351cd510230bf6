package netns

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// routeProtocol marks our rules and routes in the kernel, whatever their mark and table.
const routeProtocol = 133

var families = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

func familyOf(m plan.MarkRoute) int {
	if m.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// readRoutes finds our routing rules and reports for each whether its table delivers everything here.
// Rules with the default mark and table that the ip program made count as ours: Istio made them so.
func readRoutes() (map[plan.MarkRoute]bool, error) {
	found := map[plan.MarkRoute]bool{}
	for _, family := range families {
		rules, err := netlink.RuleList(family)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the routing rules: %w", err)
		}
		for _, rule := range rules {
			if rule.Protocol == routeProtocol || fmt.Sprint(rule.Mark, rule.Table) == plan.DefaultTProxyMark+" "+plan.DefaultRouteTable {
				m := plan.MarkRoute{IPv6: family == netlink.FAMILY_V6, Mark: rule.Mark, Table: uint32(rule.Table)}
				if found[m], err = delivers(family, rule.Table); err != nil {
					return nil, err
				}
			}
		}
	}
	return found, nil
}

func delivers(family, table int) (bool, error) {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table, Type: unix.RTN_LOCAL},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return false, fmt.Errorf("list the routes of table %d: %w", table, err)
	}
	for _, r := range routes {
		if ones, _ := size(r.Dst); ones == 0 {
			return true, nil
		}
	}
	return false, nil
}

// size returns the length of a prefix; the default route has none.
func size(n *net.IPNet) (ones, bits int) {
	if n == nil {
		return 0, 0
	}
	return n.Mask.Size()
}

// Differences lists how the routes of capture differ from those of r, each as a sentence;
// none if they are equal.
func Differences(r plan.Ruleset) (differences []string, err error) {
	have, err := readRoutes()
	if err != nil {
		return nil, err
	}
	for _, m := range r.Routes {
		if !have[m] {
			differences = append(differences, fmt.Sprintf("the route of the mark is missing: %s", m))
		}
		delete(have, m)
	}
	for m := range have {
		differences = append(differences, fmt.Sprintf("a route of a mark is left over: %s", m))
	}
	return differences, nil
}

// setRoutes makes the wanted routes the only ones of capture. It adds before it removes, so that no
// packet is lost in between.
func setRoutes(want []plan.MarkRoute) error {
	have, err := readRoutes()
	if err != nil {
		return err
	}
	for _, m := range want {
		if have[m] {
			delete(have, m)
			continue
		}
		if err := addRoute(m); err != nil {
			return err
		}
		delete(have, m)
	}
	for m := range have {
		if err := removeRoute(m); err != nil {
			return err
		}
	}
	return nil
}

// kernelRoute returns the routing rule and the route of a mark.
func kernelRoute(m plan.MarkRoute) (*netlink.Rule, *netlink.Route, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Mark, rule.Table, rule.Protocol = familyOf(m), m.Mark, int(m.Table), routeProtocol
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if m.IPv6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	route := &netlink.Route{
		Family: familyOf(m), LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Table: int(m.Table), Protocol: routeProtocol,
	}
	return rule, route, nil
}

func addRoute(m plan.MarkRoute) error {
	rule, route, err := kernelRoute(m)
	if err != nil {
		return err
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add the route of table %d: %w", m.Table, err)
	}
	if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the routing rule of the mark %d: %w", m.Mark, err)
	}
	return nil
}

func removeRoute(m plan.MarkRoute) error {
	rule, route, err := kernelRoute(m)
	if err != nil {
		return err
	}
	rule.Protocol, route.Protocol = 0, 0 // of any protocol
	if err := netlink.RuleDel(rule); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the routing rule of the mark %d: %w", m.Mark, err)
	}
	if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route of table %d: %w", m.Table, err)
	}
	return nil
}
