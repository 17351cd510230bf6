package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// explanation is the packet of the command line.
type explanation struct {
	from, to, direction, in, out, output string
	inbound, outbound                    bool
	packet                               plan.Packet
}

// newExplain makes the command that evaluates the rules for a packet. Nothing is applied, and nothing
// is read but the facts of the network namespace.
func newExplain(env map[string]string) *cobra.Command {
	r := &captureCommand{env: env}
	c := &cobra.Command{
		Use:   "explain --from ADDRESS:PORT --to ADDRESS:PORT",
		Short: "Say what the rules do with a packet, rule by rule",
		Long: `Evaluate the rules of these options for the first packet of a connection, rule by rule.

The options are those of istio-iptables, by flags or environment. A direction that is not given is
inbound if --in-interface is given, or if the destination is an address of this network namespace
and the source is not, and else outbound. The rules are those planned, not those in the kernel.`,
		Example: `  pilot-agent istio-iptables explain -i '*' -b '*' --to 10.96.0.10:80 --uid 1000
  pilot-agent istio-iptables explain -i '*' -b '*' --from 10.0.0.9:40000 --to 10.0.0.7:8080 --inbound --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), env, settings.AgentExplain)
			e := readExplanation(v)
			err := errors.Join(r.fill(c.Flags()), v.Err())
			if err == nil {
				err = r.inNamespace(func() error { return e.run(c, r) })
			}
			if err != nil {
				return captureError{err}
			}
			return nil
		},
	}
	cli.Add(c, settings.AgentIptables, settings.AgentExplain)
	return c
}

func (e *explanation) run(c *cobra.Command, r *captureCommand) error {
	for _, note := range r.notes {
		fmt.Fprintln(c.ErrOrStderr(), "Note:", note)
	}
	facts, err := netns.ReadFacts(r.root())
	if err != nil {
		return err
	}
	rules, err := plan.Build(r.options, facts)
	if err != nil {
		return err
	}
	if err := e.complete(facts); err != nil {
		return err
	}
	v := plan.Explain(rules, e.packet)
	if e.output == "text" {
		fmt.Fprint(c.OutOrStdout(), v)
		return nil
	}
	out := json.NewEncoder(c.OutOrStdout())
	out.SetIndent("", "  ")
	return out.Encode(struct {
		Packet plan.Packet `json:"packet"`
		plan.Verdict
		Sentence string   `json:"sentence"`
		Notes    []string `json:"notes,omitempty"`
	}{e.packet, v, v.Sentence(), rules.Notes})
}

// complete makes the packet from the flags, and from the facts what the flags don't say.
func (e *explanation) complete(f plan.Facts) (err error) {
	if e.packet.To, err = endpoint("--to", e.to); err != nil {
		return err
	}
	here := slices.Contains(f.Addrs, e.packet.To.Addr()) || e.packet.To.Addr().IsLoopback()
	if e.from != "" {
		if e.packet.From, err = endpoint("--from", e.from); err != nil {
			return err
		}
	}
	if err := e.direct(f, here); err != nil {
		return err
	}
	if !e.packet.From.IsValid() {
		e.packet.From = source(f, e.packet, here)
	}
	if e.packet.From.Addr().Is6() != e.packet.To.Addr().Is6() {
		return fmt.Errorf("--from=%q and --to=%q are of different families; give two of one", e.from, e.to)
	}
	return nil
}

// direct decides the direction and the interface.
func (e *explanation) direct(f plan.Facts, here bool) error {
	switch {
	case e.inbound && e.outbound, e.in != "" && e.out != "":
		return fmt.Errorf("--inbound, --in-interface, --outbound and --out-interface contradict each other: give one direction")
	case e.direction == "inbound", e.inbound, e.direction == "" && e.in != "":
	case e.direction == "outbound", e.outbound, e.direction == "" && e.out != "":
		e.packet.Outbound = true
	default:
		local := !e.packet.From.IsValid() || slices.Contains(f.Addrs, e.packet.From.Addr()) || e.packet.From.Addr().IsLoopback()
		e.packet.Outbound = local || !here
	}
	e.packet.Interface = e.in + e.out
	if e.packet.Interface == "" {
		e.packet.Interface = "lo"
		other := slices.IndexFunc(f.Interfaces, func(name string) bool { return name != "lo" })
		if other >= 0 && !(e.packet.Outbound && here) {
			e.packet.Interface = f.Interfaces[other]
		}
	}
	return nil
}

// source is the source of a packet for which no flag gives one.
func source(f plan.Facts, p plan.Packet, here bool) netip.AddrPort {
	if p.Outbound && here || !p.Outbound {
		return netip.AddrPortFrom(p.To.Addr(), 40000)
	}
	for _, a := range f.Addrs {
		if a.Is6() == p.To.Addr().Is6() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return netip.AddrPortFrom(a, 40000)
		}
	}
	return netip.AddrPortFrom(p.To.Addr(), 40000)
}

func endpoint(flag, value string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		host, port = value, "40000"
	}
	to, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil || flag == "--to" && port == "40000" && host == value {
		return to, fmt.Errorf("%s=%q: give an address and a port, such as 10.96.0.10:80 or [fd00::10]:80", flag, value)
	}
	return netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port()), nil
}
