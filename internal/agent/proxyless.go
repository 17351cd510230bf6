package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// proxyless is what gRPC libraries of the application read: the bootstrap file, which names the socket of this agent and the files of
// the certificate. [agent G1, G2, G5]
type proxyless struct {
	file         string // of the bootstrap; empty for none
	certificates []string
}

// newProxyless writes the bootstrap. If there is an Envoy, a file that cannot be written is logged only: most applications read none.
func newProxyless(s *spec.Spec, log *slog.Logger) (proxyless, error) {
	p := proxyless{file: s.Paths.ProxylessBootstrap}
	if p.file == "" {
		return p, nil
	}
	if dir := s.Certificates.OutputDir; dir != "" {
		p.certificates = []string{filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "root-cert.pem")}
	}
	err := p.write(s)
	if err != nil && !s.Envoy.Disabled {
		log.Warn("gRPC libraries of the application have no configuration", "reason", err)
		return proxyless{}, nil
	}
	return p, err
}

// write replaces the bootstrap by a rename: an application may be reading the one of the agent before.
func (p proxyless) write(s *spec.Spec) error {
	wd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	text, err := bootstrap.Proxyless(s, wd)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.file), 0o755)
	}
	if err == nil {
		err = replaceFile(p.file, text)
	}
	if err != nil {
		return fmt.Errorf("write the bootstrap of gRPC libraries (GRPC_XDS_BOOTSTRAP): %w", err)
	}
	return nil
}

// replaceFile replaces a file that every user may read, whatever the umask: the application runs as another user.
func replaceFile(path string, text []byte) error {
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, path)
}

// maxProxylessBootstrap bounds the file in bytes: its metadata may have that of the Pod's annotations.
const maxProxylessBootstrap = 4 << 20

// problem says what of the files is missing or wrong; "" for nothing.
func (p proxyless) problem() string {
	if p.file == "" {
		return ""
	}
	text, err := filewatch.ReadFile(p.file, maxProxylessBootstrap)
	if err != nil {
		return "the bootstrap of gRPC libraries cannot be read: " + err.Error()
	}
	if !json.Valid(text) {
		return fmt.Sprintf("the bootstrap of gRPC libraries, %s, is not JSON any more", p.file)
	}
	for _, path := range p.certificates {
		if _, err := os.Stat(path); err != nil {
			return "a certificate file of gRPC libraries is missing: " + err.Error()
		}
	}
	return ""
}

// ownMetadata is the metadata of the agent's own stream: what the names of the mesh depend on.
func ownMetadata(s *spec.Spec) map[string]string {
	out := map[string]string{"GENERATOR": mesh.GeneratorGRPC}
	for _, key := range []string{"CLUSTER_ID", "NETWORK", "DNS_CAPTURE", "DNS_AUTO_ALLOCATE", "SERVICE_ACCOUNT", "ISTIO_VERSION"} {
		if text, ok := s.Node.Metadata[key].(string); ok {
			out[key] = text
		}
	}
	return out
}
