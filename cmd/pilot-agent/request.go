package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

const (
	requestTimeout = 60 * time.Second
	debugPort      = 15004
)

// newRequest relays one request to a port of this Pod. Its standard output is parsed by
// programs: the body and a line end, nothing else. [agent C3]
func newRequest() *cobra.Command {
	c := &cobra.Command{
		Use:   "request METHOD PATH [BODY]",
		Short: "Make an HTTP request to Envoy's admin interface or to the agent",
		Example: `  pilot-agent request GET /config_dump
  pilot-agent request --debug-port 15020 POST drain`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentRequest)
			port := readRequest(v)
			if err := v.Err(); err != nil {
				return err
			}
			switch port {
			case mesh.AdminPort, debugPort, mesh.StatusPort, mesh.HealthPort:
			default:
				return fmt.Errorf("request to port %d: only %d, %d, %d and %d are allowed",
					port, mesh.AdminPort, debugPort, mesh.StatusPort, mesh.HealthPort)
			}
			body := ""
			if len(args) == 3 {
				body = args[2]
			}
			text, err := relay(c.Context(), localClient(requestTimeout), port, args[0], args[1], body)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
	cli.Add(c, settings.AgentRequest)
	return c
}

func readRequest(v *settings.Values) (port int) { return v.Int("debug-port") }

// relay makes the request and returns the body. "Not found" is an answer like others:
// callers ask for what may not be there.
func relay(ctx context.Context, client *http.Client, port int, method, path, body string) (string, error) {
	target := "http://" + net.JoinHostPort("localhost", strconv.Itoa(port)) + "/" + strings.TrimPrefix(path, "/")
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("request %s %s: %w", method, path, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", target, err)
	}
	if resp.StatusCode >= http.StatusBadRequest && resp.StatusCode != http.StatusNotFound {
		return "", fmt.Errorf("request %s %s: status %d, %s", method, target, resp.StatusCode, strings.TrimSpace(string(data)))
	}
	return string(data), nil
}

// askStatusPort is relay to the agent that runs on this machine. Without one, the error says what to do.
func askStatusPort(ctx context.Context, port int, method, path, body string) (string, error) {
	text, err := relay(ctx, localClient(requestTimeout), port, method, path, body)
	if failed := new(net.OpError); errors.As(err, &failed) && failed.Op == "dial" {
		return "", fmt.Errorf("no agent answers at port %d of this machine: %w: start it with pilot-agent proxy, or name its port with --statusPort", port, failed.Err)
	}
	return text, err
}

// localClient connects to localhost without a resolver: on IPv4, or on IPv6 if nothing listens on IPv4.
func localClient(timeout time.Duration) *http.Client {
	dial := net.Dialer{Timeout: timeout}
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil || host != "localhost" {
				return dial.DialContext(ctx, network, address)
			}
			conn, err := dial.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
			if err == nil {
				return conn, nil
			}
			conn, err6 := dial.DialContext(ctx, "tcp", net.JoinHostPort("::1", port))
			if err6 != nil {
				return nil, err
			}
			return conn, nil
		},
	}}
}

// waitOptions are those of the command wait.
type waitOptions struct {
	timeoutSeconds           int
	requestTimeout, interval time.Duration
	url                      string
}

func readWait(v *settings.Values) waitOptions {
	return waitOptions{
		timeoutSeconds: v.Int("timeoutSeconds"), url: v.Text("url"),
		requestTimeout: time.Duration(v.Int("requestTimeoutMillis")) * time.Millisecond,
		interval:       time.Duration(v.Int("periodMillis")) * time.Millisecond,
	}
}

// newWait blocks until the proxy is ready; it is what holds an application's start. [agent C4]
func newWait() *cobra.Command {
	c := &cobra.Command{
		Use:     "wait",
		Example: `  pilot-agent wait --timeoutSeconds 30 && ./the-application`,
		Short:   "Wait until the proxy is ready",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentWait)
			o := readWait(v)
			if err := v.Err(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Duration(o.timeoutSeconds)*time.Second)
			defer cancel()
			if err := awaitReady(ctx, localClient(o.requestTimeout), o.url, o.interval); err != nil {
				if why := agentReason(o.url, mesh.StatusPort); why != nil {
					err = fmt.Errorf("%w; %w", err, why)
				}
				if c.Context().Err() != nil {
					return fmt.Errorf("wait for %s: asked to end before it was ready: %w", o.url, err)
				}
				return fmt.Errorf("wait for %s: not ready in %d seconds: %w", o.url, o.timeoutSeconds, err)
			}
			return nil
		},
	}
	cli.Add(c, settings.AgentWait)
	return c
}

// awaitReady asks until the answer is 200. When ctx ends it returns why the last try was none.
func awaitReady(ctx context.Context, client *http.Client, url string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := askReady(ctx, client, url)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// agentReason is why the agent itself, at its status port on the host of an address, says that it is not ready; nil if it does not say
// it. Until Envoy listens, nothing else does.
func agentReason(address string, statusPort int) error {
	u, err := url.Parse(address)
	if err != nil {
		return nil //nolint:nilerr // the request has said so
	}
	at := net.JoinHostPort(u.Hostname(), strconv.Itoa(statusPort))
	if u.Host == at {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := askReady(ctx, localClient(time.Second), "http://"+at+"/healthz/ready"); err != nil {
		return fmt.Errorf("the agent at port %d: %w", statusPort, err)
	}
	return nil
}

func askReady(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d %s", resp.StatusCode, strings.TrimSpace(string(text)))
	}
	return nil
}

func readRestart(v *settings.Values) (statusPort int) { return v.Int("statusPort") }

// newRestart requests a new Envoy: its bootstrap, binary and options are read again.
func newRestart() *cobra.Command {
	c := &cobra.Command{
		Use: "restart",
		Example: `  pilot-agent restart
  kubectl exec web-1 -c istio-proxy -- pilot-agent restart`,
		Short: "Have a new Envoy take over from the one that runs",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentRestart)
			port := readRestart(v)
			if err := v.Err(); err != nil {
				return err
			}
			text, err := askStatusPort(c.Context(), port, http.MethodPost, "/restart", "")
			if err != nil {
				return err
			}
			if text != "OK" {
				return fmt.Errorf("ask for a restart: the agent answers %.100q", text)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
	cli.Add(c, settings.AgentRestart)
	return c
}
