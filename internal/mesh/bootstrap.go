package mesh

// BootstrapType is the type URL of Envoy's bootstrap. Discovery serves to agents that ask, and say so in their node's metadata
// (BootstrapKey), what EnvoyFilters change in the bootstrap that the agent builds: one resource, without a name, with these differences
// only. [agent B26] [control-plane 1.6.19]
const BootstrapType = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"

// BootstrapKey is the key of the metadata by which an agent says that it merges a bootstrap that has only differences. It is this
// project's own: agents of Istio 1.9 to 1.12 took what they got for the whole.
const BootstrapKey = "BOOTSTRAP_DIFFERENCES"

// MaxBootstrap is the maximum size of an encoded bootstrap with differences, in bytes.
const MaxBootstrap = 1 << 20

// bootstrapFields says of each field of a bootstrap, by its name in the protobuf definition, why it must not come from discovery; empty
// if it may. A field that is not listed may not.
var bootstrapFields = map[string]string{
	"node":                         "the agent says who the proxy is",
	"node_context_params":          "the agent says who the proxy is",
	"dynamic_resources":            "Envoy gets its configuration from the agent",
	"config_sources":               "Envoy gets its configuration from the agent",
	"default_config_source":        "Envoy gets its configuration from the agent",
	"xds_delegate_extension":       "Envoy gets its configuration from the agent",
	"xds_config_tracker_extension": "Envoy gets its configuration from the agent",
	"hds_config":                   "the agent reports the workload's health",
	"admin":                        "the agent asks Envoy's admin interface",
	"flags_path":                   "the agent drains and ends Envoy",
	"listener_manager":             "the agent hands listeners over at a hot restart",
	"default_socket_interface":     "the agent hands listeners over at a hot restart",

	"static_resources": "", "cluster_manager": "", "stats_sinks": "", "deferred_stat_options": "", "stats_config": "", "stats_flush_interval": "",
	"stats_flush_on_admin": "", "stats_eviction_interval": "", "watchdog": "", "watchdogs": "", "tracing": "", "layered_runtime": "", "overload_manager": "",
	"enable_dispatcher_stats": "", "header_prefix": "", "stats_server_version_override": "", "use_tcp_for_dns_lookups": "",
	"dns_resolution_config": "", "typed_dns_resolver_config": "", "bootstrap_extensions": "", "fatal_actions": "",
	"certificate_provider_instances": "", "inline_headers": "", "perf_tracing_file_path": "", "default_regex_engine": "",
	"application_log_config": "", "grpc_async_client_manager_config": "", "memory_allocator_manager": "", "enable_worker_cpu_affinity": "",
}

// OwnBootstrapField returns why a field of a bootstrap, by its name in the protobuf definition, must not come from discovery, empty if it may.
func OwnBootstrapField(name string) string {
	why, known := bootstrapFields[name]
	if !known {
		return "it is not known whether the agent needs it"
	}
	return why
}

// ownBootstrapNames are the clusters and runtime layers that agents' bootstraps have or may have.
var ownBootstrapNames = map[string]bool{
	XDSCluster: true, SDSCluster: true, SDSFilesCluster: true, "agent": true, "prometheus_stats": true, LocalCluster: true,
	"zipkin": true, "datadog_agent": true, "envoy_metrics_service": true, "envoy_accesslog_service": true,
	"global config": true, "admin": true,
}

// OwnBootstrapName reports whether a static cluster or a runtime layer with a name may be one of the agent's.
func OwnBootstrapName(name string) bool { return ownBootstrapNames[name] }
