package fakeenvoy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// envoy is a running fake.
type envoy struct {
	Script
	path  string
	epoch int
	born  time.Time
	exit  chan int

	mu    sync.Mutex // guards Stats and hang
	hang  bool
	notes *os.File
}

// serve is the program: it returns the exit code.
func serve(args []string) int {
	e := &envoy{path: after(args, "-c"), born: time.Now(), exit: make(chan int, 4)}
	e.epoch, _ = strconv.Atoi(after(args, "--restart-epoch"))
	text, err := os.ReadFile(e.path)
	if err == nil {
		err = json.Unmarshal(text, &e.Script)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "script:", err)
		return 1
	}
	if after(args, "--mode") == "validate" {
		if e.Invalid != "" {
			fmt.Fprintln(os.Stderr, "error initializing configuration '"+e.path+"': "+e.Invalid)
			return 1
		}
		fmt.Println("configuration '" + e.path + "' OK")
		return 0
	}
	starts := e.starts()
	if e.notes, err = os.OpenFile(e.path+".record", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		return 1
	}
	e.note("start %s", strings.Join(args, " "))
	for _, line := range e.Lines {
		fmt.Println(line)
	}
	if e.FailFirst < 0 || starts < e.FailFirst {
		return e.ExitCode
	}
	return e.live()
}

// live serves until something ends it.
func (e *envoy) live() int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM)
	if e.Child {
		child := exec.Command("sleep", "1000")
		if err := child.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			return 1
		}
		e.note("child %d", child.Process.Pid)
	}
	listen := map[string]http.Handler{e.Listen: http.HandlerFunc(hello)}
	if !e.NoAdmin {
		listen[e.Admin] = http.HandlerFunc(e.admin)
	}
	delete(listen, "")
	for address, handler := range listen {
		go func() {
			fmt.Fprintln(os.Stderr, http.ListenAndServe(address, handler))
			e.exit <- 1
		}()
	}
	for {
		select {
		case code := <-e.exit:
			e.note("exit %d", code)
			return code
		case s := <-signals:
			e.note("signal %v", s)
			if !e.IgnoreTerm {
				return 0
			}
		}
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, os.Getpid()) }

func (e *envoy) admin(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	hang := e.hang
	e.mu.Unlock()
	if hang {
		<-r.Context().Done()
		return
	}
	if r.Method != http.MethodGet {
		e.note("%s %s", r.Method, r.URL.RequestURI())
	}
	state := "LIVE"
	if time.Since(e.born) < e.LiveAfter {
		state = "INITIALIZING"
	}
	switch r.URL.Path {
	case "/server_info":
		fmt.Fprintf(w, `{"version":"0/1.40.0/Fake","state":%q,"command_line_options":{"restart_epoch":%d,"concurrency":1}}`, state, e.epoch)
	case "/ready":
		if state != "LIVE" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, state)
	case "/stats":
		e.stats(w, r.URL.Query().Get("filter"), state)
	case "/stats/prometheus":
		fmt.Fprintln(w, "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1")
	case "/drain_listeners":
		fmt.Fprintln(w, "OK")
	case "/quitquitquit":
		fmt.Fprintln(w, "OK")
		e.exit <- 0
	case "/fake/exit":
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		e.exit <- code
	case "/fake/stats":
		e.order(r.URL.Query())
	case "/fake/hang":
		e.mu.Lock()
		e.hang = true
		e.mu.Unlock()
	default:
		http.NotFound(w, r)
	}
}

// order sets stats: name=number.
func (e *envoy) order(values map[string][]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Stats == nil {
		e.Stats = map[string]uint64{}
	}
	for name, v := range values {
		e.Stats[name], _ = strconv.ParseUint(v[0], 10, 64)
	}
}

func (e *envoy) stats(w http.ResponseWriter, filter, state string) {
	match, err := regexp.Compile(filter)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	all := map[string]uint64{"server.live": 1, "server.state": 0, "listener_manager.workers_started": 1}
	if state != "LIVE" {
		all = map[string]uint64{"server.live": 0, "server.state": 2, "listener_manager.workers_started": 0}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, n := range e.Stats {
		all[name] = n
	}
	for name, n := range all {
		if match.MatchString(name) {
			fmt.Fprintf(w, "%s: %d\n", name, n)
		}
	}
}

// starts counts the starts in the record.
func (e *envoy) starts() int {
	text, _ := os.ReadFile(e.path + ".record") // none yet
	return strings.Count("\n"+string(text), "\nstart ")
}

func (e *envoy) note(format string, args ...any) { fmt.Fprintf(e.notes, format+"\n", args...) }

// after is the argument behind a flag.
func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}
