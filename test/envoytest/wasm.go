package envoytest

// WasmModule returns a Wasm module that does nothing: it has what Envoy wants of one.
func WasmModule() []byte {
	section := func(id byte, body ...byte) []byte { return append([]byte{id, byte(len(body))}, body...) }
	export := func(name string, kind, index byte) []byte {
		return append(append([]byte{byte(len(name))}, name...), kind, index)
	}
	exports := []byte{3}
	exports = append(exports, export("memory", 2, 0)...)
	exports = append(exports, export("proxy_abi_version_0_2_1", 0, 0)...)
	exports = append(exports, export("malloc", 0, 1)...)
	out := []byte("\x00asm\x01\x00\x00\x00")
	out = append(out, section(1, 2, 0x60, 0, 0, 0x60, 1, 0x7f, 1, 0x7f)...) // types: () and (i32) i32
	out = append(out, section(3, 2, 0, 1)...)                               // functions
	out = append(out, section(5, 1, 0, 1)...)                               // memory of one page
	out = append(out, section(7, exports...)...)                            //
	return append(out, section(10, 2, 2, 0, 0x0b, 4, 0, 0x41, 0, 0x0b)...)  // code: nothing, and 0
}

// WasmHeaderModule returns a Wasm module that adds a response header, x-wasm, with the plugin's configuration.
func WasmHeaderModule() []byte {
	section := func(id byte, body ...byte) []byte { return append([]byte{id, byte(len(body))}, body...) }
	text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	join := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	function := func(code ...byte) []byte { return append([]byte{byte(len(code) + 2), 0}, append(code, 0x0b)...) }
	const i32 = 0x7f
	return join([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, join([]byte{6}, // types
			[]byte{0x60, 0, 0}, []byte{0x60, 1, i32, 1, i32}, []byte{0x60, 5, i32, i32, i32, i32, i32, 1, i32},
			[]byte{0x60, 2, i32, i32, 1, i32}, []byte{0x60, 2, i32, i32, 0}, []byte{0x60, 3, i32, i32, i32, 1, i32})...),
		section(2, join([]byte{2}, // functions 0 and 1 are Envoy's
			text("env"), text("proxy_get_buffer_bytes"), []byte{0, 2}, text("env"), text("proxy_add_header_map_value"), []byte{0, 2})...),
		section(3, 5, 0, 1, 3, 4, 5),
		section(5, 1, 0, 1), // memory of one page
		section(7, join([]byte{6}, text("memory"), []byte{2, 0}, text("proxy_abi_version_0_2_1"), []byte{0, 2}, text("malloc"), []byte{0, 3},
			text("proxy_on_configure"), []byte{0, 4}, text("proxy_on_context_create"), []byte{0, 5}, text("proxy_on_response_headers"), []byte{0, 6})...),
		section(10, join([]byte{5},
			function(),
			function(0x41, 0x80, 0x20), // what is allocated is at 4096
			// The configuration (buffer 7) from 0 to its length; its address and length are put at 0 and 4.
			function(0x41, 7, 0x41, 0, 0x20, 1, 0x41, 0, 0x41, 4, 0x10, 0, 0x1a, 0x41, 1),
			function(),
			// To the headers of the response (map 2) the name at 16, and what is at 0 and 4.
			function(0x41, 2, 0x41, 16, 0x41, 6, 0x41, 0, 0x28, 2, 0, 0x41, 4, 0x28, 2, 0, 0x10, 1, 0x1a, 0x41, 0))...),
		section(11, join([]byte{1, 0, 0x41, 16, 0x0b}, text("x-wasm"))...))
}
