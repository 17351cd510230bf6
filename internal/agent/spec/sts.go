package spec

import (
	"net/url"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// STS says whether and how the agent exchanges tokens for programs of this machine. [agent T1–T5]
type STS struct {
	// Port is that of localhost, 0 for none.
	Port int
	// Google is the plugin; nil if all requests are refused.
	Google *GoogleSTS
}

// GoogleSTS says how tokens are exchanged with Google.
type GoogleSTS struct {
	// Audience is that of federated tokens.
	Audience string
	// TokenURL is where federated tokens come from, AccessURL where they are exchanged for those of an account; empty for none.
	TokenURL, AccessURL string
	// RootFile has the root certificates for both, SYSTEM for the operating system's.
	RootFile string
}

// noAccount as STS_SERVICE_ACCOUNT gives clients federated tokens.
const noAccount = "none"

func (b *builder) sts() STS {
	s := STS{Port: b.set.Int("stsPort")}
	plugin := b.set.Enum("tokenManagerPlugin")
	g := &GoogleSTS{
		TokenURL: b.https("STS_TOKEN_ENDPOINT"), RootFile: b.set.Text("STS_ROOT_CA"),
		Audience: b.set.TextOr("STS_AUDIENCE", ""),
	}
	var project, number, cluster, location string
	if text := b.set.Text("GCP_METADATA"); text != "" {
		parts := strings.Split(text, "|")
		if len(parts) != 4 {
			b.set.Fail("GCP_METADATA", "invalid metadata %s: want ID|number|cluster|location", printable.Quote(text, 200))
			return s
		}
		project, number, cluster, location = parts[0], parts[1], parts[2], parts[3]
	}
	account := ""
	if number != "" {
		account = "service-" + number + "@gcp-sa-meshdataplane.iam.gserviceaccount.com"
	}
	provider := ""
	if project != "" && cluster != "" && location != "" {
		provider = "https://container.googleapis.com/v1/projects/" + project + "/locations/" + location + "/clusters/" + cluster
	}
	account, provider = b.set.TextOr("STS_SERVICE_ACCOUNT", account), b.set.TextOr("GKE_CLUSTER_URL", provider)
	base := strings.TrimSuffix(b.https("STS_IAM_ENDPOINT"), "/")
	if account != "" && account != noAccount {
		g.AccessURL = base + "/v1/projects/-/serviceAccounts/" + url.PathEscape(account) + ":generateAccessToken"
	}
	if g.Audience == "" && provider != "" {
		g.Audience = "identitynamespace:" + b.set.Text("TRUST_DOMAIN") + ":" + provider
	}
	switch {
	case s.Port == 0 && plugin != "":
		b.warn("tokenManagerPlugin has no effect without --stsPort")
	case s.Port != 0 && plugin == "":
		b.warn("the token service at port %d (--stsPort) refuses all requests: set --tokenManagerPlugin", s.Port)
	case s.Port != 0 && g.Audience == "":
		b.set.Fail("tokenManagerPlugin", "the audience of federated tokens is missing: want GKE_CLUSTER_URL, GCP_METADATA or STS_AUDIENCE")
	case s.Port != 0:
		s.Google = g
	}
	return s
}

// https is a setting that is a URL to which tokens are sent.
func (b *builder) https(name string) string {
	text := b.set.Text(name)
	if u, err := url.Parse(text); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		b.set.Fail(name, "invalid URL %s: want https://HOST/PATH", printable.Quote(text, 200))
	}
	return text
}
