package main

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// patient is an agent whose drain takes longer than any test, with a connection that stays open.
func patient(t *testing.T, env ...string) *agenttest.Process {
	t.Helper()
	plane := agenttest.NewPlane(t)
	port := agenttest.Port(t)
	plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": tlsListener(t, port)})
	plane.Start()
	a := agenttest.New(t, plane, "", env...)
	for i, e := range a.Cmd.Env {
		a.Cmd.Env[i] = strings.Replace(e, "terminationDrainDuration: 0.1s", "terminationDrainDuration: 3600s", 1)
	}
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return a
}

func send(t *testing.T, a *agenttest.Process, s syscall.Signal) {
	t.Helper()
	if err := a.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func says(t *testing.T, a *agenttest.Process, text string) {
	t.Helper()
	agenttest.Until(t, "the agent says "+text, func() error {
		if !strings.Contains(a.Output(), text) {
			return errors.New("not yet")
		}
		return nil
	})
}

// The drain is over when it is asked for again, whatever it waits for.
func TestASecondSignalSkipsTheDrain(t *testing.T) {
	for _, tt := range []struct {
		name          string
		first, second syscall.Signal
		env           []string
	}{
		{"a time", syscall.SIGTERM, syscall.SIGTERM, nil},
		{"an open connection", syscall.SIGINT, syscall.SIGINT, []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MAXIMUM_DRAIN_DURATION=1h"}},
		{"in place", syscall.SIGTERM, syscall.SIGINT, []string{"ENABLE_HOT_RESTART=false"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := patient(t, tt.env...)
			send(t, a, tt.first)
			says(t, a, "Envoy drains its listeners")
			if _, err := a.Envoy(); err != nil {
				t.Errorf("in the drain: %v", err)
			}
			send(t, a, tt.second)
			if code := a.Wait(); code != 0 {
				t.Errorf("exit code %d, want 0 after an end that was asked for", code)
			}
			if out := a.Output(); !strings.Contains(out, "asked to end again") || !strings.Contains(out, "signal=15") && !strings.Contains(out, "signal\":15") {
				t.Error("Envoy was not ended by SIGTERM")
			}
		})
	}
}

// An Envoy that does not take SIGTERM is killed by the third request, and the agent has done what was asked.
func TestAThirdSignalKills(t *testing.T) {
	a := patient(t)
	pid, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	send(t, a, syscall.SIGTERM)
	says(t, a, "Envoy drains its listeners")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	send(t, a, syscall.SIGTERM)
	says(t, a, "asked to end again")
	// It may have been killed by now: it has a second for SIGTERM, and the machine may be busy.
	_ = a.Cmd.Process.Signal(syscall.SIGTERM)
	if code := a.Wait(); code != 0 || !strings.Contains(a.Output(), "killed by the agent") {
		t.Errorf("exit code %d, want 0, and Envoy killed", code)
	}
}

// A signal that comes before Envoy runs ends the start.
func TestASignalInTheStart(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "customConfigFile: custom.json")
	hangs := a.Dir + "/envoy"
	for i, e := range a.Cmd.Env {
		a.Cmd.Env[i] = strings.Replace(e, "binaryPath: "+envoytest.Binary(t), "binaryPath: "+hangs, 1)
	}
	a.Write("custom.json", []byte("{}"))
	a.Write("envoy", []byte("#!/bin/sh\necho $$ > "+a.Dir+"/pid\nexec sleep 3600\n"))
	if err := os.Chmod(hangs, 0o700); err != nil {
		t.Fatal(err)
	}
	a.Start()
	agenttest.Until(t, "the bootstrap is looked at", func() error {
		_, err := os.Stat(a.Dir + "/pid")
		return err
	})
	send(t, a, syscall.SIGTERM)
	if code := a.Wait(); code != 0 || strings.Contains(a.Output(), "Envoy command") {
		t.Errorf("exit code %d, want 0 and no Envoy", code)
	}
}
