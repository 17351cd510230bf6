package podstate

import (
	"fmt"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// File is a file of a volume.
type File struct {
	Data []byte
	// Mode has the permission bits.
	Mode uint32
	// Token says that the file is a token of the Pod's service account, whose owner may be the Pod's user.
	Token bool
}

// TokenRequest is a token that a projected volume has. An ExpirationSeconds of 0 stands for the API server's default.
type TokenRequest struct {
	Audience          string
	ExpirationSeconds int64
}

// TokenFunc returns a valid token of the Pod's service account.
type TokenFunc func(TokenRequest) ([]byte, error)

// HasPayload says whether a volume is made of files that Payload computes.
func HasPayload(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// Payload computes the files of a volume by their path in it. The error names the volume and what is missing.
func Payload(pod *corev1.Pod, v *corev1.Volume, host Host, objects Objects, token TokenFunc) (map[string]File, error) {
	p := payload{pod: pod, host: host, objects: objects, token: token, files: map[string]File{}, mode: 0o644}
	var err error
	switch {
	case v.ConfigMap != nil:
		p.setMode(v.ConfigMap.DefaultMode)
		err = p.addConfigMap(v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
	case v.Secret != nil:
		p.setMode(v.Secret.DefaultMode)
		err = p.addSecret(v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
	case v.DownwardAPI != nil:
		p.setMode(v.DownwardAPI.DefaultMode)
		err = p.addDownward(v.DownwardAPI.Items)
	case v.Projected != nil:
		p.setMode(v.Projected.DefaultMode)
		for i := range v.Projected.Sources {
			if err = p.addProjection(&v.Projected.Sources[i]); err != nil {
				break
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", v.Name, err)
	}
	return p.files, nil
}

type payload struct {
	pod     *corev1.Pod
	host    Host
	objects Objects
	token   TokenFunc
	files   map[string]File
	mode    uint32
}

func (p *payload) setMode(mode *int32) {
	if mode != nil {
		p.mode = uint32(*mode)
	}
}

func (p *payload) add(file string, data []byte, mode *int32) error {
	if clean := path.Clean(file); clean != file || path.IsAbs(file) || strings.HasPrefix(file, "..") || file == "." {
		return fmt.Errorf("invalid path %q: want one inside the volume", file)
	}
	f := File{Data: data, Mode: p.mode}
	if mode != nil {
		f.Mode = uint32(*mode)
	}
	p.files[file] = f
	return nil
}

func (p *payload) addProjection(s *corev1.VolumeProjection) error {
	switch {
	case s.ConfigMap != nil:
		return p.addConfigMap(s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
	case s.Secret != nil:
		return p.addSecret(s.Secret.Name, s.Secret.Items, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return p.addDownward(s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		r := TokenRequest{Audience: s.ServiceAccountToken.Audience}
		if e := s.ServiceAccountToken.ExpirationSeconds; e != nil {
			r.ExpirationSeconds = *e
		}
		text, err := p.token(r)
		if err != nil {
			return fmt.Errorf("request a token for audience %q: %w", r.Audience, err)
		}
		if err := p.add(s.ServiceAccountToken.Path, text, nil); err != nil {
			return err
		}
		f := p.files[s.ServiceAccountToken.Path]
		f.Token = true
		p.files[s.ServiceAccountToken.Path] = f
		return nil
	}
	return fmt.Errorf("projected source: want configMap, secret, downwardAPI or serviceAccountToken")
}

func (p *payload) addConfigMap(name string, items []corev1.KeyToPath, optional *bool) error {
	m, err := p.objects.ConfigMap(name)
	if err != nil || m == nil {
		return missing(err, "ConfigMap", name, optional)
	}
	data := map[string][]byte{}
	for k, v := range m.Data {
		data[k] = []byte(v)
	}
	for k, v := range m.BinaryData {
		data[k] = v
	}
	return p.addKeys("ConfigMap", name, data, items, optional)
}

func (p *payload) addSecret(name string, items []corev1.KeyToPath, optional *bool) error {
	s, err := p.objects.Secret(name)
	if err != nil || s == nil {
		return missing(err, "Secret", name, optional)
	}
	return p.addKeys("Secret", name, s.Data, items, optional)
}

func (p *payload) addKeys(kind, name string, data map[string][]byte, items []corev1.KeyToPath, optional *bool) error {
	if len(items) == 0 {
		for k, v := range data {
			if err := p.add(k, v, nil); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range items {
		v, ok := data[item.Key]
		if !ok {
			if err := missing(nil, "key "+item.Key+" of "+kind, name, optional); err != nil {
				return err
			}
			continue
		}
		if err := p.add(item.Path, v, item.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (p *payload) addDownward(items []corev1.DownwardAPIVolumeFile) error {
	for _, item := range items {
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = DownwardField(p.pod, p.host, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = downwardResource(p.pod, p.host, "", item.ResourceFieldRef)
		default:
			err = fmt.Errorf("item %s: want fieldRef or resourceFieldRef", item.Path)
		}
		if err != nil {
			return err
		}
		if err := p.add(item.Path, []byte(text), item.Mode); err != nil {
			return err
		}
	}
	return nil
}

// RefreshTime is when a token is replaced: after four fifths of its life, and after a day at the latest.
func RefreshTime(issued, expires time.Time) time.Time {
	return issued.Add(min(expires.Sub(issued)*4/5, 24*time.Hour))
}
