package node

import "testing"

func TestMeshID(t *testing.T) {
	for _, tt := range []struct{ config, env, want string }{
		{"meshId: m1", "", "m1"},
		{"meshId: m1", "m2", "m2"},
	} {
		f := build(t, func(in *Input) {
			in.Env["PROXY_CONFIG"] = tt.config
			if tt.env != "" {
				in.Env["ISTIO_META_MESH_ID"] = tt.env
			}
		})
		if got := f.Metadata["MESH_ID"]; got != tt.want {
			t.Errorf("%s, ISTIO_META_MESH_ID=%q: MESH_ID %v, want %s", tt.config, tt.env, got, tt.want)
		}
	}
}
