package settings

// AgentLog are the logging flags, which every command of pilot-agent takes. [agent F12]
var AgentLog = Table{
	{Flag: "log_as_json", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/log.go",
		Help: "log JSON, Envoy included"},
	{Flag: "log_output_level", Kind: Text, Default: "default:info", Unit: "levels", Used: "cmd/pilot-agent/log.go",
		Help: "least `level` of a scope, scope:level,…: debug, info, warn, error, none"},
	{Flag: "log_target", Kind: List, Default: "stdout", Unit: "list of files", Used: "cmd/pilot-agent/log.go",
		Help: "`files` to log to, or stdout or stderr"},
	{Flag: "log_repeat_period", Kind: Duration, Default: "1m", Unit: "duration", Used: "cmd/pilot-agent/log.go",
		Help: "`duration` in which a line that repeats is logged once, with how often it was left out; 0: log all"},
	{Flag: "log_caller", Kind: Text, Unit: "scopes", NoEffect: "callers are not logged",
		Help: "`scopes` whose callers Istio logs"},
	{Flag: "log_stacktrace_level", Kind: Text, Default: "default:none", Unit: "levels", NoEffect: "stack traces are not logged",
		Help: "`level` from which Istio logs stack traces"},
	{Flag: "vklog", Kind: Text, Unit: "number", NoEffect: "there is no Kubernetes client",
		Help: "`verbosity` of the Kubernetes client"},
}
