package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	tasks "github.com/pilothouse/pilothouse/internal/run"
)

// watchEvery lets rules be back within two seconds.
const watchEvery = time.Second

// watchCapture makes the task that keeps rules in force. The arguments are those that istio-iptables
// was called with; what they don't say is in the environment, as there.
func watchCapture(args string, getenv func(string) string, log *slog.Logger) (tasks.Task, error) {
	r := &iptables{options: capture.DefaultOptions(), getenv: getenv}
	c := newIptablesCommand(getenv)
	c.ResetFlags()
	r.register(c)
	fail := func(err error) (tasks.Task, error) {
		return tasks.Task{}, fmt.Errorf("watch the capture of traffic by --watchCapture=%q: %w", args, err)
	}
	c.SetOut(io.Discard)
	if err := c.ParseFlags(strings.Fields(strings.NewReplacer(`'`, "", `"`, "").Replace(args))); err != nil {
		return fail(err)
	}
	if err := r.fill(c); err != nil {
		return fail(err)
	}
	// Rules that others left in place of ours are what the watch is for.
	r.backend.Reconcile = true
	facts, err := capture.ReadFacts("/")
	if err != nil {
		return fail(err)
	}
	plan, err := capture.Plan(r.options, facts)
	if err != nil {
		return fail(err)
	}
	choice, err := capture.Choose(r.backend, plan)
	if err != nil {
		return fail(err)
	}
	log.Info("the rules of capture are watched", "by", choice.Name, "because", choice.Why)
	w := capture.Watch{Backend: choice, Plan: plan, Every: watchEvery, Log: log}
	return tasks.Task{Name: "capture", Run: w.Run}, nil
}
