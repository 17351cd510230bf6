package mesh

// ExportToAnnotation lists the namespaces in which a Service is visible, separated by commas.
const ExportToAnnotation = "networking.istio.io/exportTo"

// Exported reports whether an object of namespace owner is visible in namespace client; a client in no
// namespace, "", sees what is exported to all. Without exportTo the mesh's default applies, and without that it is exported to all.
func Exported(to, byDefault []string, owner, client string) bool {
	if len(to) == 0 {
		to = byDefault
	}
	for _, e := range to {
		if e == "*" || client != "" && (e == client || e == "." && owner == client) {
			return true
		}
	}
	return len(to) == 0
}
