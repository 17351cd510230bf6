package capture

import (
	"errors"
	"fmt"
	"net"

	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol says in the kernel that a rule or route of a mark is ours, whatever its numbers.
const routeProtocol = 133

var families = []int{rtnetlink.FAMILY_V4, rtnetlink.FAMILY_V6}

func familyOf(m MarkRoute) int {
	if m.IPv6 {
		return rtnetlink.FAMILY_V6
	}
	return rtnetlink.FAMILY_V4
}

// readRoutes finds our rules, with whether the table of each delivers everything here. What the
// ip program made with the numbers that everybody uses counts as ours: an older release's.
func readRoutes() (map[MarkRoute]bool, error) {
	found := map[MarkRoute]bool{}
	for _, family := range families {
		rules, err := rtnetlink.RuleList(family)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the rules of routing: %w", err)
		}
		for _, rule := range rules {
			if rule.Protocol == routeProtocol || fmt.Sprint(rule.Mark, rule.Table) == defaultMark+" "+defaultRouteTable {
				m := MarkRoute{IPv6: family == rtnetlink.FAMILY_V6, Mark: rule.Mark, Table: uint32(rule.Table)}
				if found[m], err = delivers(family, rule.Table); err != nil {
					return nil, err
				}
			}
		}
	}
	return found, nil
}

func delivers(family, table int) (bool, error) {
	routes, err := rtnetlink.RouteListFiltered(family, &rtnetlink.Route{Table: table, Type: unix.RTN_LOCAL},
		rtnetlink.RT_FILTER_TABLE|rtnetlink.RT_FILTER_TYPE)
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

func size(n *net.IPNet) (ones, bits int) {
	if n == nil {
		return 0, 0
	}
	return n.Mask.Size()
}

func driftOfRoutes(r Ruleset) (differences []string, err error) {
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

// setRoutes makes exactly the wanted routes ours. Additions come first, so that nothing is lost
// between.
func setRoutes(want []MarkRoute) error {
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
		if err := delRoute(m); err != nil {
			return err
		}
	}
	return nil
}

func (m MarkRoute) kernel() (*rtnetlink.Rule, *rtnetlink.Route, error) {
	lo, err := rtnetlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	rule := rtnetlink.NewRule()
	rule.Family, rule.Mark, rule.Table, rule.Protocol = familyOf(m), m.Mark, int(m.Table), routeProtocol
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if m.IPv6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	route := &rtnetlink.Route{
		Family: familyOf(m), LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Table: int(m.Table), Protocol: routeProtocol,
	}
	return rule, route, nil
}

func addRoute(m MarkRoute) error {
	rule, route, err := m.kernel()
	if err != nil {
		return err
	}
	if err := rtnetlink.RouteReplace(route); err != nil {
		return fmt.Errorf("deliver what table %d routes here: %w", m.Table, err)
	}
	if err := rtnetlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route what bears the mark %d by table %d: %w", m.Mark, m.Table, err)
	}
	return nil
}

func delRoute(m MarkRoute) error {
	rule, route, err := m.kernel()
	if err != nil {
		return err
	}
	rule.Protocol, route.Protocol = 0, 0 // whoever made them
	if err := rtnetlink.RuleDel(rule); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("no longer route what bears the mark %d: %w", m.Mark, err)
	}
	if err := rtnetlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("no longer deliver what table %d routes: %w", m.Table, err)
	}
	return nil
}
