package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// The distribution API of registries, as far as a module needs it: one manifest, one layer.

// Media types of manifests and layers.
const (
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	wasmLayer      = "application/vnd.module.wasm.content.layer.v1+wasm"
)

const (
	// maxManifest bounds a manifest and an answer with a token, in bytes.
	maxManifest = 4 << 20
	maxLayers   = 1000
)

// The patterns are compiled when they are first used: most agents fetch no modules, and those with counts take 150 kB.
var (
	repositoryName = pattern(`^[a-z0-9]+((\.|_|__|-+|/)[a-z0-9]+)*$`)
	tagName        = pattern(`^\w[\w.-]{0,127}$`)
	digestName     = pattern(`^sha256:[0-9a-f]{64}$`)
	challengeField = pattern(`(\w+)="([^"]*)"`)
	hexSHA256      = pattern(`^[0-9a-f]{64}$`)
)

func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// reference is an image in a registry.
type reference struct{ host, repository, ref string }

// parseReference reads an oci URL: HOST/REPOSITORY, and :TAG or @DIGEST.
func parseReference(u *url.URL) (reference, error) {
	r := reference{host: u.Host, repository: strings.TrimPrefix(u.Path, "/"), ref: "latest"}
	if at := strings.IndexByte(r.repository, '@'); at >= 0 {
		r.repository, r.ref = r.repository[:at], r.repository[at+1:]
		if i := strings.LastIndexByte(r.repository, ':'); i > strings.LastIndexByte(r.repository, '/') {
			r.repository = r.repository[:i] // the digest decides
		}
		if !digestName().MatchString(r.ref) {
			return r, permanent("invalid digest %s: want sha256: and 64 hexadecimal digits", printable.Quote(r.ref, 100))
		}
	} else if i := strings.LastIndexByte(r.repository, ':'); i >= 0 {
		r.repository, r.ref = r.repository[:i], r.repository[i+1:]
		if !tagName().MatchString(r.ref) {
			return r, permanent("invalid tag %s: want letters, digits, . and -", printable.Quote(r.ref, 100))
		}
	}
	if !repositoryName().MatchString(r.repository) {
		return r, permanent("invalid repository %s: want HOST/REPOSITORY", printable.Quote(r.repository, 200))
	}
	if r.host == "docker.io" {
		r.host = "registry-1.docker.io"
		if !strings.Contains(r.repository, "/") {
			r.repository = "library/" + r.repository
		}
	}
	return r, nil
}

// manifest is a manifest or an index.
type manifest struct {
	MediaType string       `json:"mediaType"`
	Layers    []descriptor `json:"layers"`
	Manifests []descriptor `json:"manifests"`
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// session is the connection to one registry for one image.
type session struct {
	client *http.Client
	base   string // scheme and host
	ref    reference
	user   string // name and password, empty for none
	header string // Authorization
}

// image fetches a module from a registry.
func (c *client) image(ctx context.Context, m Module, u *url.URL, dir string) (string, error) {
	ref, err := parseReference(u)
	if err != nil {
		return "", err
	}
	user, err := credentials(m.Secret, u.Host)
	if err != nil {
		return "", err
	}
	s := &session{client: c.verified, base: "https://" + ref.host, ref: ref, user: user}
	if c.o.isInsecure(u.Host) {
		s.client = c.insecure
	}
	digest, layer, err := s.layer(ctx)
	if err != nil && c.o.isInsecure(u.Host) && ctx.Err() == nil && !answered(err) {
		s.base = "http://" + ref.host
		digest, layer, err = s.layer(ctx)
	}
	if err != nil {
		return "", err
	}
	resp, err := s.get(ctx, "blobs/"+layer.Digest, "")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	return c.save(resp.Body, dir, layer.Digest, func(sum string) (string, error) {
		if m.SHA256 != "" && m.SHA256 != digest && m.SHA256 != sum {
			return "", permanent("the image has the digest %s, and its module the SHA-256 %s: want %s", digest, sum, m.SHA256)
		}
		return sum, nil
	})
}

// answered reports whether an error is an answer of the registry.
func answered(err error) bool {
	var p permanentError
	var s *statusError
	return errors.As(err, &p) || errors.As(err, &s)
}

// layer returns the digest of the image, hexadecimal, and the layer that has the module.
func (s *session) layer(ctx context.Context) (digest string, _ descriptor, err error) {
	m, digest, err := s.manifest(ctx, s.ref.ref)
	if err != nil {
		return "", descriptor{}, err
	}
	if len(m.Manifests) > 0 {
		if len(m.Manifests) != 1 {
			return "", descriptor{}, permanent("an image for %d platforms: want one manifest, since a module has no platform", len(m.Manifests))
		}
		if !digestName().MatchString(m.Manifests[0].Digest) {
			return "", descriptor{}, permanent("invalid digest %s in the image's index", printable.Quote(m.Manifests[0].Digest, 100))
		}
		if m, _, err = s.manifest(ctx, m.Manifests[0].Digest); err != nil {
			return "", descriptor{}, err
		}
	}
	if len(m.Layers) == 0 || len(m.Layers) > maxLayers {
		return "", descriptor{}, permanent("an image of %d layers: want one with a module", len(m.Layers))
	}
	chosen := m.Layers[len(m.Layers)-1] // of an ordinary image the last one counts
	for _, l := range m.Layers {
		if l.MediaType == wasmLayer {
			chosen = l
		}
	}
	if !digestName().MatchString(chosen.Digest) {
		return "", descriptor{}, permanent("invalid digest %s of a layer", printable.Quote(chosen.Digest, 100))
	}
	return digest, chosen, nil
}

// manifest returns a manifest and its digest, hexadecimal. One that is named by digest must have it.
func (s *session) manifest(ctx context.Context, ref string) (m manifest, digest string, err error) {
	resp, err := s.get(ctx, "manifests/"+ref, strings.Join([]string{ociManifest, dockerManifest, ociIndex, dockerList}, ", "))
	if err != nil {
		return m, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(&bounded{r: resp.Body, left: maxManifest})
	if err != nil {
		return m, "", err
	}
	sum := sha256.Sum256(text)
	digest = hex.EncodeToString(sum[:])
	if digestName().MatchString(ref) && ref != "sha256:"+digest {
		return m, "", permanent("the manifest has the digest sha256:%s: want %s", digest, ref)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, "", permanent("parse the image's manifest: %w", err)
	}
	return m, digest, nil
}

// get sends a GET to the repository, and authenticates if the registry wants that.
func (s *session) get(ctx context.Context, path, accept string) (*http.Response, error) {
	send := func() (*http.Response, error) {
		h := http.Header{}
		if accept != "" {
			h.Set("Accept", accept)
		}
		if s.header != "" {
			h.Set("Authorization", s.header)
		}
		return get(ctx, s.client, s.base+"/v2/"+s.ref.repository+"/"+path, h)
	}
	resp, err := send()
	var e *statusError
	if err == nil || s.header != "" || !errors.As(err, &e) || e.code != http.StatusUnauthorized {
		return resp, err
	}
	if err := s.authenticate(ctx, e.challenge); err != nil {
		return nil, err
	}
	return send()
}

// authenticate does what a challenge of the registry asks for.
func (s *session) authenticate(ctx context.Context, challenges []string) error {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(s.user))
	for _, c := range challenges {
		scheme, rest, _ := strings.Cut(c, " ")
		switch {
		case strings.EqualFold(scheme, "Basic") && s.user != "":
			s.header = basic
			return nil
		case strings.EqualFold(scheme, "Bearer"):
			fields := map[string]string{}
			for _, f := range challengeField().FindAllStringSubmatch(rest, -1) {
				fields[strings.ToLower(f[1])] = f[2]
			}
			return s.token(ctx, fields, basic)
		}
	}
	return permanent("the registry wants credentials: want an image pull secret for %s", printable.Quote(s.ref.host, 200))
}

// token gets a token.
func (s *session) token(ctx context.Context, fields map[string]string, basic string) error {
	realm, err := url.Parse(fields["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && (realm.Scheme != "http" || !strings.HasPrefix(s.base, "http://")) {
		return permanent("invalid realm %s of the registry: want an https URL", printable.Quote(fields["realm"], 200))
	}
	q := realm.Query()
	if fields["service"] != "" {
		q.Set("service", fields["service"])
	}
	q.Set("scope", "repository:"+s.ref.repository+":pull")
	realm.RawQuery = q.Encode()
	h := http.Header{}
	if s.user != "" {
		h.Set("Authorization", basic)
	}
	resp, err := get(ctx, s.client, realm.String(), h)
	if err != nil {
		return fmt.Errorf("get a token of the registry: %w", err)
	}
	defer resp.Body.Close()
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(&bounded{r: resp.Body, left: maxManifest}).Decode(&answer); err != nil {
		return permanent("parse the registry's answer with a token: %w", err)
	}
	token := answer.Token
	if token == "" {
		token = answer.AccessToken
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return permanent("the registry's answer has no valid token")
	}
	s.header = "Bearer " + token
	return nil
}

// credentials returns the name and the password, with a colon between, that a Docker configuration has for a host; empty if it has
// none.
func credentials(secret []byte, host string) (string, error) {
	if len(secret) == 0 {
		return "", nil
	}
	type auth struct {
		Auth     string `json:"auth"`
		Username string `json:"username"`
		Password string `json:"password"`
	}
	var config struct {
		Auths map[string]auth `json:"auths"`
	}
	if err := json.Unmarshal(secret, &config); err != nil {
		return "", permanent("parse the image pull secret: want a Docker configuration in JSON") // the error could have a part of it
	}
	hosts := []string{host}
	if host == "docker.io" {
		hosts = append(hosts, "index.docker.io")
	}
	for name, a := range config.Auths {
		at := strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
		at, _, _ = strings.Cut(at, "/")
		for _, h := range hosts {
			if !strings.EqualFold(at, h) {
				continue
			}
			if a.Auth == "" {
				return a.Username + ":" + a.Password, nil
			}
			text, err := base64.StdEncoding.DecodeString(a.Auth)
			if err != nil {
				return "", permanent("parse the image pull secret: auth of %s is not base64", printable.Quote(name, 200))
			}
			return string(text), nil
		}
	}
	return "", nil
}
