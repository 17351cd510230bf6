package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	tasks "github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// watchEvery is the time between two checks: rules are restored within two seconds.
const watchEvery = time.Second

// watchCapture makes the task that keeps rules in force. The arguments are those that istio-iptables
// was called with; other settings are read from the environment, as there. The second result are
// the options of these rules.
func watchCapture(args string, env map[string]string, log *slog.Logger) (tasks.Task, plan.Options, error) {
	fail := func(err error) (tasks.Task, plan.Options, error) {
		return tasks.Task{}, plan.Options{}, fmt.Errorf("watch the capture of traffic by --watchCapture=%q: %w", args, err)
	}
	r := &captureCommand{env: env}
	f := pflag.NewFlagSet("istio-iptables", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	cli.Flags(f, settings.AgentIptables)
	if err := f.Parse(strings.Fields(strings.NewReplacer(`'`, "", `"`, "").Replace(args))); err != nil {
		return fail(err)
	}
	if err := r.fill(f); err != nil {
		return fail(err)
	}
	for _, s := range settings.AgentIptables {
		if s.Once && s.Flag != "" && f.Changed(s.Flag) {
			r.notes = append(r.notes, "flag --"+s.Flag+" has no effect on the watch")
		}
	}
	for _, arg := range f.Args() {
		r.notes = append(r.notes, fmt.Sprintf("the argument %q has no effect: it belongs to no flag", arg))
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
	w := capture.Watch{Backend: choice, Plan: rules, Every: watchEvery, Log: log}
	return tasks.Task{Name: "capture", Run: w.Run}, r.options, nil
}
