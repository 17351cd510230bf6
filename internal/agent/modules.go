package agent

import (
	"log/slog"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/wasm"
)

// newModules makes the cache of Wasm modules; nil if Envoy fetches them itself, or there is none.
func newModules(s *spec.Spec, log *slog.Logger) *wasm.Cache {
	w := s.Wasm
	if !w.Fetch || s.Envoy.Disabled {
		return nil
	}
	return wasm.New(wasm.Options{
		Dir: w.Dir, Expiry: w.Expiry, PurgeInterval: w.PurgeInterval, Timeout: w.Timeout, Retries: w.Retries, MaxSize: w.MaxSize,
		InsecureRegistries: w.InsecureRegistries, Blocked: w.Blocked, TLS: s.TLS, Log: log.With("scope", "wasm"),
	})
}
