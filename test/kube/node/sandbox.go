package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// sandbox is what the containers of a Pod share: namespaces, addresses and volumes.
type sandbox struct {
	net  *Network
	node *Node
	pod  *netmesh.Pod
	dir  string
	host podstate.Host

	mu sync.Mutex // guards tokens and the files of volumes
	// tokens are the Pod's tokens by request.
	tokens map[podstate.TokenRequest]token
}

type token struct {
	text            []byte
	issued, expires time.Time
}

// makeSandbox makes the namespaces and the volumes of a Pod.
func (n *Node) makeSandbox(ctx context.Context, pod *corev1.Pod) (*sandbox, error) {
	ip, err := n.takeIP()
	if err != nil {
		return nil, err
	}
	namespaces, err := n.net.addPod(string(pod.UID), ip)
	if err != nil {
		n.returnIP(ip)
		return nil, err
	}
	s := &sandbox{
		net: n.net, node: n, pod: namespaces, dir: filepath.Join(n.o.Dir, string(pod.UID)),
		tokens: map[podstate.TokenRequest]token{},
		host:   podstate.Host{IP: n.net.Gateway().String(), PodIPs: []string{ip.String()}, Allocatable: n.o.Capacity},
	}
	if err := s.files(ctx, pod); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close takes the Pod away. Its logs stay.
func (s *sandbox) close() error {
	err := s.net.removePod(s.pod)
	s.node.returnIP(s.pod.IP())
	return err
}

// files makes what containers mount.
func (s *sandbox) files(ctx context.Context, pod *corev1.Pod) error {
	host := pod.Spec.Hostname
	if host == "" {
		host = pod.Name
	}
	names := host
	if pod.Spec.Subdomain != "" {
		names = fmt.Sprintf("%s.%s.%s.svc.%s %s", host, pod.Spec.Subdomain, pod.Namespace, Domain, host)
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n%s %s\n", s.pod.IP(), names)
	for _, a := range pod.Spec.HostAliases {
		hosts += a.IP + " " + strings.Join(a.Hostnames, " ") + "\n"
	}
	for name, text := range map[string]string{"hosts": hosts, "resolv.conf": s.net.resolvConf(pod), "hostname": host + "\n"} {
		path := filepath.Join(s.dir, "etc", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	if err := s.pod.Do(func() error { return setHostname(host) }); err != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if podstate.HasPayload(v) {
			if err := os.MkdirAll(s.volume(v.Name), 0o755); err != nil {
				return err
			}
		} else if err := makeEmptyDir(s.volume(v.Name), ownerOf(pod)); err != nil {
			return err
		}
	}
	return s.writeVolumes(ctx, pod)
}

func (s *sandbox) volume(name string) string { return filepath.Join(s.dir, "volumes", name) }

// ownerOf says who the files of a Pod's volumes belong to.
func ownerOf(pod *corev1.Pod) owner {
	o := owner{group: -1, user: -1}
	outer := pod.Spec.SecurityContext
	if outer != nil && outer.FSGroup != nil {
		o.group = int(*outer.FSGroup)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			var user *int64
			if c := list[i].SecurityContext; c != nil {
				user = c.RunAsUser
			}
			if user == nil && outer != nil {
				user = outer.RunAsUser
			}
			if user == nil || o.user >= 0 && o.user != int(*user) {
				o.user = -1
				return o
			}
			o.user = int(*user)
		}
	}
	return o
}

// writeVolumes writes the files of ConfigMaps, Secrets, the downward API and tokens that have changed.
func (s *sandbox) writeVolumes(ctx context.Context, pod *corev1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !podstate.HasPayload(v) {
			continue
		}
		files, err := podstate.Payload(pod, v, s.host, s.objects(ctx, pod.Namespace), func(r podstate.TokenRequest) ([]byte, error) {
			return s.token(ctx, pod, r, time.Now())
		})
		if err != nil {
			return err
		}
		if err := writePayload(s.volume(v.Name), files, ownerOf(pod)); err != nil {
			return fmt.Errorf("write volume %q: %w", v.Name, err)
		}
	}
	return nil
}

// objects finds what a Pod refers to.
func (s *sandbox) objects(ctx context.Context, namespace string) podstate.Objects {
	return podstate.Objects{
		ConfigMap: func(name string) (*corev1.ConfigMap, error) { return s.net.configMap(ctx, namespace, name) },
		Secret:    func(name string) (*corev1.Secret, error) { return s.net.secret(ctx, namespace, name) },
	}
}

// token is a token for the Pod, a new one if it is time. If that cannot be had, the old one stays until it expires.
func (s *sandbox) token(ctx context.Context, pod *corev1.Pod, r podstate.TokenRequest, now time.Time) ([]byte, error) {
	have, known := s.tokens[r]
	if known && now.Before(podstate.RefreshTime(have.issued, have.expires)) {
		return have.text, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: types.UID(pod.UID)},
	}}
	if r.Audience != "" {
		request.Spec.Audiences = []string{r.Audience}
	}
	if r.ExpirationSeconds != 0 {
		request.Spec.ExpirationSeconds = &r.ExpirationSeconds
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	got, err := s.net.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		if known && now.Before(have.expires) {
			return have.text, nil
		}
		return nil, err
	}
	s.tokens[r] = token{text: []byte(got.Status.Token), issued: now, expires: got.Status.ExpirationTimestamp.Time}
	return s.tokens[r].text, nil
}

// nextRefresh is when the first token is due; zero without tokens.
func (s *sandbox) nextRefresh() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next time.Time
	for _, t := range s.tokens {
		if at := podstate.RefreshTime(t.issued, t.expires); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
