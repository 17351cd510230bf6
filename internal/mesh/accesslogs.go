package mesh

// AccessLogServiceCluster is the static cluster that a bootstrap has for envoyAccessLogService of the ProxyConfig. [agent B13]
const AccessLogServiceCluster = "envoy_accesslog_service"

// accessLogServiceKey is the JSON name of the field of ProxyConfig.
const accessLogServiceKey = "envoyAccessLogService"

// IsAccessLogService reports whether the field of ProxyConfig with the JSON name is the service of access logs.
func IsAccessLogService(name string) bool { return name == accessLogServiceKey }

// DecodeAccessLogService reports whether the field in a node's metadata, in the form of JSON, has an address, so that the bootstrap has
// AccessLogServiceCluster.
func DecodeAccessLogService(v any) bool {
	fields, _ := v.(map[string]any)
	address, _ := fields["address"].(string)
	return address != ""
}

func accessLogService(config any) bool {
	fields, _ := config.(map[string]any)
	return DecodeAccessLogService(fields[accessLogServiceKey])
}
