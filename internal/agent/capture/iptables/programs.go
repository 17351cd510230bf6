// Package iptables runs the iptables programs: it chooses those that work and has them apply a plan.
//
// [Programs] are those of a list of directories. [Programs.Choose] chooses a [Pair] of them, whose
// Compare says how the rules in force differ from a plan; the [Change] puts the plan into force.
// All of it acts on the network namespace of the calling thread and needs the capabilities
// CAP_NET_ADMIN and CAP_NET_RAW. Changes of one namespace must not run at once.
package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture/xtables"
)

// program is one iptables of one version of IP.
type program struct {
	// name is the common prefix of its files, such as ip6tables-nft; dir is their directory.
	name, dir string
	// variant is legacy or nft; version is what --version prints.
	variant, version string
	// lock is the file to lock for a change; empty for the program's default.
	lock string
}

// String returns the name, version and variant.
func (p program) String() string { return fmt.Sprintf("%s %s (%s)", p.name, p.version, p.variant) }

// lockWait is how long a change waits for another program's. [agent I48]
const lockWait = 30 * time.Second

// lockFile is the lock of all iptables programs of a file system. namespaceLockFile is the network
// namespace of the program itself: a lock for one Pod.
const (
	lockFile          = "/run/xtables.lock"
	namespaceLockFile = "/proc/self/ns/net"
)

// Options say where programs are and which of them may be used.
type Options struct {
	// Path lists directories, with colons in between; empty means none.
	Path string
	// Variant is legacy or nft, the only one to use, or empty to choose.
	Variant string
	// NamespaceLock has legacy programs lock the network namespace instead of /run/xtables.lock.
	// [agent I27]
	NamespaceLock bool
}

// Programs finds iptables programs and runs each with --version once. It may be used by one
// goroutine at a time.
type Programs struct {
	o     Options
	known map[string]lookup
}

type lookup struct {
	program
	err error
}

// NewPrograms returns the programs that o allows. It looks for them when they are needed.
func NewPrograms(o Options) *Programs { return &Programs{o, map[string]lookup{}} }

// find looks for a program in the list of directories.
func (s *Programs) find(name string) (program, error) {
	l, ok := s.known[name]
	if !ok {
		l.program, l.err = s.lookUp(name)
		s.known[name] = l
	}
	return l.program, l.err
}

func (s *Programs) lookUp(name string) (program, error) {
	for dir := range strings.SplitSeq(s.o.Path, ":") {
		if dir == "" || !complete(dir, name) {
			continue
		}
		p := program{name: name, dir: dir}
		out, err := p.run("", "", "--version")
		if err != nil {
			return program{}, err
		}
		p.version, p.variant = parseVersion(out)
		return p.withLock(s.o.NamespaceLock), nil
	}
	return program{}, fmt.Errorf("there is no program %s with its -save and -restore", name)
}

// complete reports whether a directory has all three executables of a program.
func complete(dir, name string) bool {
	for _, file := range []string{name, name + "-save", name + "-restore"} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionForm = regexp.MustCompile(`v([0-9][0-9.]*)\s*(?:\(([a-z_ ]+)\))?`)

// parseVersion parses "iptables v1.8.9 (nf_tables)"; programs before 1.8 are legacy and name no variant.
func parseVersion(out string) (version, variant string) {
	m := versionForm.FindStringSubmatch(out)
	if m == nil {
		return "of an unknown version", "legacy"
	}
	if m[2] == "nf_tables" {
		return m[1], "nft"
	}
	return m[1], "legacy"
}

// waits reports whether its restore has the option --wait: legacy from 1.6.2 on. The nft variant has no lock.
func (p program) waits() bool {
	var n [3]int
	for i, part := range strings.SplitN(p.version, ".", 3) {
		n[i], _ = strconv.Atoi(part)
	}
	return p.variant == "legacy" && (n[0] > 1 || n[0] == 1 && (n[1] > 6 || n[1] == 6 && n[2] >= 2))
}

// save reads all tables.
func (p program) save() (xtables.Saved, error) {
	out, err := p.run("-save", "")
	if err != nil {
		return nil, err
	}
	s, err := xtables.ParseSaved(out)
	if err != nil {
		return nil, fmt.Errorf("read the output of %s-save: %w", p.name, err)
	}
	return s, nil
}

// restore applies a text, each of its tables atomically, and changes no rules that the text does not name.
func (p program) restore(text string) error {
	if text == "" {
		return nil
	}
	args := []string{"--noflush"}
	if p.waits() {
		args = append(args, fmt.Sprintf("--wait=%d", int(lockWait.Seconds())))
	}
	_, err := p.run("-restore", text, args...)
	return err
}

// works returns an error if the kernel lacks what the program needs. The nft variant needs no table for that.
func (p program) works() error {
	if p.variant == "nft" {
		_, err := p.run("-save", "", "-t", "nat")
		return err
	}
	args := []string{"-t", "nat", "-S"}
	if p.waits() {
		args = append(args, "-w", strconv.Itoa(int(lockWait.Seconds())))
	}
	_, err := p.run("", "", args...)
	return err
}

// hasLegacy reports whether the calling thread's network namespace has any legacy table. To ask the
// program would create one.
func hasLegacy(ipv6 bool) bool {
	name := map[bool]string{false: "ip_tables_names", true: "ip6_tables_names"}[ipv6]
	names, err := os.ReadFile("/proc/thread-self/net/" + name)
	return err == nil && len(names) > 0
}

// run runs one of the program's files in the calling thread's network namespace.
func (p program) run(suffix, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, p.name+suffix), args...)
	cmd.Env = []string{"PATH=" + p.dir, "LC_ALL=C"}
	if p.lock != "" {
		cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+p.lock)
	}
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w", strings.Join(append([]string{p.name + suffix}, args...), " "),
			diagnose(err, strings.Join(strings.Fields(stderr.String()), " ")))
	}
	return out.String(), nil
}

// withLock chooses the lock: the namespace's where the options say so, or where the common one can't
// be created, as on a read-only file system.
func (p program) withLock(ofNamespace bool) program {
	if p.variant != "legacy" {
		return p
	}
	f, err := os.OpenFile(lockFile, os.O_RDONLY|os.O_CREATE, 0o600)
	if err == nil {
		f.Close()
	}
	if ofNamespace || err != nil {
		p.lock = namespaceLockFile
	}
	return p
}

// baseName returns the program's name for a version of IP, without a variant.
func baseName(ipv6 bool) string {
	if ipv6 {
		return "ip6tables"
	}
	return "iptables"
}

// detect chooses the program for one version of IP, and says why: the variant of the options, or
// legacy where it has rules here, or the first that works of the nft variant, the program without a
// variant in its name, and legacy. [agent I42]
func (s *Programs) detect(ipv6 bool) (program, string, error) {
	name := baseName(ipv6)
	if s.o.Variant != "" {
		p, err := s.forced(name)
		return p, "--force-iptables-binary=" + s.o.Variant, err
	}
	if hasLegacy(ipv6) {
		if legacy, err := s.find(name + "-legacy"); err == nil {
			if rules, saveErr := legacy.save(); saveErr == nil && !rules.Empty() {
				return legacy, "legacy has rules here", nil
			}
		}
	}
	var errs []error
	for _, c := range []struct{ name, why string }{
		{name + "-nft", "it works and legacy has no rules here"}, {name, "it is the one that works"}, {name + "-legacy", "no other works"},
	} {
		p, err := s.find(c.name)
		if err == nil {
			err = p.works()
		}
		if err == nil {
			return p, c.why, nil
		}
		errs = append(errs, err)
	}
	return program{}, "", errors.Join(errs...)
}

// forced finds the variant of the options under its own name, or under the name without a variant.
func (s *Programs) forced(name string) (program, error) {
	p, err := s.find(name + "-" + s.o.Variant)
	if err == nil {
		return p, nil
	}
	plain, plainErr := s.find(name)
	if plainErr == nil && plain.variant == s.o.Variant {
		return plain, nil
	}
	if plainErr == nil {
		plainErr = fmt.Errorf("%s is the other variant", plain)
	}
	return program{}, errors.Join(err, plainErr)
}

// HasVariant reports whether there is a program of that variant, legacy or nft, for one version of IP.
func (s *Programs) HasVariant(variant string, ipv6 bool) bool {
	return slices.ContainsFunc(s.variants(ipv6), func(p program) bool { return p.variant == variant })
}

// variants returns the programs for one version of IP, at most one of each variant.
func (s *Programs) variants(ipv6 bool) (programs []program) {
	for _, suffix := range []string{"-legacy", "-nft", ""} {
		if len(programs) == 2 {
			break
		}
		p, err := s.find(baseName(ipv6) + suffix)
		if err == nil && (len(programs) == 0 || programs[0].variant != p.variant) {
			programs = append(programs, p)
		}
	}
	return programs
}
