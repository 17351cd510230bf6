package authn

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// maxForwarded bounds the header x-forwarded-client-cert, in bytes.
const maxForwarded = 16 << 10

// ParsePrefixes parses TRUSTED_GATEWAY_CIDR. A prefix of length 0 is an error: every client could be
// every identity.
func ParsePrefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			return nil, fmt.Errorf("invalid CIDR %q: want one such as 10.0.1.0/24 or fd00:1::/64", text)
		case p.Bits() == 0:
			return nil, fmt.Errorf("invalid CIDR %q: every client could have every identity; want the addresses of gateways only", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// forwardedIdentity returns the identity in the header x-forwarded-client-cert of a trusted gateway. The
// header must have one element, with one SPIFFE ID: of several elements, the client may have sent some.
func forwardedIdentity(values []string) (mesh.Identity, error) {
	if len(values) != 1 {
		return mesh.Identity{}, fmt.Errorf("%d headers, want one", len(values))
	}
	if len(values[0]) > maxForwarded {
		return mesh.Identity{}, fmt.Errorf("%d bytes, want at most %d", len(values[0]), maxForwarded)
	}
	elements, err := parseForwarded(values[0])
	if err != nil {
		return mesh.Identity{}, err
	}
	if len(elements) != 1 {
		return mesh.Identity{}, fmt.Errorf("%d elements, want one; the gateway must set the header and not append to it (SANITIZE_SET)", len(elements))
	}
	uris := elements[0]
	if len(uris) != 1 {
		return mesh.Identity{}, fmt.Errorf("%d values of URI, want one, the SPIFFE ID of the client", len(uris))
	}
	id, err := mesh.ParseSPIFFE(uris[0])
	if err != nil {
		return mesh.Identity{}, err
	}
	return id, pki.CheckIdentity(id)
}

// parseForwarded returns the values of URI of each element of the header. Elements are separated by
// commas and have pairs key=value, separated by semicolons. A value with such a character is quoted, and
// a quote in it has a backslash before it.
func parseForwarded(text string) ([][]string, error) {
	var elements [][]string
	var uris []string
	for {
		key, rest, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("invalid pair %s: want KEY=VALUE", printable.Quote(text, maxShown))
		}
		value, rest, err := forwardedValue(rest)
		if err != nil {
			return nil, err
		}
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "uri":
			uris = append(uris, value)
		case "by", "hash", "cert", "chain", "subject", "dns":
		default:
			return nil, fmt.Errorf("unknown key %s", printable.Quote(key, maxShown))
		}
		if rest == "" || rest[0] == ',' {
			elements, uris = append(elements, uris), nil
		}
		if rest == "" {
			return elements, nil
		}
		text = rest[1:]
	}
}

// forwardedValue returns a value and what follows it, which is empty or begins with a separator.
func forwardedValue(text string) (value, rest string, err error) {
	if !strings.HasPrefix(text, `"`) {
		end := strings.IndexAny(text, `;,"`)
		if end < 0 {
			return text, "", nil
		}
		if text[end] == '"' {
			return "", "", errors.New("invalid value: a quote within it, want quotes around it")
		}
		return text[:end], text[end:], nil
	}
	var b strings.Builder
	for n := 1; n < len(text); n++ {
		switch c := text[n]; {
		case c == '\\' && n+1 < len(text):
			n++
			b.WriteByte(text[n])
		case c == '"':
			rest = text[n+1:]
			if rest != "" && rest[0] != ';' && rest[0] != ',' {
				return "", "", errors.New("invalid value: text after its quote")
			}
			return b.String(), rest, nil
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New("invalid value: its quote does not end")
}
