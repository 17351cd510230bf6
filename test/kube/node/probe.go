package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// prober asks a container, from the network's gateway as a kubelet does from its host.
type prober struct {
	attempt *attempt
	spec    *corev1.Container
}

// try runs a probe once; nil says that it succeeded.
func (p prober) try(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(probe.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	if probe.GRPC != nil {
		return p.grpc(ctx, probe.GRPC)
	}
	return p.handle(ctx, corev1.LifecycleHandler{Exec: probe.Exec, HTTPGet: probe.HTTPGet, TCPSocket: probe.TCPSocket})
}

// handle runs the handler of a probe or a hook.
func (p prober) handle(ctx context.Context, h corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		code, err := p.attempt.run(ctx, h.Exec.Command, nil, io.Discard, io.Discard)
		if err == nil && code != 0 {
			err = fmt.Errorf("exec %q: exit code %d", h.Exec.Command, code)
		}
		return err
	case h.HTTPGet != nil:
		return p.get(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		addr, err := p.address(h.TCPSocket.Host, h.TCPSocket.Port)
		if err != nil {
			return err
		}
		c, err := p.dial(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	case h.Sleep != nil:
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the handler has no action that the node knows")
}

func (p prober) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return p.attempt.sandbox.net.Mesh.Host().Dial(ctx, network, addr)
}

// address is where a probe goes; the host is the Pod unless the probe names another.
func (p prober) address(host string, port intstr.IntOrString) (string, error) {
	number := int(port.IntVal)
	if port.Type == intstr.String {
		number = 0
		for _, q := range p.spec.Ports {
			if q.Name == port.StrVal {
				number = int(q.ContainerPort)
			}
		}
		if number == 0 {
			var err error
			if number, err = strconv.Atoi(port.StrVal); err != nil {
				return "", fmt.Errorf("container %s has no port %q", p.spec.Name, port.StrVal)
			}
		}
	}
	if host == "" {
		host = p.attempt.sandbox.pod.IP().String()
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func (p prober) get(ctx context.Context, a *corev1.HTTPGetAction) error {
	addr, err := p.address(a.Host, a.Port)
	if err != nil {
		return err
	}
	scheme := "http"
	if a.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr, nil)
	if err != nil {
		return err
	}
	if req.URL, err = req.URL.Parse(a.Path); err != nil {
		return fmt.Errorf("parse the path of a probe: %w", err)
	}
	req.Header.Set("User-Agent", "kube-probe/test")
	req.Header.Set("Accept", "*/*")
	for _, h := range a.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	// The certificates of probed servers are not checked by the kubelet either.
	client := &http.Client{
		Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if next.URL.Hostname() != req.URL.Hostname() || len(via) >= 10 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("GET %s: status %d", req.URL, res.StatusCode)
	}
	return nil
}

func (p prober) grpc(ctx context.Context, a *corev1.GRPCAction) error {
	addr, err := p.address("", intstr.FromInt32(a.Port))
	if err != nil {
		return err
	}
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return p.dial(ctx, "tcp", addr) }))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	req := &grpc_health_v1.HealthCheckRequest{}
	if a.Service != nil {
		req.Service = *a.Service
	}
	res, err := grpc_health_v1.NewHealthClient(c).Check(ctx, req)
	if err == nil && res.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("the health of %s: %s", addr, res.Status)
	}
	return err
}
