package spec

import "net/netip"

// wasm reads how Wasm modules are fetched.
func (b *builder) wasm() Wasm {
	w := Wasm{
		Fetch: b.set.Bool("ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION"), Dir: b.set.Text("WASM_MODULES_DIR"),
		Expiry: b.set.Duration("WASM_MODULE_EXPIRY"), PurgeInterval: b.set.Duration("WASM_PURGE_INTERVAL"), Timeout: b.set.Duration("WASM_HTTP_REQUEST_TIMEOUT"),
		Retries: b.set.Int("WASM_HTTP_REQUEST_MAX_RETRIES"), MaxSize: int64(b.set.Int("ISTIO_WASM_MAX_BINARY_SIZE_BYTES")),
		InsecureRegistries: b.set.List("WASM_INSECURE_REGISTRIES"),
	}
	for _, text := range b.set.List("BLOCKED_CIDRS_IN_WASM_FETCH") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			b.set.Fail("BLOCKED_CIDRS_IN_WASM_FETCH", "invalid CIDR %q: want a prefix such as 169.254.0.0/16", text)
			continue
		}
		w.Blocked = append(w.Blocked, p.Masked())
	}
	if w.PurgeInterval <= 0 {
		b.set.Fail("WASM_PURGE_INTERVAL", "invalid duration %v: want more than 0", w.PurgeInterval)
	}
	if w.Timeout <= 0 {
		b.set.Fail("WASM_HTTP_REQUEST_TIMEOUT", "invalid duration %v: want more than 0", w.Timeout)
	}
	return w
}
