package settings

// Command is a command of one of the programs and its tables.
type Command struct {
	// Path is what a person types: pilot-agent proxy.
	Path string
	// Tables are the settings that it alone has, Shared those that other commands have too.
	Tables, Shared []Table
}

// Commands lists every command that has settings, for documentation and tests. It links all tables:
// the programs name their own instead.
func Commands() []Command {
	agent, ctl := []Table{AgentLog}, []Table{Pilotctl}
	asks := []Table{PilotctlCluster, Pilotctl}
	return []Command{
		{Path: "pilot-agent", Tables: []Table{AgentLog}},
		{Path: "pilot-agent proxy", Tables: []Table{AgentProxy}, Shared: agent},
		{Path: "pilot-agent request", Tables: []Table{AgentRequest}, Shared: agent},
		{Path: "pilot-agent wait", Tables: []Table{AgentWait}, Shared: agent},
		{Path: "pilot-agent restart", Tables: []Table{AgentRestart}, Shared: agent},
		{Path: "pilot-agent identity", Tables: []Table{AgentIdentity}, Shared: agent},
		{Path: "pilot-agent status", Tables: []Table{AgentStatus}, Shared: agent},
		{Path: "pilot-agent doctor", Tables: []Table{AgentDoctor}, Shared: agent},
		{Path: "pilot-agent log-level", Tables: []Table{AgentLogLevel}, Shared: agent},
		{Path: "pilot-agent version", Tables: []Table{AgentVersion}, Shared: agent},
		{Path: "pilot-agent istio-iptables", Tables: []Table{AgentIptables}, Shared: agent},
		{Path: "pilot-agent istio-iptables explain", Tables: []Table{AgentExplain}, Shared: []Table{AgentIptables, AgentLog}},
		{Path: "pilot-agent istio-clean-iptables", Tables: []Table{AgentCleanIptables}, Shared: agent},
		{Path: "pilot-agent join", Tables: []Table{AgentJoin, AgentRoot}, Shared: agent},
		{Path: "pilot-agent leave", Tables: []Table{AgentLeave}, Shared: []Table{AgentRoot, AgentLog}},
		{Path: "pilot-agent start", Tables: []Table{AgentStart}, Shared: []Table{AgentRoot, AgentLog}},
		{Path: "pilot-agent collateral", Tables: []Table{Collateral}, Shared: agent},
		{Path: "pilot-discovery discovery", Tables: []Table{Discovery, DiscoveryNoEffect}},
		{Path: "pilot-discovery request", Tables: []Table{DiscoveryRequest}},
		{Path: "pilot-discovery collateral", Shared: []Table{Collateral}},
		{Path: "pilotctl", Tables: []Table{Pilotctl}},
		{Path: "pilotctl demo", Tables: []Table{PilotctlDemo}, Shared: ctl},
		{Path: "pilotctl up", Tables: []Table{PilotctlUp}, Shared: ctl},
		{Path: "pilotctl exec", Tables: []Table{PilotctlExec}, Shared: ctl},
		{Path: "pilotctl logs", Tables: []Table{PilotctlLogs}, Shared: ctl},
		{Path: "pilotctl proxies", Tables: []Table{PilotctlProxies, PilotctlCluster}, Shared: ctl},
		{Path: "pilotctl config", Tables: []Table{PilotctlNamespace}, Shared: asks},
		{Path: "pilotctl explain", Tables: []Table{PilotctlExplain}, Shared: []Table{PilotctlNamespace, PilotctlCluster, Pilotctl}},
		{Path: "pilotctl objects", Tables: []Table{PilotctlObjects}, Shared: asks},
		{Path: "pilotctl wait", Tables: []Table{PilotctlWait}, Shared: []Table{PilotctlNamespace, PilotctlCluster, Pilotctl}},
		{Path: "pilotctl check", Tables: []Table{PilotctlCheck}, Shared: asks},
		{Path: "pilotctl ca status", Shared: asks},
		{Path: "pilotctl ca rotate", Shared: asks},
		{Path: "pilotctl inject", Tables: []Table{PilotctlInject}, Shared: ctl},
		{Path: "pilotctl validate", Tables: []Table{PilotctlValidate}, Shared: ctl},
		{Path: "pilotctl remote-secret", Tables: []Table{PilotctlRemoteSecret}, Shared: ctl},
		{Path: "pilotctl token create", Tables: []Table{PilotctlTokenCreate}, Shared: ctl},
		{Path: "pilotctl token join", Tables: []Table{PilotctlVMJoinToken}, Shared: ctl},
		{Path: "pilotctl vm join-token", Tables: []Table{PilotctlVMJoinToken}, Shared: ctl},
		{Path: "pilotctl collateral", Shared: []Table{Collateral, Pilotctl}},
	}
}
