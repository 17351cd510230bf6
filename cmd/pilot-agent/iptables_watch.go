package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent"
	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	tasks "github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// watchEvery is the time between two checks: rules are restored within two seconds.
const watchEvery = time.Second

// watchedCapture is a watch of rules.
type watchedCapture struct {
	task    tasks.Task
	options plan.Options
	report  func() agent.CaptureReport
}

// watchCapture makes the task that keeps rules in force. The arguments are those that istio-iptables
// was called with; other settings are read from the environment, as there.
func watchCapture(args string, env map[string]string, log *slog.Logger) (watchedCapture, error) {
	fail := func(err error) (watchedCapture, error) {
		return watchedCapture{}, fmt.Errorf("watch the capture of traffic by --watchCapture=%q: %w", args, err)
	}
	r, err := captureArguments(args, env)
	if err != nil {
		return fail(err)
	}
	for _, note := range r.notes {
		log.Warn("a setting of capture is ignored", "note", note)
	}
	// The watch is there to replace rules that others put in place of ours.
	r.backend.Reconcile = true
	facts, err := netns.ReadFacts("/")
	if err != nil {
		return fail(err)
	}
	rules, err := plan.Build(r.options, facts)
	if err != nil {
		return fail(err)
	}
	choice, err := capture.Choose(r.backend, rules)
	if err != nil {
		return fail(err)
	}
	log.Info("the rules of capture are watched", "by", choice.Name, "because", choice.Why)
	w := &capture.Watch{Backend: choice, Plan: rules, Every: watchEvery, Log: log}
	report := func() agent.CaptureReport {
		s := w.State()
		return agent.CaptureReport{
			Backend: choice.Name, Arguments: args, Checked: s.Checked, Restored: s.Restored, Last: s.Last, Found: s.Found, Problem: s.Problem,
		}
	}
	return watchedCapture{tasks.Task{Name: "capture", Run: w.Run}, r.options, report}, nil
}

// captureArguments reads the arguments that istio-iptables was called with, and its environment.
func captureArguments(args string, env map[string]string) (*captureCommand, error) {
	r := &captureCommand{env: env}
	f := pflag.NewFlagSet("istio-iptables", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	cli.Flags(f, settings.AgentIptables)
	if err := f.Parse(strings.Fields(strings.NewReplacer(`'`, "", `"`, "").Replace(args))); err != nil {
		return nil, err
	}
	if err := r.fill(f); err != nil {
		return nil, err
	}
	for _, s := range settings.AgentIptables {
		if s.Once && s.Flag != "" && f.Changed(s.Flag) {
			r.notes = append(r.notes, "flag --"+s.Flag+" has no effect on the watch")
		}
	}
	for _, arg := range f.Args() {
		r.notes = append(r.notes, fmt.Sprintf("the argument %q has no effect: it belongs to no flag", arg))
	}
	return r, nil
}
